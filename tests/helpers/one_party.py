"""One party that answers alone, as over a network, without a ledger."""

from tacit.party.agent import PartyAgent
from tacit.party.compute import SinglePartyComputer
from tacit.party.store import ProcessStore


class OneParty:
    """Its records, its agent and what it keeps between requests."""

    def __init__(self, agreement, party, records, settled=None):
        store = ProcessStore()
        computer = SinglePartyComputer(agreement, party, records, settled, store.memory_at)
        terms = {} if settled is None else {party: settled}
        self._agent = PartyAgent(agreement, computer, store, terms)

    def answer(self, request):
        return self._agent.answer([request])[0]


def answer_once(agreement, records, request, settled=None):
    """The reply of a party that remembers nothing."""
    return OneParty(agreement, request.party, records, settled).answer(request)
