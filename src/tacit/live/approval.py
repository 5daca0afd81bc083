"""Approvals of the agreed file (federation.toml) by a party's operator.

The state directory of the party holds the digests of all approved versions of the file.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from tacit.errors import ConfigError
from tacit.live.config import PartySetup
from tacit.live.versions import copied, has_copy, keep_copy
from tacit.party.store import PartyStore
from tacit.support.storage import write_text

APPROVED = "approved.json"


def approved_versions(state: Path) -> list[str]:
    """Return the digests of all approved versions of the agreed file, the newest last."""
    try:
        body = json.loads((state / APPROVED).read_text(encoding="utf-8"))
        return [*map(str, body.get("before", [])), str(body["configuration"])]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def approved_digest(setup: PartySetup) -> str | None:
    """Return the digest of the version that was approved last; None if no version was approved."""
    versions = approved_versions(setup.state)
    return versions[-1] if versions else None


def write_approval(setup: PartySetup, *, before: list[str] | None = None) -> Path:
    """Record the approval of the agreed file in `setup`, and return the path of the record.

    `before` holds the digests of versions that were approved earlier for the same run.
    """
    keep_copy(setup.state, setup.agreed)
    path = setup.state / APPROVED
    body = {
        "configuration": setup.agreed.digest,
        "name": setup.agreed.federation.name,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if before:
        body |= {"version": setup.agreed.federation.version, "before": before}
    write_text(path, json.dumps(body, indent=1) + "\n")
    return path


def require_approval(setup: PartySetup) -> None:
    """Raise a ConfigError unless the operator approved the agreed file as it is now."""
    found = approved_digest(setup)
    if found is None:
        raise ConfigError(
            f"{setup.agreed.path} is not approved; read and approve it: tacit approve party.toml"
        )
    if found != setup.agreed.digest:
        raise ConfigError(
            f"{setup.agreed.path} has changed since it was approved (digest {found[:12]}…, now "
            f"{setup.agreed.digest[:12]}…); read and approve it again: tacit approve party.toml"
        )


def followed_version(setup: PartySetup) -> PartySetup:
    """Return `setup` with the version of the agreed file that this party's run follows.

    The file may contain a newer version, because an approved version that adds parties does not
    take effect at once.
    """
    digest = PartyStore.digest_in(setup.state / "party")
    if digest in (None, setup.agreed.digest) or digest not in approved_versions(setup.state):
        return setup
    return version_of(setup, digest)


def version_of(setup: PartySetup, digest: str) -> PartySetup:
    """Return `setup` with the approved version of the agreed file whose digest is `digest`."""
    return msgspec.structs.replace(setup, agreed=copied(setup.state, digest, setup.agreed))


def unfinished_version(setup: PartySetup) -> PartySetup | None:
    """Return `setup` with the version of the agreed file that this party's unfinished run follows.

    The result is None if there is no unfinished run, or no copy of the version that it follows.
    """
    digest = PartyStore.unfinished(setup.state / "party")
    if digest is None or digest not in approved_versions(setup.state):
        return None
    if digest != setup.agreed.digest and not has_copy(setup.state, digest):
        return None  # approved by a version of tacit that kept no copies
    return version_of(setup, digest)
