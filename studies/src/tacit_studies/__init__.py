"""Studies that repeat the experiments of a publication, each with one call.

Only the registry is imported here: a study loads array libraries and compilers when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from tacit.errors import ConfigError

Progress = Callable[[int, int, str], None]
"""Called with the number of steps done, the total number and a description of the next step."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """One study: its description, and the module whose function `reproduce` runs it."""

    name: str
    description: str
    module: str
    figures: tuple[int | str, ...] = ()
    """Figures that can be made alone; if empty, the study is run as a whole."""
    several: bool = False
    """True if several figures can be made together."""
    chapter: str = ""
    """Prefix of the figures' numbers in the publication, which may be left out."""

    def __call__(
        self,
        out: Path,
        *,
        seed: int = 0,
        quick: bool = False,
        figure: str | int | Sequence[str | int] | None = None,
        progress: Progress | None = None,
    ) -> dict[str, Any]:
        """Write tables, figures and a page to `out`; returns the tables as data."""
        asked = [figure] if isinstance(figure, str | int) else list(figure or ())
        chosen = list(dict.fromkeys(self._known(one) for one in asked))
        if len(chosen) > 1 and not self.several:
            raise ConfigError(
                f"--figure {' --figure '.join(map(str, asked))}; study {self.name} makes one "
                "figure or all: name one, or none"
            )
        only = {"figure": chosen if self.several else chosen[0]} if chosen else {}
        run = import_module(self.module).reproduce
        return run(out, seed=seed, quick=quick, progress=progress, **only)

    def _known(self, figure: str | int) -> int | str:
        known = {str(number): number for number in self.figures}
        number = known.get(str(figure).removeprefix(self.chapter))
        if number is None:
            raise ConfigError(f"--figure {figure}; {self._choice()}")
        return number

    def _choice(self) -> str:
        if not self.figures:
            return f"study {self.name} has no separate figures: leave --figure out"
        return f"choose one of {', '.join(f'{self.chapter}{one}' for one in self.figures)}"


STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        Study(
            name="fedvi",
            description="the federated VI thesis, ch. 4: a Gaussian mean and rugged terrain, "
            "sequential, synchronous and asynchronous",
            module="tacit_studies.fedvi",
        ),
        Study(
            name="frontier",
            description="cost of privacy on Adult: every private method over ε, by trust "
            "assumption, and private scoring without one of its parts",
            module="tacit_studies.frontier",
            figures=(1, 2, "ablation"),
            several=True,
        ),
        Study(
            name="meng",
            description="the DP-PVI report, ch. 4: one regression coefficient, both levels of "
            "protection, claims and coverage",
            module="tacit_studies.meng",
            figures=tuple(range(1, 18)),
            chapter="4.",
        ),
        Study(
            name="posteriordb",
            description="posteriors of posteriordb with default inference at 1, 5 and 20 parties, "
            "against long NUTS runs and beside NumPyro's SVI",
            module="tacit_studies.posteriordb",
            figures=("published", "own"),
        ),
        Study(
            name="tmlr",
            description="differentially private PVI, TMLR 2023: Adult, MIMIC-III, a network and "
            "the number of shards, against the published curves",
            module="tacit_studies.tmlr",
            figures=(1, 2, 3, 4, 5),
        ),
        Study(
            name="vips",
            description="variational Bayes in private settings: topics of Wikipedia, logistic "
            "regression and belief networks against ε, and the cost of the correct sensitivity",
            module="tacit_studies.vips",
            figures=("topics", "regression", "belief"),
        ),
    )
}

__all__ = ["STUDIES", "Progress", "Study"]
