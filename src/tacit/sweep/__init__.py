"""Sweeps: many runs of one configuration with some of its keys changed, in parallel.

A sweep directory holds sweep.toml (as asked), runs/ (a run directory each), rows/ (a finished row
each, whole or absent), table.parquet, table.csv and summary.csv.
"""

from tacit.sweep.job import Job
from tacit.sweep.spec import Sweep, expand, make_job, read_sweep
from tacit.sweep.sweep import Swept, sweep, sweep_jobs

__all__ = ["Job", "Sweep", "Swept", "expand", "make_job", "read_sweep", "sweep", "sweep_jobs"]
