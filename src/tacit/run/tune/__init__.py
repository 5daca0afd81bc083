"""Hyperparameters found on made-up records of the declared shape, never on the private ones.

Choosing a clip, a step or a number of rounds by trying them on the private records is a release of
its own, which nobody has paid for. Here every trial runs on records that are drawn from the public
schema and the model's prior, with the noise that the real run would have. Nothing in this package
opens a file of records or a ledger.
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
