"""A report on a narrow screen, measured by a browser."""

import re
import shutil
import subprocess

import pytest

from tacit.report.load import load_run
from tacit.report.page import render

BROWSER = shutil.which("chromium")
MEASURE = """<script>
const wide = [...document.querySelectorAll('.wide')];
document.body.textContent = 'beyond: ' + Math.max(...wide.map(w => w.scrollWidth - w.clientWidth));
</script></body>"""
OUTER = """<iframe id="page" src="page.html" width="390" height="800" style="border:0"></iframe>
<pre id="found"></pre><script>
page.onload = () => { found.textContent = page.contentDocument.body.textContent; };
</script>"""


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_no_column_is_cut_off_at_390_pixels(make_run, result, tmp_path):
    names = ["intercept", "diabetes_medication=insulin", "antihypertensives"]
    result["posterior"] |= {
        "names": names,
        "mean": [-1.7509, -0.0090, 6.9e-6],
        "sd": [0.0211, 0.0122, 3.6e-6],
    }
    result["true_values"] = {"intercept": -1.75, "diabetes_medication=insulin": -0.0123}
    page = render(load_run(make_run(result)), [])
    (tmp_path / "page.html").write_text(page.replace("</body>", MEASURE), encoding="utf-8")
    (tmp_path / "outer.html").write_text(OUTER, encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    command = [BROWSER, *options, profile, "--virtual-time-budget=3000", "--dump-dom"]
    done = subprocess.run(
        [*command, str(tmp_path / "outer.html")],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert re.search(r"beyond: 0\s*<", done.stdout), done.stdout[-400:]
