"""One trace per request: from the server through the party's ledger to its reply."""

import asyncio

import harness
import pytest
from harness import Federation, run_async

pytest.importorskip("opentelemetry.sdk")


@pytest.fixture(scope="module")
def exported():
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    yield exporter
    provider.shutdown()


def test_a_request_is_one_trace_across_peers(exported, tmp_path, pki):
    federation = Federation.make(tmp_path, pki, rounds=2)

    async def scene():
        async with federation.serving() as running:
            joins = [
                asyncio.create_task(federation.join(name, running.port))
                for name in federation.parties
            ]
            await asyncio.gather(*joins)
            assert await running.over() == "finished"

    run_async(scene())
    spans = exported.get_finished_spans()
    requests = {span.context.span_id: span for span in spans if span.name == "request"}
    assert len(requests) == 2 * len(federation.parties)
    answers = [span for span in spans if span.name == "answer"]
    assert len(answers) == len(requests)
    for answer in answers:
        request = requests[answer.parent.span_id]
        assert answer.attributes["request"] == request.attributes["request"]
        inside = [s.name for s in spans if s.parent and s.parent.span_id == answer.context.span_id]
        assert inside == ["charge", "compute", "keep"]
    told = {key for span in spans for key in span.attributes}
    assert told <= {"request", "party", "round", "requests"}, "nothing that depends on records"


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    return harness.Pki.make(tmp_path_factory.mktemp("pki"), harness.PARTIES)
