"""The noise secret of a reply: it is stored with the charge and erased when the reply is stored.

If a reply is lost after the charge, it is computed again from the stored secret. The result is
bit-identical and needs no new charge. Three rules prevent two different releases for one charge:

- A reply is sent only after it is stored. A request has only one stored reply, and the transaction
  that stores it erases the secret.
- The secret is used only for the request and content that were charged. Otherwise the same noise
  could be in two different replies and cancel in their difference. The noise key that is derived
  from the secret depends on the content, so other content would get unrelated noise.
- The secret is authenticated with the ledger's key, so that a forged secret is refused.
"""

from __future__ import annotations

import hmac
import secrets

from tacit.errors import DataError
from tacit.privacy.ledger.chain import ADVICE, Entry, noise_code, noise_key
from tacit.privacy.ledger.charges import ChargedRequest, ReleaseRequest
from tacit.privacy.ledger.fingerprint import KEY_BYTES
from tacit.privacy.ledger.rules import check_same_content
from tacit.privacy.ledger.state import Charge, State
from tacit.privacy.ledger.store import NoiseSecret, Store


def stored_secret(store: Store, charge: Charge) -> NoiseSecret | None:
    """Return the noise secret of a charge, after checking it.

    The result is None if the charge has been answered or never had a secret.
    """
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
    """True if the secret is the one that was stored with this charge."""
    if not (isinstance(found.secret, bytes) and isinstance(found.code, bytes)):
        return False
    place = (charge.run, charge.request, charge.attempt)
    code = noise_code(store.key, place, str(found.content), found.secret)
    return len(found.secret) == KEY_BYTES and hmac.compare_digest(code, found.code)


def lost_secret(store: Store, state: State, release: ReleaseRequest) -> NoiseSecret | None:
    """Return the noise secret of a request that was charged but has no stored reply.

    The result is None if a new charge is needed. This is so after a charge by version 0.1 or by
    `Ledger.charge`, which store no secret.
    """
    charges = state.charges.get(release.place)
    if not charges:
        return None
    secret = stored_secret(store, charges[-1])
    if secret is not None:
        check_same_content(charges[-1], release, secret.content)
    return secret


def new_secret(store: Store, release: ReleaseRequest, entry: Entry) -> NoiseSecret:
    """Draw a noise secret for a charge that is about to be written."""
    secret = secrets.token_bytes(KEY_BYTES)
    charge = (entry.run, entry.request, entry.attempt)
    code = noise_code(store.key, charge, release.content, secret)
    return NoiseSecret(entry.seq, release.content, secret, code)


def opened(release: ReleaseRequest, secret: NoiseSecret) -> ChargedRequest:
    """Return the release together with the noise key that is derived from its secret."""
    return ChargedRequest(
        release, noise_key(secret.secret, release.run, release.request, release.content)
    )
