"""Table and figure of the most probable words per topic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tacit.errors import ConfigError

BAR, INK, SOFT = "#0072B2", "#222222", "#7A7A7A"
COLUMNS = 5
MAX_SHOWN_TOPICS = 50
TOP = 10


@dataclass(frozen=True, kw_only=True)
class TopicTable:
    """A table with the share of all words and the most probable words of each topic. The topic with
    the largest share is first.
    """

    numbers: tuple[int, ...]
    """Index of each topic, which is its row in `components_`."""
    shares: tuple[float, ...]
    words: tuple[tuple[str, ...], ...]
    chances: tuple[tuple[float, ...], ...]
    """Probability E[β] of each of these words in its topic."""

    @classmethod
    def of(cls, concentration: np.ndarray, vocabulary: list[str], top: int) -> TopicTable:
        """Make the table from the Dirichlet parameters of the topics.

        Parameters
        ----------
        concentration
            Dirichlet parameters, one row per topic.
        vocabulary
            The word of each column.
        top
            Number of words per topic.
        """
        if not 1 <= top <= len(vocabulary):
            raise ConfigError(
                f"top = {top}; it must be in 1 … {len(vocabulary)}, the size of the vocabulary"
            )
        sums = concentration.sum(axis=1)
        order = np.argsort(-sums, kind="stable")
        best = np.argsort(-concentration, axis=1, kind="stable")[:, :top]
        return cls(
            numbers=tuple(int(k) for k in order),
            shares=tuple(float(share) for share in (sums / sums.sum())[order]),
            words=tuple(tuple(vocabulary[w] for w in best[k]) for k in order),
            chances=tuple(tuple((concentration[k, best[k]] / sums[k]).tolist()) for k in order),
        )

    def shared(self, other: TopicTable) -> tuple[float, ...]:
        """Compare the most probable words of each topic with those of `other`.

        Return, for each topic of this table, the share of its words that are also words of the most
        similar topic of `other`.

        Parameters
        ----------
        other
            Another table.
        """
        theirs = [frozenset(words) for words in other.words]
        return tuple(
            max(len(own.intersection(words)) for words in theirs) / len(own)
            for own in map(frozenset, self.words)
        )

    def __str__(self) -> str:
        lines = [
            f"{number:>3}  {share:6.1%}  {' '.join(words)}"
            for number, share, words in zip(self.numbers, self.shares, self.words, strict=True)
        ]
        return "\n".join(["  #   share  top words", *lines])

    __repr__ = __str__

    def plot(self, *, title: str = "Topics") -> Any:
        """Draw a Matplotlib figure with one panel per topic, for at most the 50 largest topics.

        Parameters
        ----------
        title
            Title of the figure.
        """
        from matplotlib.figure import Figure

        shown = min(len(self.numbers), MAX_SHOWN_TOPICS)
        columns = min(COLUMNS, shown)
        rows = math.ceil(shown / columns)
        top = len(self.words[0])
        height = 0.55 + 0.155 * top
        figure = Figure(figsize=(2.35 * columns, 0.55 + height * rows), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes in grid.flat[shown:]:
            axes.set_visible(False)
        for place, axes in enumerate(grid.flat[:shown]):
            self._panel(axes, place)
        few = "" if shown == len(self.numbers) else f", the {shown} largest of {len(self.numbers)}"
        figure.suptitle(
            f"{title}: top words and their probabilities{few}", x=0.01, ha="left", color=INK,
            fontsize=12, fontweight="bold", parse_math=False,
        )  # fmt: skip
        return figure

    def _panel(self, axes: Any, place: int) -> None:
        chances, words = self.chances[place], self.words[place]
        at = np.arange(len(words))
        axes.barh(at, chances, height=0.72, color=BAR, alpha=0.30)
        for y, word in zip(at, words, strict=True):
            axes.text(
                0.0, y, f" {word}", va="center", ha="left", fontsize=8, color=INK,
                parse_math=False,  # a word with two dollar signs is not a formula
            )  # fmt: skip
        axes.set_ylim(len(words) - 0.4, -0.6)
        axes.set_yticks([])
        axes.set_xlim(0.0, max(chances) * 1.05)
        axes.set_xticks([max(chances)], [f"{max(chances):.3f}"], fontsize=7, color=SOFT)
        axes.tick_params(length=0)
        axes.set_title(
            f"{self.numbers[place]} · {self.shares[place]:.1%} of all words", loc="left",
            fontsize=8, color=SOFT,
        )  # fmt: skip
        for side in ("top", "right", "bottom"):
            axes.spines[side].set_visible(False)
        axes.spines["left"].set_color(SOFT)


def topic_rows(concentration: np.ndarray, vocabulary: Sequence[str]) -> list[dict[str, Any]]:
    """Return one dictionary per topic, for result.json."""
    table = TopicTable.of(concentration, list(vocabulary), min(TOP, len(vocabulary)))
    columns = (table.numbers, table.shares, table.words, table.chances)
    return [
        {"number": number, "share": share, "words": list(words), "chances": list(chances)}
        for number, share, words, chances in zip(*columns, strict=True)
    ]
