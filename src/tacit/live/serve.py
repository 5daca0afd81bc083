"""`tacit serve`: run the server of a live federation."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tacit.arrays import Arrays
from tacit.data.schema.layout import Layout
from tacit.engines.batching import prior_agreement
from tacit.live.config import Agreed, ServerSetup, read_agreed
from tacit.live.journal import Journal, Watch
from tacit.live.plan import server_plan
from tacit.live.protocol import messages as m
from tacit.live.server.coordinator import Versions, WireServer
from tacit.live.server.live_run import CHECKPOINT, ROSTER, LiveRun, ReplyRules
from tacit.live.server.membership import load_roster, roster_digest, save_roster
from tacit.live.state_dir import InUseError, held
from tacit.live.versions import (
    Proposal,
    check_same_terms,
    check_successor,
    copied,
    has_copy,
    keep_copy,
)
from tacit.methods import PrivateMethod
from tacit.methods.reply_bounds import BrokenBound, Exchange, broken_bound
from tacit.methods.reply_bounds_private import broken_sum_bound
from tacit.models.capabilities import Coefficients
from tacit.models.prior import PRIOR_PARTY, prior_records
from tacit.party.agent import conclude
from tacit.party.compute import SinglePartyComputer
from tacit.plan.plan import Plan, first_factors
from tacit.results.compose import compose_result, privacy_facts, public_facts, verdict_facts
from tacit.results.dependence import dependence_cautions
from tacit.results.diagnostics import run_verdict
from tacit.results.evaluation import Attempts
from tacit.results.posterior import posterior_of
from tacit.results.published import NOTHING_MEASURED, local_result, public_result
from tacit.results.saved import write_posterior
from tacit.results.shown import site_summary
from tacit.results.summary import CautionNote, PartyRow, Result, write_result
from tacit.run.config import resolved_toml
from tacit.run.directory import CONFIG, Events, private_part, public_part
from tacit.server.checkpoint import configuration_of
from tacit.server.messages import Reply, Request
from tacit.support.public_files import EVALUATION, EVENTS, POSTERIOR, RESULT
from tacit.support.storage import write_text

POLL_S = 0.2


async def serve(
    setup: ServerSetup,
    *,
    watch: Watch | None = None,
    observe: Callable[[Any], None] | None = None,
    ready: Callable[[int], None] | None = None,
    standby: bool = False,
) -> Result | None:
    """Serve until the run ends; return the result, or None if the server was closed earlier."""
    credentials = setup.own.serve.credentials(setup.base)
    credentials.check()
    plan = server_plan(setup.agreed)

    with contextlib.ExitStack() as hold:
        await _take_over(hold, setup, watch, standby=standby)
        file = read_agreed(setup.agreed.path)
        if file.digest != setup.agreed.digest:  # a new version may be in force since
            file = msgspec.structs.replace(file, earlier=setup.agreed.earlier)
            setup, plan = msgspec.structs.replace(setup, agreed=file), server_plan(file)
        complete_adoption(setup.state)
        agreed = version_in_force(setup)
        keep_copy(setup.state, agreed)
        proposal = None
        if agreed.digest != setup.agreed.digest:
            plan = server_plan(agreed)
            proposal = read_proposal(setup, agreed)
        following = msgspec.structs.replace(setup, agreed=agreed)
        return await _serve(following, plan, proposal, credentials, watch, observe, ready)


def version_in_force(setup: ServerSetup) -> Agreed:
    """Return the version of the agreed file that the run in the state directory follows.

    The file itself may be newer.
    """
    roster, file = setup.state / ROSTER, setup.agreed
    digest = roster_digest(roster)
    followed = configuration_of(setup.state / CHECKPOINT) or digest
    if digest is None or followed is None or followed == file.digest:
        return file
    if not has_copy(setup.state, followed):
        load_roster(roster, file.digest)  # raises the error
    found = copied(setup.state, followed, file)
    if found.federation.version == file.federation.version:
        load_roster(roster, file.digest)
    check_successor(found.federation, file.federation)
    return found


def complete_adoption(state: Path) -> None:
    """Finish a change of version that a killed server left incomplete.

    The roster gets the version of the checkpoint, because the checkpoint is written first.
    """
    path, followed = state / ROSTER, configuration_of(state / CHECKPOINT)
    digest = roster_digest(path)
    if None in (followed, digest) or followed == digest or not has_copy(state, str(followed)):
        return
    roster = load_roster(path, str(digest))
    save_roster(path, roster.having(digest=str(followed), approvals={}))


def read_proposal(setup: ServerSetup, following: Agreed) -> Proposal:
    """Read the current agreed file and check it against the version that the run follows."""
    agreed = read_agreed(setup.agreed.path)
    agreed = msgspec.structs.replace(agreed, earlier=setup.agreed.earlier)
    check_successor(following.federation, agreed.federation)
    plan = server_plan(agreed)
    check_same_terms(server_plan(following), plan)
    keep_copy(setup.state, agreed)
    return Proposal(agreed, plan)


async def _take_over(
    hold: contextlib.ExitStack, setup: ServerSetup, watch: Watch | None, *, standby: bool
) -> None:
    """Lock the state directory; with `standby`, wait until another server releases it."""
    waited = False
    while True:
        try:
            hold.enter_context(held(setup.state))
            return
        except InUseError:
            if not standby:
                raise
        if watch is not None and not waited:
            watch({"event": "stand-by", "state": str(setup.state)})
        waited = True
        await asyncio.sleep(POLL_S)


async def _serve(
    setup: ServerSetup,
    plan: Plan,
    proposal: Proposal | None,
    credentials: Any,
    watch: Any,
    observe: Any,
    ready: Any,
) -> Result | None:
    started = time.perf_counter()
    journal = Journal(setup.state / "log.jsonl", watch)
    live = LiveRun(
        setup.state,
        plan.rules,
        first_factors(plan),
        setup.agreed.digest,
        private=plan.privacy is not None,
        accept_returned=setup.own.serve.accept_returned,
        reply_rules=reply_rules(setup, plan),
        terms=None if plan.thresholds is None else setup.agreed.terms(plan),
    )
    if proposal is not None:
        live.propose(proposal)
    public = public_part(setup.state)
    public.mkdir(exist_ok=True)
    _write_config(setup)
    events = Events(public / EVENTS, _start_line(setup, plan), tuple(live.history))

    def both(log: Any) -> None:
        events.write(log)
        if observe is not None:
            observe(log)

    def following() -> ServerSetup:
        adopted = live.adopted
        return setup if adopted is None else msgspec.structs.replace(setup, agreed=adopted.agreed)

    versions = _versions(setup, lambda: following().agreed)
    server = WireServer(
        live,
        credentials,
        setup.own.serve,
        journal,
        prior=_prior(plan),
        observe=both,
        versions=versions,
        verdict=lambda: _verdict(live.adopted.plan if live.adopted else plan, live),
    )
    _close_on_signal(server, setup)
    try:
        how = await server.serve(ready)
        if how != "finished":
            return None
        if live.adopted is not None:
            setup, plan = following(), live.adopted.plan
            _write_config(setup)
        return _result(setup, plan, live, time.perf_counter() - started)
    finally:
        live.close()
        journal.close()


def _versions(setup: ServerSetup, following: Callable[[], Agreed]) -> Versions:
    """Return functions that read new versions; `following` returns the version in force."""
    return Versions(
        read=lambda: read_proposal(setup, following()),
        bounds=lambda proposal: reply_rules(
            msgspec.structs.replace(setup, agreed=proposal.agreed), proposal.plan
        ),
    )


def _write_config(setup: ServerSetup) -> None:
    config = setup.agreed.federation.as_config()
    write_text(public_part(setup.state) / CONFIG, resolved_toml(config))


def reply_rules(setup: ServerSetup, plan: Plan) -> ReplyRules:
    """Return bounds that every reply of an honest party satisfies; they use only public facts."""

    def broken(party: str, exchange: Exchange) -> BrokenBound | None:
        exchange = exchange._replace(settled=plan.settled.get(party))
        return broken_bound(plan.model, plan.family, plan.method, exchange)

    def broken_sum(
        visit: int, terms: Sequence[str], records: float, total: Arrays
    ) -> BrokenBound | None:
        assert isinstance(plan.method, PrivateMethod)
        settled = plan.settled[terms[0]]
        return broken_sum_bound(plan.method, settled, visit, len(terms), records, total)

    return ReplyRules(
        broken_bound=broken,
        broken_sum=broken_sum,
        total_records=setup.agreed.federation.records,
        most_records=setup.own.serve.most_records,
    )


def _prior(plan: Plan) -> Callable[[Request], Reply] | None:
    """Return a function that answers requests to the prior pseudo-party; None if the run has no
    such party.
    """
    if not plan.has_prior_party:
        return None
    computer = SinglePartyComputer(
        prior_agreement(plan.agreement), PRIOR_PARTY, prior_records(), rows=1
    )
    return lambda request: conclude(request, computer.compute([request], {})[request.id])


def _close_on_signal(server: WireServer, setup: ServerSetup) -> None:
    loop = asyncio.get_running_loop()
    back = setup.own.serve.restart_delay_s
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, server.close, "the server is stopped", back)
        except (ValueError, NotImplementedError, RuntimeError):
            return  # not the main thread, or no signals: the caller closes the server


def _start_line(setup: ServerSetup, plan: Plan) -> dict[str, Any]:
    return {
        "event": "start",
        "name": setup.agreed.federation.name,
        "parties": len(plan.parties),
        "dimension": plan.model.dimension,
        "schedule": plan.schedule.kind,
        "rounds": plan.schedule.rounds,
    }


def _layout(plan: Plan) -> Layout | None:
    return plan.model.layout if isinstance(plan.model, Coefficients) else None


def _verdict(plan: Plan, live: LiveRun) -> m.FinalVerdict:
    """Return the verdict that is sent to the parties; it agrees with that of result.json."""
    state = live.state
    assert state is not None
    posterior = posterior_of(plan, state.result, state.public)
    verdict = run_verdict(plan, state, live.history)
    facts = verdict_facts(plan, posterior, verdict, _layout(plan), memory=state.memory)
    learned = facts["learned"]
    return m.FinalVerdict(
        converged=facts["converged"],
        why=_short(facts["why"]),
        cautions=tuple(
            m.Caution(kind=one.kind, text=_short(one.text))
            for one in [*facts["cautions"], *_dependence(plan, live)][: m.MOST_CAUTIONS]
        ),
        learned=learned if learned is not None and np.all(np.isfinite(learned)) else None,
    )


def _short(text: str) -> str:
    """Return the text, cut to the length that the protocol allows."""
    return text if len(text) <= m.MOST_LETTERS else text[: m.MOST_LETTERS - 1] + "…"


def _dependence(plan: Plan, live: LiveRun) -> list[CautionNote]:
    """Return cautions about parties on which the result depends strongly; [] in a private run."""
    state = live.state
    if plan.privacy is not None or state is None:
        return []
    factors = {name: state.factors[name].natural for name in live.parties}
    depends = dependence_cautions(plan.family, state.q, factors, plan.model.names)
    return [CautionNote(kind=one.kind, text=one.text) for one in depends]


def _result(setup: ServerSetup, plan: Plan, live: LiveRun, wall_s: float) -> Result:
    """Return the result, without metrics that only the parties can compute."""
    state = live.state
    assert state is not None
    posterior = posterior_of(plan, state.result, state.public)
    write_posterior(public_part(setup.state) / POSTERIOR, posterior)
    attempts = Attempts()
    sites = attempts.attempt("summary", lambda: site_summary(posterior, plan.seed), otherwise={})
    federation = setup.agreed.federation
    result = compose_result(
        plan,
        posterior,
        state,
        live.history,
        run_verdict(plan, state, live.history),
        _layout(plan),
        name=federation.name,
        engine="live",
        run=live.run,
        configuration=live.digest,
        left_out=state.left_out,
        metrics=NOTHING_MEASURED,
        parties=[
            PartyRow(
                name=name,
                records=live.members[name].data_size or None if name in live.members else None,
            )
            for name in live.parties
        ],
        data=public_facts(federation.data, len(federation.parties)),
        privacy=privacy_facts(plan),
        timing={"train_s": wall_s},
        sites=sites,
        not_evaluated=attempts.failed,
    )
    cautions = [*result.cautions, *_dependence(plan, live)]
    result = msgspec.structs.replace(result, cautions=cautions)
    private = private_part(setup.state)
    private.mkdir(mode=0o700, exist_ok=True)
    write_text(private / EVALUATION, json.dumps(local_result(result), indent=1, allow_nan=False))
    write_result(public_part(setup.state) / RESULT, public_result(result, plan, publish=False))
    return result
