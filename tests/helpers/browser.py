"""Pages in Debian's Chromium, without a driver: a page measures itself and its DOM is dumped."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

BROWSER = shutil.which("chromium")
NO_BROWSER = "chromium is not installed: apt-get install chromium"
ROOT = Path(__file__).parents[2]
AXE = Path(os.environ.get("TACIT_AXE", ROOT / ".cache/axe/node_modules/axe-core/axe.min.js"))
NO_AXE = f"{AXE} is missing: npm install --prefix .cache/axe axe-core"
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--allow-file-access-from-files", "--hide-scrollbars",
)  # fmt: skip
MEASURE = """
<script>
const frame = document.getElementById('page');
const state = { errors: [] };
async function look() {
  const inside = frame.contentDocument, view = frame.contentWindow;
  const root = inside.documentElement;
  state.beyond = root.scrollWidth - view.innerWidth;
  state.cut = [...inside.querySelectorAll('.wide')].map(w => w.scrollWidth - w.clientWidth);
  state.dark = view.matchMedia('(prefers-color-scheme: dark)').matches;
  state.paper = view.getComputedStyle(inside.body).backgroundColor;
  const label = inside.querySelector('figure svg text');
  if (label) {
    state.inks = [...inside.querySelectorAll('figure svg text')]
      .map(t => view.getComputedStyle(t).fill);
    const box = label.closest('svg').getBoundingClientRect();
    const scale = box.width / label.closest('svg').viewBox.baseVal.width;
    state.letters = scale * Math.min(...[...inside.querySelectorAll('figure svg text')]
      .map(t => parseFloat(view.getComputedStyle(t).fontSize)));
  }
  if (view.axe) {
    await new Promise(done => setTimeout(done, 500));
    const found = await view.axe.run(inside);
    state.faults = found.violations.map(v =>
      ({id: v.id, impact: v.impact, nodes: v.nodes.slice(0, 3).map(n => n.html.slice(0, 120))}));
  }
  return state;
}
const say = (value) => {
  document.getElementById('found').textContent = `found ${JSON.stringify(value)} end`;
};
frame.onload = () => look().then(say).catch(error => say({error: `${error}`}));
</script>"""


def look(page: Path, folder: Path, *, width: int, dark: bool, axe: bool) -> dict[str, Any]:
    """What a browser measures of a page: overflow, colours, size of letters, axe's faults.

    The page is copied to `folder`, which for a page with files beside it is its own.
    """
    assert BROWSER is not None
    html = page.read_text(encoding="utf-8")
    if axe:  # the page itself allows no script
        html = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html)
        script = f"<script>{AXE.read_text(encoding='utf-8')}</script></head>"
        html = html.replace("</head>", script, 1)
    (folder / "_page.html").write_text(html, encoding="utf-8")
    outer = (
        f'<iframe id="page" src="_page.html" width="{width}" height="900" style="border:0">'
        f'</iframe><pre id="found"></pre>{MEASURE}'
    )
    (folder / "_outer.html").write_text(outer, encoding="utf-8")
    command = [BROWSER, *OPTIONS, f"--user-data-dir={folder / 'profile'}"]
    command += [f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
    command += ["--virtual-time-budget=20000", "--dump-dom", str(folder / "_outer.html")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    match = re.search(r'<pre id="found">found (.*) end</pre>', done.stdout, flags=re.DOTALL)
    assert match, done.stdout[-500:]
    return json.loads(unescape(match[1]))


def as_pdf(page: Path, folder: Path) -> bytes:
    """The page as printed."""
    assert BROWSER is not None
    target = folder / "page.pdf"
    command = [BROWSER, *OPTIONS, f"--user-data-dir={folder / 'profile'}", "--no-pdf-header-footer"]
    command += [f"--print-to-pdf={target}", str(page)]
    subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    return target.read_bytes()
