"""The noise secret of an answer: stored with its charge, erased with its reply.

An answer that is lost between the two is drawn again from the stored secret, bit by bit the same,
so that the charge pays for it still. What keeps this from becoming two releases for one charge:

- A reply leaves only after it is stored, a request has one stored reply, and the transaction that
  stores it erases the secret.
- The secret is given out for the request and content that were charged, and for nothing else: the
  same noise under two questions would cancel in the difference of their answers. Should it ever
  be used under another content all the same, the key that is derived from it is unrelated.
- It is authenticated with the ledger's key: a secret that somebody else put there is refused.
"""

from __future__ import annotations

import hmac
import secrets

from tacit.errors import DataError
from tacit.privacy.ledger.chain import ADVICE, Entry, noise_code, noise_key
from tacit.privacy.ledger.charges import Ask, Opened
from tacit.privacy.ledger.fingerprint import KEY_BYTES
from tacit.privacy.ledger.rules import check_same_content
from tacit.privacy.ledger.state import Charge, State
from tacit.privacy.ledger.store import NoiseSecret, Store


def stored_secret(store: Store, charge: Charge) -> NoiseSecret | None:
    """What a charge's noise is drawn from, checked; None if it is answered or never had one."""
    found = store.noise_secret(charge.seq)
    if found is None:
        return None
    if not is_sound(store, charge, found):
        raise DataError(
            f"the noise secret of request {charge.request} of run {charge.run} was changed;"
            f" {ADVICE}"
        )
    return found


def is_sound(store: Store, charge: Charge, found: NoiseSecret) -> bool:
    """Whether the secret is what was stored with this charge."""
    if not (isinstance(found.secret, bytes) and isinstance(found.code, bytes)):
        return False
    place = (charge.run, charge.request, charge.attempt)
    code = noise_code(store.key, place, str(found.content), found.secret)
    return len(found.secret) == KEY_BYTES and hmac.compare_digest(code, found.code)


def lost_secret(store: Store, state: State, ask: Ask) -> NoiseSecret | None:
    """The secret of an answer that was charged and lost; None: it has to be charged.

    Version 0.1 kept none, and neither does `Ledger.charge`: nothing is known of such noise, and
    another draw has its price.
    """
    charges = state.charges.get(ask.place)
    if not charges:
        return None
    secret = stored_secret(store, charges[-1])
    if secret is not None:
        check_same_content(charges[-1], ask, secret.content)
    return secret


def new_secret(store: Store, ask: Ask, entry: Entry) -> NoiseSecret:
    """A secret for a charge that is being written."""
    secret = secrets.token_bytes(KEY_BYTES)
    charge = (entry.run, entry.request, entry.attempt)
    code = noise_code(store.key, charge, ask.content, secret)
    return NoiseSecret(entry.seq, ask.content, secret, code)


def opened(ask: Ask, secret: NoiseSecret) -> Opened:
    """The ask with the key that its noise is drawn with."""
    return Opened(ask, noise_key(secret.secret, ask.run, ask.request, ask.content))
