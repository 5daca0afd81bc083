"""Stored results for interrupted studies: one JSON file each, named by the digest of its inputs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tacit.support.storage import write_text

Result = dict[str, Any]


def kept(folder: Path, asked: dict[str, Any], make: Callable[[], Result]) -> Result:
    """The result of `make`, or the stored result of an earlier call with the same inputs.

    Files are written atomically. A file that does not parse, or whose content does not match its
    name, is computed again.
    """
    body = json.dumps(asked, sort_keys=True, ensure_ascii=False)
    path = folder / f"{hashlib.sha256(body.encode()).hexdigest()[:16]}.json"
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        if held["asked"] == json.loads(body):
            return held["found"]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    found = make()
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"asked": asked, "found": found}, indent=1, ensure_ascii=False)
    write_text(path, text)
    return json.loads(text)["found"]
