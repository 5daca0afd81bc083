"""The test vectors of docs/protocol.md, computed again."""

from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tacit.live.secure import shamir
from tacit.live.secure.agreed import sum_id
from tacit.live.secure.masks import bound, mask, pair_seed
from tacit.live.secure.messages import Offer, Roster, Survivors
from tacit.server.messages import Request

PAGE = Path(__file__).parents[3] / "docs" / "protocol.md"


def offer(number: int) -> Offer:
    key = X25519PrivateKey.from_private_bytes(bytes([number]) * 32).public_key()
    return Offer(
        party=f"p{number}", public_key=b"key", sharing=key.public_bytes_raw(),
        masking=(key.public_bytes_raw(),), seeds=(bytes([number]) * 32,), signature=b"sig",
    )  # fmt: skip


def vectors() -> dict[str, str]:
    roster = Roster(offers=(offer(1), offer(2)))
    told = Survivors(slot=3, request="r", names=("p1", "p2"))
    private = X25519PrivateKey.from_private_bytes(bytes([1]) * 32)
    seed = pair_seed(private, roster.offers[1].masking[0], roster.digest, ("p1", "p2"), 3, "r")
    request = Request(
        id="r0", party="p1", visit=2, version=0, q=None, factor=None, damping=1.0, initial=False,
        stage="score", public={"point": np.array([1.0, -0.5]), "reach": np.array([2.0])},
    )  # fmt: skip
    words = mask(seed, 2)
    numbers = iter([7, 11])
    shares = shamir.split(5, (1, 2, 3), 3, lambda _: next(numbers))
    return {
        "bound(“a”, 1)": bound("a", 1).hex(),
        "roster": roster.digest.hex(),
        "survivors": told.signed(roster.digest).hex(),
        "pair seed": seed.hex(),
        "mask": ", ".join(f"{int(word):016x}" for word in words),
        "shares": ", ".join(str(share) for share in shares),
        "sum": sum_id(request),
    }


def test_the_vectors_of_the_specification():
    section = PAGE.read_text(encoding="utf-8").split("### Test vectors of secure sums")[1]
    rows = [row.split(" | ") for row in section.splitlines() if row.startswith("| ")]
    found = {row[0].removeprefix("| "): row[1].removesuffix(" |").strip("`") for row in rows}
    for name, value in vectors().items():
        assert found[name] == value


def test_both_ends_derive_the_same_pair_seed():
    roster = Roster(offers=(offer(1), offer(2)))
    keys = [X25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in (1, 2)]
    publics = [one.masking[0] for one in roster.offers]
    one = pair_seed(keys[0], publics[1], roster.digest, ("p1", "p2"), 0, "r")
    two = pair_seed(keys[1], publics[0], roster.digest, ("p2", "p1"), 0, "r")
    assert one == two
    assert one != pair_seed(keys[0], publics[1], roster.digest, ("p1", "p2"), 1, "r")
    assert one != pair_seed(keys[0], publics[1], roster.digest, ("p1", "p2"), 0, "other")
    assert one != pair_seed(keys[0], publics[1], bytes(32), ("p1", "p2"), 0, "r")
