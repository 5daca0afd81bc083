"""Examples in the pages of the documentation."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a page in one language, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def left_out(page: str, words: str) -> list[str]:
    """Blocks under a comment with these words, which say why they are not run."""
    text = (ROOT / page).read_text(encoding="utf-8")
    pattern = rf"<!-- {words}[^\n]*-->\n```python\n(.*?)^```"
    return re.findall(pattern, text, re.DOTALL | re.MULTILINE)


def every_page() -> list[str]:
    """README, CONTRIBUTING, SECURITY and all pages under docs/."""
    top = ["README.md", "CONTRIBUTING.md", "SECURITY.md"]
    return top + sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md"))


def python_pages() -> list[str]:
    """The pages under docs/ with examples in Python."""
    pages = [page for page in every_page() if page.startswith("docs/")]
    return [page.removeprefix("docs/") for page in pages if blocks(page, "python")]


def shell_lines(page: str) -> list[str]:
    """Lines that start with `tacit` in blocks without a language or in `sh`."""
    found, fence = [], None
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            fence = line if fence is None else None
        elif fence in ("```", "```sh") and line.startswith("tacit "):
            found.append(line)
    return found
