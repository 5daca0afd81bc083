"""`tacit schema`: JSON Schemas of the TOML files, for editors."""

from __future__ import annotations

import json
from typing import Any

from tacit.errors import ConfigError
from tacit.support.json_schema import json_schema
from tacit.support.validation import choose_from

FILES: tuple[str, ...] = ("study", "federation", "server", "party", "sweep")


def file_schema(kind: str) -> dict[str, Any]:
    """Return the JSON Schema of one kind of file."""
    if kind not in FILES:
        raise ConfigError(f"--file {kind}; {choose_from(kind, FILES)}")
    from tacit.run.config import Config
    from tacit.run.study_file import raised_schema

    if kind == "study":
        return raised_schema(json_schema(Config))
    if kind == "sweep":
        from tacit.run.sweep.spec import Sweep

        return json_schema(Sweep)
    from tacit.live.config import Federation, PartyFile, ServerFile

    if kind == "federation":
        return raised_schema(json_schema(Federation))
    return json_schema(ServerFile if kind == "server" else PartyFile)


def schema_command(kind: str) -> None:
    """Implement `tacit schema`."""
    print(json.dumps(file_schema(kind), indent=2, ensure_ascii=False))
