"""`Fit`: a posterior with its verdict, metrics and privacy statement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tacit.data.schema.schema import Schema
from tacit.errors import ConfigError
from tacit.fitting.privacy import FitPrivacy
from tacit.models import Records
from tacit.models.capabilities import TopicTables
from tacit.models.lda.table import TopicTable
from tacit.results.evaluation import _predict
from tacit.results.posterior import Posterior
from tacit.results.saved import write_saved
from tacit.results.shown import Shown, shown_rows, site_rows
from tacit.results.summary import Result, Round
from tacit.support.storage import writing
from tacit.support.type_info import prepare


@dataclass(frozen=True, repr=False)
class Fit:
    """Result of `tacit.fit`: posterior, convergence verdict, metrics and privacy statement.

    `tacit.fit`, `tacit.load` and `tacit.serve` make one; it holds no records of the parties.
    """

    posterior: Posterior
    """The posterior distribution of the parameters."""
    history: list[dict[str, Any]] = field(repr=False)
    """One entry per round: `negative_elbo` (None with privacy), `last_change` (KL), `damping`."""
    schema: Schema | None
    """The public schema of the records, where they came with one."""
    _result: Result = field(repr=False)
    _public: Result = field(repr=False)  # the part of it that may be shared
    _outcome: Any = field(default=None, repr=False)

    @property
    def converged(self) -> bool:
        """Whether the posterior is the one that model and records imply; `why` gives the reason."""
        return bool(self._result.converged)

    @property
    def why(self) -> str:
        """The reason for `converged`, in one sentence."""
        return self._result.why

    @property
    def diagnostics(self) -> dict[str, Any]:
        """Numbers behind the verdict.

        `elbo` is the evidence lower bound by round, None where a round does not evaluate it. Where
        the server controlled the steps there are `pareto_k` and `effective_share` of importance
        weights against the exact posterior, `skewness` of each parameter, whether the weights
        corrected the moments (`corrected_by_weights`), and the parameter along which the posterior
        is a mixture of normals (`split_along`). Empty with privacy.
        """
        return self._result.diagnostics

    @property
    def learned(self) -> dict[str, float] | None:
        """1 − (posterior sd / prior sd)² of each coefficient; None where the prior has no sd."""
        share = self._result.learned
        return None if share is None else dict(zip(self.posterior.names, share, strict=True))

    @property
    def cautions(self) -> list[str]:
        """Known reasons not to rely on these numbers as they stand."""
        return [one.text for one in self._result.cautions]

    @property
    def clipped(self) -> float | None:
        """The share of units whose contribution was clipped at the end of a simulation.

        Measured only with `Privacy.insecure_noise_seed`: with secret noise this exact share would
        be a further release. None then, and without privacy.
        """
        return None if self._result.clipped is None else self._result.clipped.share

    @property
    def metrics(self) -> dict[str, dict[str, float | None] | None]:
        """Metrics on the training records (without privacy) and on held-out records."""
        return self._result.metrics

    @property
    def privacy(self) -> FitPrivacy:
        """What this fit guarantees; `str(fit.privacy)` says it in words."""
        return FitPrivacy.of(
            self._result.privacy, None if self._outcome is None else self._outcome.plan
        )

    def __repr__(self) -> str:
        """Short text without records, which would end up in saved notebooks."""
        privacy = self.privacy
        return (
            f"Fit({self.posterior!r}, {len(self._result.parties)} parties, "
            f"{self._result.rounds} rounds, "
            f"{'converged' if self.converged else 'NOT CONVERGED'}, "
            f"{'not private' if privacy.guarantee is None else privacy.guarantee}"
            f"{'' if self.clipped is None else f', {self.clipped:.0%} of units clipped'})"
            + "".join(f"\nWarning: {text}" for text in self.cautions)
        )

    def predict(self, records: Records) -> np.ndarray:
        """Predict the outcome of new records.

        Parameters
        ----------
        records
            A dictionary of arrays with the columns of the training records; "x" for a regression.

        Returns
        -------
        numpy.ndarray
            E[y | x] under the posterior: a number per record, a probability for a yes/no outcome,
            or one row of probabilities per record for an outcome with levels.
        """
        return _predict(self.posterior, records).mean

    def summary(self) -> str:
        """Coefficients with 95 % intervals, metrics, warnings and the privacy statement, as text.

        A NumPyro model's sites are on their natural scale.
        """
        lines = []
        if self.posterior.model.listed:
            lines = self._table()
        prior = self._result.model.prior
        stated = [] if prior is None else [f"Prior: {prior}."]
        remarks = [*self._remarks(), *stated, str(self.privacy)]
        return "\n".join([*lines, *self._metric_lines(), *remarks])

    def _rows(self) -> list[Shown]:
        return site_rows(self._result.sites) or shown_rows(self.posterior)

    def _table(self) -> list[str]:
        rows = self._rows()
        width = max(len(row.name) for row in rows)
        texts = [row.texts for row in rows]
        digits = max(8, *(len(text) for row in texts for text in row))
        lines = [
            f"{row.name:<{width}}  {mean:>{digits}}  [{low:>{digits}}, {high:>{digits}}]"
            for row, (mean, _, low, high) in zip(rows, texts, strict=True)
        ]
        note = self._result.intervals.warning
        return lines if note is None else [*lines, f"warning: {note}"]

    def _remarks(self) -> list[str]:
        lines = [f"Warning: {text}" for text in self.cautions]
        if self._result.clipped is not None:
            lines.append(f"Clipping: {self._result.clipped.statement}")
        return [*lines, f"Converged: {self.why}."] if self.converged else lines

    def _metric_lines(self) -> list[str]:
        lines = []
        remark = " (exact, not covered by the guarantee)" if self.privacy.private else ""
        for split, values in self.metrics.items():
            if values:
                shown = ", ".join(f"{k} {v:.4f}" for k, v in values.items() if v is not None)
                lines.append(f"{split}{remark}: {shown}")
        return lines

    def topics(self, vocabulary: Sequence[str], *, top: int = 10) -> TopicTable:
        """The most probable words of each topic of a topic model; `.plot()` draws them.

        Parameters
        ----------
        vocabulary
            The word of each column of the documents' counts.
        top
            Number of words per topic.
        """
        model = self.posterior.model
        if not isinstance(model, TopicTables):
            raise ConfigError(f"model {model.kind!r} has no topics; see summary()")
        return model.topic_table(self.posterior.natural, vocabulary, top)

    def plot(self) -> Any:
        """A matplotlib figure of the coefficients with 95 % intervals."""
        if not self.posterior.model.listed:
            raise ConfigError(f"model {self.posterior.model.kind!r} has no coefficients to plot")
        from tacit.results.figures import plot_coefficients

        names, mean, sd, low, high, real = zip(*self._rows(), strict=True)
        warning = self._result.intervals.warning
        return plot_coefficients(
            names, mean, sd,
            low=low, high=high, real=real, warning=warning, converged=self.converged,
        )  # fmt: skip

    def report(self, path: str | Path) -> Path:
        """Write an HTML report with figures, from the public part of this fit.

        Parameters
        ----------
        path
            A folder, which is made if need be. report.html and figures/ in it are replaced.

        Returns
        -------
        pathlib.Path
            The page.
        """
        from tacit.report.load import Run
        from tacit.report.write import write_page

        rounds = msgspec.convert(self.history, prepare(list[Round]))
        folder = Path(path)
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        run = Run(directory=folder, config="", result=self._public, rounds=rounds, refused=[])
        return write_page(run, folder)

    def save(self, path: str | Path) -> Path:
        """Write the public part of this fit to a folder that `tacit.load` reads.

        It contains the posterior, the verdict, the privacy statement and the schema. In a private
        fit, metrics on held-out records and numbers of records that the guarantee does not cover
        are left out.

        Parameters
        ----------
        path
            A folder that does not exist yet, or is empty.

        Returns
        -------
        pathlib.Path
            The folder.
        """
        folder = Path(path)
        write_saved(folder, self._public, self.posterior, self.history)
        return folder
