"""Approvals of a party's operator: digests of the agreed file, in the party's state directory."""

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
    """Return the digests of the approved versions of one federation, the newest last."""
    try:
        body = json.loads((state / APPROVED).read_text(encoding="utf-8"))
        return [*map(str, body.get("before", [])), str(body["configuration"])]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def approved_digest(setup: PartySetup) -> str | None:
    """Return the digest that was approved last, or None."""
    versions = approved_versions(setup.state)
    return versions[-1] if versions else None


def write_approval(setup: PartySetup, *, before: list[str] | None = None) -> Path:
    """Record the approval of the agreed file; `before` holds the digests of earlier versions."""
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
    """Refuse to take part unless the agreed file was approved."""
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
    """Return the files with the version that the run in the state directory follows.

    This is the agreed file itself, unless the file is an approved newer version that is not in
    force yet.
    """
    digest = PartyStore.digest_in(setup.state / "party")
    if digest in (None, setup.agreed.digest) or digest not in approved_versions(setup.state):
        return setup
    return version_of(setup, digest)


def version_of(setup: PartySetup, digest: str) -> PartySetup:
    """Return the files with the approved version of this digest."""
    return msgspec.structs.replace(setup, agreed=copied(setup.state, digest, setup.agreed))


def unfinished_version(setup: PartySetup) -> PartySetup | None:
    """Return the files with the version of an unfinished run of this party, or None if there is
    none.
    """
    digest = PartyStore.unfinished(setup.state / "party")
    if digest is None or digest not in approved_versions(setup.state):
        return None
    if digest != setup.agreed.digest and not has_copy(setup.state, digest):
        return None  # approved by a version of tacit that kept no copies
    return version_of(setup, digest)
