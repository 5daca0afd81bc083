"""Posteriors of posteriordb with the default inference, against long NUTS runs.

Records are distributed to 1, 5 and 20 parties and fitted with `tacit.fit(…, privacy="none")` and
otherwise default settings. NumPyro's SVI with two automatic guides has all records in one place.
Every run is stored in OUT/kept, so that the same command continues an interrupted study.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpyro

from tacit.errors import ConfigError
from tacit.run.config import MAX_SEED
from tacit.support.storage import write_text
from tacit_studies import Progress
from tacit_studies.kept import kept
from tacit_studies.page import Picture
from tacit_studies.posteriordb_data import POSTERIORS, Posterior
from tacit_studies.posteriordb_figures import plot_errors
from tacit_studies.posteriordb_runs import (
    MOST_STEPS,
    RATE,
    STEPS,
    Result,
    library_digest,
    nuts_reference,
    published_reference,
    run_svi,
    run_tacit,
    without_compilation_cache,
)
from tacit_studies.posteriordb_tables import (
    COMPARED_PARTIES,
    GUIDES,
    SAMPLED,
    TACIT,
    Run,
    as_csv,
    comparison_table,
    posterior_table,
    reference_table,
    summary_table,
)
from tacit_studies.write import make_folder, write_study

TITLE = "Reference posteriors with default inference (posteriordb)"
PUBLISHED, OWN = "published", "own"
PARTIES = (1, COMPARED_PARTIES, 20)
QUICK = (
    "sblri-blr",
    "kidiq-kidscore_momhsiq",
    "mesquite-logmesquite",
    "eight_schools-eight_schools_noncentered",
    "low_dim_gauss_mix-low_dim_gauss_mix",
)


def reproduce(
    out: Path,
    *,
    seed: int = 0,
    quick: bool = False,
    figure: str | None = None,
    progress: Progress | None = None,
    chosen: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Run the study and write tables.md, tables.json, runs.csv, index.html and the figure.

    `figure` is "published" (posteriors with draws of posteriordb) or "own" (those with our own NUTS
    references); `quick` takes five posteriors and five parties; `chosen` names posteriors.
    Returns the content of `tables.json`.
    """
    out = Path(out)
    if not 0 <= seed <= MAX_SEED:
        raise ConfigError(f"--seed {seed}; it must be a whole number from 0 to {MAX_SEED}")
    studied = [POSTERIORS[name] for name in chosen or (QUICK if quick else POSTERIORS)]
    if figure is not None:
        studied = [one for one in studied if one.published == (figure == PUBLISHED)]
    if not studied:
        raise ConfigError(f"--quick has no posteriors of --figure {figure}: leave one of them out")
    for one in studied:
        one.load()  # fails if the data are missing
    make_folder(out)
    parties = (COMPARED_PARTIES,) if quick else PARTIES
    with without_compilation_cache():
        runs, references = _run_all(studied, parties, out / "kept", seed, quick, progress)
    return _write(out, seed, quick, figure, runs, references)


