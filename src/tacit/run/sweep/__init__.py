"""Sweeps: many runs of one configuration with some of its keys changed, in parallel.

A sweep directory holds sweep.toml, runs/ (one run directory per run), rows/ (one file per finished
run), table.parquet, table.csv and summary.csv.
"""

from tacit.run.sweep.job import Job, columns_of
from tacit.run.sweep.local import Local, default_workers
from tacit.run.sweep.spec import Sweep, expand, make_job, read_sweep
from tacit.run.sweep.sweep import Swept, sweep, sweep_jobs

__all__ = [
    "Job",
    "Local",
    "Sweep",
    "Swept",
    "columns_of",
    "default_workers",
    "expand",
    "make_job",
    "read_sweep",
    "sweep",
    "sweep_jobs",
]
