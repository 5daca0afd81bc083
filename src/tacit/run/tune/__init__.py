"""Tune hyperparameters on synthetic records, never on private ones.

If settings such as the clip were chosen by trying them on private records, the choice would be an
uncharged release. Here every trial runs on records drawn from the public schema and the model's
prior, with the noise of the real run. Nothing in this package opens a file of records or a ledger.
"""

from tacit.run.tune.grid import default_grid, parse_grid
from tacit.run.tune.search import NOTHING_SPENT, Tuned, tune
from tacit.run.tune.trials import Trial
from tacit.run.tune.write import write_tuned

__all__ = [
    "NOTHING_SPENT",
    "Trial",
    "Tuned",
    "default_grid",
    "parse_grid",
    "tune",
    "write_tuned",
]
