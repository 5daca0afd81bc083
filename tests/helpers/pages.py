"""Examples in the pages of the documentation."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a page in one language, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
