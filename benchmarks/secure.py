"""CPU-seconds of secure sums per party and round, and of the server.

python -m benchmarks.secure [PARTIES] [NUMBERS]
"""

import sys
import time

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec

from tacit.live.secure import party, server
from tacit.live.secure.signing import fingerprint, public_bytes
from tacit.live.secure.terms import Terms
from tacit.privacy.secure_sums import default_thresholds


class Clock:
    def __init__(self) -> None:
        self.spent: dict[str, float] = {}

    def __call__(self, what: str, function, *arguments):
        before = time.process_time()
        result = function(*arguments)
        self.spent[what] = self.spent.get(what, 0.0) + time.process_time() - before
        return result


def measure(count: int, length: int, slots: int = 4, drops: int = 1) -> dict[str, float]:
    """CPU-seconds: per party for the set-up and for one round, and of the server for one round."""
    clock = Clock()
    names = [f"p{number:03d}" for number in range(count)]
    keys = {name: ec.generate_private_key(ec.SECP256R1()) for name in names}
    threshold, quorum = default_thresholds(count)
    terms = Terms(
        run="r", configuration="c", threshold=threshold, quorum=quorum, colluding=1, slots=slots,
        parties={name: fingerprint(public_bytes(key.public_key())) for name, key in keys.items()},
    )  # fmt: skip
    state, parties = server.ServerState(terms), {}
    for name in names:
        parties[name], offer = clock("set-up", party.offer_keys, terms, name, keys[name])
        state = server.take_offer(state, offer)
    state = server.make_roster(state)
    for name in names:
        parties[name], parcels = clock(
            "set-up", party.deal_shares, parties[name], terms, state.roster, keys[name]
        )
        state = server.take_parcels(state, name, parcels)
    for name in names:
        parties[name] = clock(
            "set-up", party.accept_shares, parties[name], terms, server.parcels_for(state, name)
        )
    rng = np.random.default_rng(0)
    state = server.open_slot(state, 0, "r0", length)
    vectors = {name: rng.integers(-(2**40), 2**40, length) for name in names}
    for number, name in enumerate(names):
        parties[name], masked = clock(
            "round", party.mask_vector, parties[name], 0, "r0", vectors[name]
        )
        if number >= min(drops, count - quorum):
            state = server.take_masked(state, masked)
    state, told = server.close_slot(state, 0)
    for name in told.names:
        parties[name], consent = clock(
            "round", party.sign_survivors, parties[name], terms, told, keys[name]
        )
        state = clock("server", server.take_consent, state, consent)
    asked = server.unmask_request(state, 0)
    for name in told.names:
        parties[name], shares = clock("round", party.reveal_shares, parties[name], terms, asked)
        state = clock("server", server.take_shares, state, shares)
    total = clock("server", server.unmasked_sum, state, 0)
    assert np.array_equal(total, sum(vectors[name] for name in told.names))
    return {
        "set-up per party": clock.spent["set-up"] / count,
        "round per party": clock.spent["round"] / count,
        "server per round": clock.spent["server"],
    }


def main() -> None:
    given = [int(each) for each in sys.argv[1:]]
    sizes = [tuple(given)] if len(given) == 2 else [(10, 100), (50, 100)]
    for count, length in sizes:
        found = measure(count, length)
        shown = ", ".join(f"{what} {value:.4f} s" for what, value in found.items())
        print(f"{count} parties, {length:,} numbers, one dropout: {shown}")


if __name__ == "__main__":
    main()
