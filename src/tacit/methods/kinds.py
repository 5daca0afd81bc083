"""The local methods by their name in a configuration."""

from __future__ import annotations

from tacit.methods.base import LocalMethod
from tacit.methods.settings import METHOD_SETTINGS

METHODS: dict[str, type[LocalMethod]] = {
    kind: METHOD_SETTINGS[kind].method() for kind in METHOD_SETTINGS if kind != "auto"
}