def _run_all(
    studied: list[Posterior],
    parties: tuple[int, ...],
    folder: Path,
    seed: int,
    quick: bool,
    progress: Progress | None,
) -> tuple[list[Run], dict[str, Result]]:
    """Every run, run now or stored before, and our own references."""
    runs: list[Run] = []
    total = len(studied) * (len(parties) + len(GUIDES))
    done = 0

    def step(words: str, asked: dict[str, Any], make: Callable[[], Result]) -> Result:
        nonlocal done
        if progress is not None:
            progress(done, total, words)
        done += 1
        return kept(folder, {"study": "posteriordb", "seed": seed, **asked}, make)

    def reference_of(posterior: Posterior) -> Result:
        if posterior.published:
            return published_reference(posterior)
        asked = {"what": "nuts", "posterior": posterior.name, "numpyro": numpyro.__version__}
        make = partial(nuts_reference, posterior, seed)
        return kept(folder, {"study": "posteriordb", "seed": seed, **asked}, make)

    # The compared number of parties first, so that an interrupted study has a complete column.
    for count, posterior in product(sorted(parties, key=_first_compared), studied):
        name = posterior.name
        asked = {"what": TACIT, "posterior": name, "parties": count, "tacit": library_digest()}
        reference = reference_of(posterior)
        make = partial(run_tacit, posterior, reference, count, seed)
        found = step(f"{name}: {count} parties", asked, make)
        runs.append(_run(posterior, TACIT, count, found))
    doubted = [run.posterior for run in runs if _is_doubted(run)]
    for posterior in [one for one in studied if one.name in doubted]:
        name, count = posterior.name, COMPARED_PARTIES
        asked = {"what": SAMPLED, "posterior": name, "parties": count, "tacit": library_digest()}
        reference = reference_of(posterior)
        make = partial(run_tacit, posterior, reference, count, seed, sampling=True)
        total += 1
        found = step(f"{name}: sampled", asked, make)
        runs.append(_run(posterior, SAMPLED, count, found))
    most = STEPS if quick else MOST_STEPS
    for posterior, guide in product(studied, GUIDES):
        name = posterior.name
        asked = {"what": guide, "posterior": name, "rate": RATE, "steps": STEPS, "most": most,
                 "numpyro": numpyro.__version__}  # fmt: skip
        make = partial(run_svi, posterior, reference_of(posterior), guide, seed, most=most)
        found = step(f"{name}: SVI, {guide}", asked, make)
        runs.append(_run(posterior, guide, None, found))
    own = [posterior for posterior in studied if not posterior.published]
    references = {posterior.name: reference_of(posterior) for posterior in own}
    order = [posterior.name for posterior in studied]
    runs.sort(key=lambda run: (order.index(run.posterior), run.parties or MOST_STEPS))
    if progress is not None:
        progress(total, total, "done")
    return runs, references


def _run(posterior: Posterior, method: str, parties: int | None, result: Result) -> Run:
    return Run(
        posterior=posterior.name,
        published=posterior.published,
        method=method,
        parties=parties,
        result=result,
    )


def _is_doubted(run: Run) -> bool:
    """True if this fit with the compared number of parties has not converged."""
    return run.parties == COMPARED_PARTIES and not run.result.get("converged", True)


def _first_compared(count: int) -> tuple[bool, int]:
    """Sort key of a number of parties: the compared number comes first, then increasing order."""
    return count != COMPARED_PARTIES, count


def _write(
    out: Path,
    seed: int,
    quick: bool,
    figure: str | None,
    runs: list[Run],
    references: dict[str, Result],
) -> dict[str, Any]:
    tables = [summary_table(runs), comparison_table(runs), posterior_table(runs)]
    if any(run.method == SAMPLED for run in runs):
        tables.append(posterior_table(runs, SAMPLED))
    if references:
        tables.append(reference_table(references))
    command = f"tacit reproduce posteriordb --seed {seed}"
    command += f" --figure {figure}" if figure is not None else ""
    command += " --quick" if quick else ""
    facts = {"study": "posteriordb", "command": command, "seed": seed, "quick": quick,
             "figure": figure, "library": library_digest()}  # fmt: skip
    result = write_study(
        out, title=TITLE, summary=_summary(quick), facts=facts, tables=tables,
        figures=[(Picture("errors.png", _CAPTION), plot_errors(runs))],
        theirs="reference draws are from posteriordb where it has some",
    )  # fmt: skip
    write_text(out / "runs.csv", as_csv(runs))
    return {**result, "files": [*result["files"], str(out / "runs.csv")]}


_CAPTION = (
    "Error of the mean in reference standard deviations, worst coordinate, and the range of the "
    "ratio of standard deviations, by posterior. Shaded: the range that counts as right. A "
    "triangle, or a dark end, lies beyond the axis. Refused fits have no mark."
)


def _summary(quick: bool) -> str:
    words = (
        "Posteriors of posteriordb, fitted with default settings and no privacy, with the records "
        "at one, five and twenty parties, against reference draws and against NumPyro's SVI with "
        "automatic guides on all records in one place. A posterior with fewer records than parties "
        "has one party per record (eight_schools: 8)."
    )
    small = (
        " This is the quick version: five posteriors, five parties, SVI for at most 10,000 steps. "
        "Its numbers are not the results of the study."
    )
    return words + small if quick else words
