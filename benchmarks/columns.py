"""Mixtures and factor models on GUSTO-I and MNIST: exact against scikit-learn, and private.

    python benchmarks/columns.py --seeds 11-13

Held-out nats per record minus those of scikit-learn's GaussianMixture (GUSTO: five columns, five
components; MNIST: ten principal components, ten clusters, with the adjusted Rand index against the
digits), and the share of held-out variance along 20 factors of MNIST's 784 pixels. Ten parties,
δ = 1e-5, replace-one; "sum": only the sum over parties is released (aggregation = "trusted").
Needs TACIT_DATA with gusto/ and mnist/, and scikit-learn.
"""

from __future__ import annotations

import argparse
import gzip
import os
import time
import warnings
from pathlib import Path

import numpy as np
import polars as pl

import tacit
from tacit.models import FactorModel, GaussianMixture

PARTIES = 10
GUSTO = {
    "age": (18, 110),
    "sysbp": (0, 280),
    "pulse": (0, 250),
    "height": (140, 215),
    "weight": (36, 215),
}
SETTINGS = ((1.0, "trusted"), (1.0, "plain"), (4.0, "trusted"), (4.0, "plain"))


def folder(name: str) -> Path:
    return Path(os.environ["TACIT_DATA"]) / name


def gusto() -> np.ndarray:
    table = pl.read_csv(
        folder("gusto") / "gusto.csv.gz", infer_schema_length=None, null_values="NA"
    )
    return table.select(list(GUSTO)).cast(pl.Float64).to_numpy()


def mnist() -> tuple[np.ndarray, np.ndarray]:
    found = []
    for name, start in (("train-images-idx3-ubyte", 16), ("train-labels-idx1-ubyte", 8)):
        with gzip.open(folder("mnist") / f"{name}.gz") as file:
            found.append(np.frombuffer(file.read(), np.uint8, offset=start))
    return found[0].reshape(-1, 784) / 255.0, found[1]


def split(x: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.random.default_rng(seed).permutation(len(x))
    return order[len(x) // 5 :], order[: len(x) // 5]


def fitted(model, x: np.ndarray, test: np.ndarray, privacy) -> tuple[tacit.Fit, float]:
    parties = {f"party {i}": {"x": x[i::PARTIES]} for i in range(PARTIES)}
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = tacit.fit(model, parties, privacy=privacy, test={"x": test})
    return fit, time.process_time() - start


def budgets(settings, seed: int):
    yield "exact", None
    for epsilon, aggregation in settings:
        label = f"ε = {epsilon:g}, {'sum' if aggregation == 'trusted' else 'plain'}"
        yield (
            label,
            tacit.Privacy(
                epsilon=epsilon, delta=1e-5, aggregation=aggregation, insecure_noise_seed=seed
            ),
        )


def mixture(name: str, model, x, labels, seeds, settings) -> None:
    from sklearn.metrics import adjusted_rand_score
    from sklearn.mixture import GaussianMixture as Other

    for seed in seeds:
        train, test = split(x, seed)
        other = Other(model.components, n_init=3, random_state=seed).fit(x[train])
        reference = other.score(x[test])
        for label, privacy in budgets(settings, seed):
            fit, cpu = fitted(model, x[train], x[test], privacy)
            held = fit.metrics["held_out"]["log_predictive_density"]
            line = f"{name:<8} seed {seed} {label:<14} {held - reference:+.3f} nats"
            if labels is not None:
                own = np.argmax(fit.predict({"x": x[test]}), axis=1)
                both = (
                    adjusted_rand_score(labels[test], own),
                    adjusted_rand_score(labels[test], other.predict(x[test])),
                )
                line += ", adjusted Rand {:.3f} (scikit-learn {:.3f})".format(*both)
            print(f"{line}, {cpu:.1f} s CPU", flush=True)


def factors(pixels: np.ndarray, seeds, settings) -> None:
    from sklearn.decomposition import PCA

    model = FactorModel([f"pixel {i}" for i in range(784)], factors=20, bounds=(0.0, 1.0))
    for seed in seeds:
        train, test = split(pixels, seed)
        other = PCA(20, svd_solver="covariance_eigh").fit(pixels[train])
        gap = pixels[test] - pixels[test].mean(axis=0)
        best = np.sum((gap @ other.components_.T) ** 2) / np.sum(gap**2)
        for label, privacy in budgets(settings, seed):
            fit, cpu = fitted(model, pixels[train], pixels[test], privacy)
            found = fit.metrics["held_out"]["captured_variance"]
            print(
                f"factors  seed {seed} {label:<14} captured variance {found:.3f} "
                f"(scikit-learn {best:.3f}), {cpu:.1f} s CPU",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="11-13", help="first-last")
    parser.add_argument("--only", choices=("gusto", "mnist", "factors"))
    parser.add_argument("--settings", default="0-3", help="of ε and aggregation, first-last")
    asked = parser.parse_args()
    first, last = map(int, asked.seeds.split("-"))
    seeds = range(first, last + 1)
    low, high = map(int, asked.settings.split("-"))
    settings = SETTINGS[low : high + 1]
    if asked.only in (None, "gusto"):
        bounds = tuple(np.array(ends, float) for ends in zip(*GUSTO.values(), strict=True))
        model = GaussianMixture(tuple(GUSTO), components=5, bounds=bounds)
        mixture("GUSTO", model, gusto(), None, seeds, settings)
    if asked.only in (None, "mnist", "factors"):
        pixels, digits = mnist()
    if asked.only in (None, "mnist"):
        gap = pixels - pixels.mean(axis=0)
        axes = np.linalg.eigh(gap.T @ gap)[1][:, ::-1][:, :10]
        model = GaussianMixture(
            [f"component {i + 1}" for i in range(10)], components=10, bounds=(-12.0, 12.0)
        )
        mixture("MNIST", model, gap @ axes, digits, seeds, settings)
    if asked.only in (None, "factors"):
        factors(pixels, seeds, settings)


if __name__ == "__main__":
    main()
