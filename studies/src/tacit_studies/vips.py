"""The experiments of "Variational Bayes in private settings" (VIPS), repeated.

Its Figure 2 and Table 1 are on topics; logistic regression and sigmoid belief networks are from its
full paper. All three use one mechanism, `PrivateStatistics`, with different models.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from tacit.errors import ConfigError
from tacit.run.config import MAX_SEED
from tacit_studies import Progress
from tacit_studies.page import Picture
from tacit_studies.tables import Table
from tacit_studies.vips_belief import belief_part
from tacit_studies.vips_regression import regression_part
from tacit_studies.vips_topics import topics
from tacit_studies.write import make_folder, write_study

TITLE = "Variational Bayes in private settings (VIPS), repeated"
Part = Callable[..., tuple[list[Table], list[tuple[Picture, Figure]]]]
PARTS: dict[str, Part] = {
    "topics": topics,
    "regression": regression_part,
    "belief": belief_part,
}


def reproduce(
    out: Path,
    *,
    seed: int = 0,
    quick: bool = False,
    figure: str | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Run the study, or one part of it, and write tables.md, tables.json, index.html, figures.

    `quick` takes fewer articles, noises and steps. Returns the content of `tables.json`.
    """
    out = Path(out)
    if not 0 <= seed <= MAX_SEED:
        raise ConfigError(f"--seed {seed}; it must be a whole number from 0 to {MAX_SEED}")
    make_folder(out)
    tables: list[Table] = []
    pictures: list[tuple[Picture, Figure]] = []
    chosen = {name: part for name, part in PARTS.items() if figure in (None, name)}
    for done, part in enumerate(chosen.values()):

        def tell(words: str, done: int = done) -> None:
            if progress is not None:
                progress(done, len(chosen), words)

        made = part(out, seed=seed, quick=quick, tell=tell)
        tables += made[0]
        pictures += made[1]
    if progress is not None:
        progress(len(chosen), len(chosen), "done")
    command = f"tacit reproduce vips --seed {seed}"
    command += f" --figure {figure}" if figure is not None else ""
    command += " --quick" if quick else ""
    facts = {"study": "vips", "command": command, "seed": seed, "quick": quick, "figure": figure}
    return write_study(
        out,
        title=TITLE,
        summary=_summary(quick),
        facts=facts,
        tables=tables,
        figures=pictures,
        theirs="numbers of the paper are as published",
    )


def _summary(quick: bool) -> str:
    words = (
        "Expected statistics of each record, clipped and summed with noise once per step, for "
        "topics, logistic regression and belief networks. These are simulations: the noise comes "
        "from known seeds, so that they can be repeated. With secret noise the same runs would "
        "have the stated guarantees."
    )
    small = (
        " This is the quick version: fewer records, noises and steps. Its numbers are not the "
        "results of the study."
    )
    return words + small if quick else words
