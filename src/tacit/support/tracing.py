"""Traces of requests across peers, if the process uses OpenTelemetry (extra `traces`).

A span records an event, its time, its duration and its request. It contains no other number that
depends on records. In a process that has not imported OpenTelemetry everything here does nothing.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

_NAME = "tacit"


def _trace() -> ModuleType | None:
    return sys.modules.get("opentelemetry.trace")


@contextlib.contextmanager
def span(name: str, parent: str | None = None, **attributes: str | int) -> Iterator[None]:
    """Context manager that records its block as one span. `parent` is the `traceparent` text that
    another peer sent, if there is one.
    """
    trace = _trace()
    if trace is None:
        yield
        return
    context = _context_of(parent) if parent else None
    with trace.get_tracer(_NAME).start_as_current_span(
        name, context=context, attributes=attributes, record_exception=False
    ):
        yield


class OpenSpan:
    """A span that begins with one message and ends with another, when `end` is called."""

    def __init__(self, name: str, **attributes: str | int) -> None:
        trace = _trace()
        self._span: Any = None
        if trace is not None:
            self._span = trace.get_tracer(_NAME).start_span(name, attributes=attributes)

    @property
    def traceparent(self) -> str | None:
        """The W3C text that lets another peer continue the trace; None if nothing is recorded."""
        if self._span is None or not self._span.is_recording():
            return None
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier, trace.set_span_in_context(self._span))
        return carrier.get("traceparent")

    def end(self) -> None:
        """End the span."""
        if self._span is not None:
            self._span.end()


def _context_of(parent: str) -> Any:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({"traceparent": parent})
