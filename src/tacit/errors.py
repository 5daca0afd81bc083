"""Errors caused by user input, with their exit codes.

A message is one line: the value, the allowed values, the next step. Only `--debug` shows a
traceback.
"""

from __future__ import annotations


class TacitError(Exception):
    """Base class for errors caused by user input."""

    exit_code = 1
    also: tuple[TacitError, ...] = ()
    """Further errors that were found at the same time."""


class ConfigError(TacitError):
    """A bad configuration or a bad argument."""

    exit_code = 2


class PrivacyBudgetError(TacitError):
    """A privacy budget does not allow the request."""

    exit_code = 3


class DataError(TacitError):
    """Missing or malformed data."""

    exit_code = 4


class PeerError(TacitError):
    """A network or peer error."""

    exit_code = 5
