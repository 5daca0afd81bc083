"""Results that a second start takes up: a JSON file each, named by the digest of what was asked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tacit.support.storage import write_text

Result = dict[str, Any]


def kept(folder: Path, asked: dict[str, Any], make: Callable[[], Result]) -> Result:
    """The result of `make`, or that of an earlier call that asked for the same.

    A file is written whole or not at all; one that does not parse, or that holds something else
    than its name says, is no result and is made again.
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
