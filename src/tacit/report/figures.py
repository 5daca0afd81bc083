"""Figures of a report as inline SVG whose colours follow the page's colour scheme."""

from __future__ import annotations

import io
import re
import warnings
from typing import Any

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.figure import Figure

from tacit.results.figures import BLUE, FAINT, GREY, INK, VERMILION

COLOURS = {
    INK: "var(--ink)",
    BLUE: "var(--figure-blue)",
    VERMILION: "var(--figure-vermilion)",
    GREY: "var(--figure-grey)",
    FAINT: "var(--figure-faint)",
    "#FFFFFF": "var(--paper)",
}
"""Maps each colour of `tacit.results.figures` to a variable of style.css."""
WIDTH = 4.7
"""Width in inches; on the screen of a phone, labels then have about their normal size."""


def as_svg(figure: Figure, name: str, caption: str) -> Markup:
    """Return the figure as an SVG element for the page.

    Parameters
    ----------
    figure
        A figure of `tacit.results.figures`.
    name
        Prefix of the ids in the SVG, different for every figure of a page.
    caption
        Text for screen readers.
    """
    figure.set_size_inches(WIDTH, figure.get_size_inches()[1])
    figure.patch.set_alpha(0.0)
    for axes in figure.axes:
        axes.patch.set_alpha(0.0)
    target = io.StringIO()
    settings: dict[Any, str] = {"svg.fonttype": "none", "svg.hashsalt": name}
    with mpl.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure.savefig(
            target, format="svg", metadata={"Date": None, "Creator": None},
            bbox_inches="tight", pad_inches=0.03,
        )  # fmt: skip
    text = target.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(xlink:href|href)="#', rf'\1="#{name}-', text)
    text = text.replace("url(#", f"url(#{name}-")
    for colour, variable in COLOURS.items():
        text = re.sub(re.escape(colour), variable, text, flags=re.IGNORECASE)
    label = Markup.escape(caption)
    # Width and height come from the style sheet; the view box keeps the proportions.
    head = re.sub(r'\s(width|height|xmlns:xlink|xmlns)="[^"]*"', "", text[: text.index(">")])
    head = head.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
    body = text[text.index(">") :].replace("xlink:href", "href")
    return Markup(head + body)
