"""DP-SGD by Opacus, in a process that has torch and neither tacit nor JAX; see `private.py`.

Called as `python opacus_peer.py RECORDS INPUTS HIDDEN BATCH STEPS REPEATS`; HIDDEN = 0 is logistic
regression. Prints one JSON object: versions, and CPU seconds a step for each way of writing it.

* "loader": as its users write it, `PrivacyEngine.make_private` on a model, an optimiser and a
  `DataLoader`, with Poisson sampling;
* "gather": the same model and optimiser, but the batches drawn and gathered by two tensor
  operations in place of the loader's record by record: as fast as we could write it;
* "mean-field": "gather" with a mean and a log standard deviation for each weight and one draw
  of the weights a step, which is what tacit learns.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

CLIP, NOISE, RATE = 1.0, 1.0, 0.1


def main() -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    import opacus
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    records, inputs, hidden, batch, steps, repeats = map(int, sys.argv[1:])
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(records, inputs, generator=generator)
    y = (torch.rand(records, generator=generator) < 0.3).float()
    found = {
        how: statistics.median(_cpu_s_a_step(how, x, y, hidden, batch, steps, repeats))
        for how in ("loader", "gather", "mean-field")
    }
    print(json.dumps({"opacus": opacus.__version__, "torch": torch.__version__, "step_s": found}))


def _cpu_s_a_step(
    how: str, x: Any, y: Any, hidden: int, batch: int, steps: int, repeats: int
) -> list[float]:
    import torch
    from opacus import PrivacyEngine
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    linear: Callable[[int, int], nn.Module] = nn.Linear
    if how == "mean-field":
        linear = _mean_field_linear()
    if hidden:
        model = nn.Sequential(linear(x.shape[1], hidden), nn.ReLU(), linear(hidden, 1))
    else:
        model = linear(x.shape[1], 1)
    model, optimiser, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=RATE),
        data_loader=DataLoader(TensorDataset(x, y), batch_size=batch),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
        poisson_sampling=True,
    )
    loss = nn.BCEWithLogitsLoss()

    def from_loader() -> Iterator[tuple[Any, Any]]:
        while True:
            yield from loader

    def gathered() -> Iterator[tuple[Any, Any]]:
        while True:
            rows = (torch.rand(len(x)) < batch / len(x)).nonzero()[:, 0]
            yield x[rows], y[rows]

    batches = from_loader() if how == "loader" else gathered()

    def work(count: int) -> None:
        for _ in range(count):
            inputs, labels = next(batches)
            optimiser.zero_grad()
            loss(model(inputs)[:, 0], labels).backward()
            optimiser.step()

    work(steps // 5)
    seen = []
    for _ in range(repeats):
        started = time.process_time()
        work(steps)
        seen.append((time.process_time() - started) / steps)
    return seen


def _mean_field_linear() -> Any:
    """nn.Linear with q = N(mean, exp(scale)²) for each weight and one draw for the whole batch."""
    import torch
    from opacus.grad_sample import register_grad_sampler
    from torch import nn

    class MeanFieldLinear(nn.Module):
        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            self.mean = nn.Parameter(0.1 * torch.randn(outputs, inputs + 1))
            self.scale = nn.Parameter(torch.full((outputs, inputs + 1), -3.5))
            self.deviation = torch.zeros(outputs, inputs + 1)

        def forward(self, x: Any) -> Any:
            deviation = torch.exp(self.scale) * torch.randn_like(self.scale)
            self.deviation = deviation.detach()
            weights = self.mean + deviation
            return nn.functional.linear(x, weights[:, :-1], weights[:, -1])

    @register_grad_sampler(MeanFieldLinear)
    def sample(layer: Any, activations: list[Any], backprops: Any) -> dict[Any, Any]:
        (x,) = activations
        x = torch.nn.functional.pad(x, (0, 1), value=1.0)
        each = torch.einsum("ni,nj->nij", backprops, x)
        return {layer.mean: each, layer.scale: each * layer.deviation}

    return MeanFieldLinear


if __name__ == "__main__":
    main()
