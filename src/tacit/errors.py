"""The errors a user can cause, each with the exit code the command line answers with.

A message is one line: what was found, what is allowed, what to do next. A traceback is for
`--debug` only.
"""

from __future__ import annotations


class TacitError(Exception):
    """Base of every error that is the user's to mend."""

    exit_code = 1
    also: tuple[TacitError, ...] = ()
    """Further errors that were found at the same time."""


class ConfigError(TacitError):
    """A bad configuration or a bad argument."""

    exit_code = 2


class PrivacyBudgetError(TacitError):
    """A privacy budget forbids what was asked."""

    exit_code = 3


class DataError(TacitError):
    """Missing or malformed data."""

    exit_code = 4


class PeerError(TacitError):
    """Network or peer trouble."""

    exit_code = 5
