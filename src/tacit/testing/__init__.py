"""Conformance suites, which test extensions of tacit.

    from tacit import testing

docs/extending.md has an example of each suite. The suites need no test framework: a failed check
raises an AssertionError with the name of the check, the value found and the value expected. Random
numbers have a fixed seed. A Monte Carlo check of a family allows five standard errors, so its
false-alarm rate is about one in two million. A family that passes for one seed therefore passes for
nearly all seeds. A check of the distribution of noise has a false-alarm rate of at most one in a
million, for any number of coordinates.
"""

from __future__ import annotations

from tacit.testing.accountants import check_accountant
from tacit.testing.clipping import check_clipping
from tacit.testing.codecs import check_codec
from tacit.testing.engines import check_engine
from tacit.testing.families import STANDARD_ERRORS, LogDensity, check_family
from tacit.testing.laws import FALSE_ALARM, gaussian_faults
from tacit.testing.local_methods import check_local_method, conjugate_optimum, synthetic_records
from tacit.testing.mechanisms import Scaled, check_mechanism
from tacit.testing.models import check_model
from tacit.testing.private_methods import check_private_method
from tacit.testing.stores import check_store

__all__ = [
    "FALSE_ALARM",
    "STANDARD_ERRORS",
    "LogDensity",
    "Scaled",
    "check_accountant",
    "check_clipping",
    "check_codec",
    "check_engine",
    "check_family",
    "check_local_method",
    "check_mechanism",
    "check_model",
    "check_private_method",
    "check_store",
    "conjugate_optimum",
    "gaussian_faults",
    "synthetic_records",
]
