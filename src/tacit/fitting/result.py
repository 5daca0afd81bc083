"""`Fit`: a posterior with its verdict, metrics and privacy statement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from tacit.data.federation import Federation
from tacit.data.frames import like_frame, to_library
from tacit.data.prepare import warn_outside
from tacit.data.records import pooled
from tacit.data.schema.schema import Schema
from tacit.errors import ConfigError
from tacit.fitting.privacy import FitPrivacy
from tacit.models import Records
from tacit.models.capabilities import TopicTables
from tacit.models.glm.normal import LOG_NOISE
from tacit.models.lda.table import TopicTable
from tacit.results.coefficients import Per, as_ratios, coefficients, ratio_name, unit_map
from tacit.results.explained import explained, explained_lines
from tacit.results.new_records import Kind, outcome_unit, predicted, read_new
from tacit.results.posterior import INTERVAL, Posterior
from tacit.results.raw_records import Prepared, prepared_records, schema_of
from tacit.results.saved import write_saved
from tacit.results.shown import Shown, shown_rows, site_rows, site_summary
from tacit.results.summary import Coefficient, Result, Round, declared_columns
from tacit.results.text import (
    as_coefficient,
    interaction_lines,
    plain_table,
    table_lines,
    table_rows,
    texts,
    title,
)
from tacit.support.argument_names import python_names
from tacit.support.notebook import notebook_html
from tacit.support.storage import writing
from tacit.support.type_info import prepare

MOST_NOTES = 6
"""Number of notes about the preparation of records that `print` shows."""
MOST_ROWS = 60
"""Largest number of rows of a table in a notebook."""
SPLITS = {"training": "Training", "held_out": "Held-out"}


@dataclass(frozen=True, repr=False)
class Fit:
    """Result of `tacit.fit`: posterior, convergence verdict, metrics and privacy statement.

    Returned by `tacit.fit`, `tacit.load` and `tacit.serve`; it contains no records of the parties.
    """

    posterior: Posterior
    """The posterior distribution of the parameters."""
    history: list[dict[str, Any]] = field(repr=False)
    """One entry per round: `negative_elbo` (None with privacy), `last_change` (KL), `damping`."""
    schema: Schema | None
    """The public schema of the records, if they have one."""
    _result: Result = field(repr=False)
    _public: Result = field(repr=False)  # the part of it that may be shared
    _outcome: Any = field(default=None, repr=False)

    @property
    def converged(self) -> bool:
        """Whether the posterior is the one implied by model and records; `why` gives the reason."""
        return bool(self._result.converged)

    @property
    def _verdict(self) -> str:
        if self._result.converged is None:
            return "convergence unknown"
        return "converged" if self.converged else "NOT CONVERGED"

    @property
    def why(self) -> str:
        """The reason for `converged`, in one sentence."""
        return self._result.why

    @property
    def diagnostics(self) -> dict[str, Any]:
        """Numbers behind the verdict.

        `print(fit)` explains them. Empty with privacy.

        * `elbo`: the evidence lower bound of each round; None if a round does not evaluate it.
        * If the server controlled the steps: `last_step`, the change of q in one further step, in
          nats; `pareto_k` and `effective_share` of importance weights against the exact posterior;
          `skewness` of each parameter; `corrected_by_weights`, whether the weights corrected the
          moments; `split_along`, the parameter along which the posterior is a mixture of normals.
        * Instead, if the posterior was sampled: `nested_r_hat`, `divergent_share`, `chains` (number
          of chains and draws of each) and the Monte-Carlo errors `mean_error` and `sd_error`.
        * Instead, with more than 1,024 parameters: `independent_sd`, the smallest and median sd of
          a mean-field posterior relative to the reported sds; `sd_noise`, the relative error of the
          reported sds; `residual` of the linear systems from which these are computed;
          `mean_error`, the estimated error of the worst mean in sds, None if it is not known.
        """
        return self._result.diagnostics

    @property
    def learned(self) -> dict[str, float] | None:
        """1 − (posterior sd / prior sd)² of each coefficient; None if the prior has no sd."""
        share = self._result.learned
        return None if share is None else dict(zip(self.posterior.names, share, strict=True))

    @property
    def cautions(self) -> list[str]:
        """Known reasons why these numbers may be unreliable.

        In a private fit, cautions about values outside the declared bounds and about δ contain
        exact numbers of the records, which the guarantee does not cover. Saved fits, reports and
        notebooks do not have them.
        """
        return [one.text for one in self._result.every_caution]

    @property
    def _shared_cautions(self) -> list[str]:
        return [one.text for one in self._public.every_caution]

    @property
    def notes(self) -> list[str]:
        """Notes on the preparation of records: rows dropped, values clipped, scales read from
        records.

        Numbers in the notes are exact and not covered by a guarantee. A saved private fit has no
        notes.
        """
        return self._result.data.notes

    @property
    def clipped(self) -> float | None:
        """The share of units whose contribution was clipped at the end of the run, or None if it is
        unknown.

        It is exact in a simulation with `Privacy.insecure_noise_seed`. With secret noise, an exact
        share would be a further release; a noisy share is known only if `count_clipped` or
        `adaptive` of `PrivateStatistics` released it. Without privacy it is None.
        """
        return None if self._result.clipped is None else self._result.clipped.share

    @property
    def metrics(self) -> dict[str, dict[str, float | None] | None]:
        """Metrics on training records (None with privacy) and on held-out records (None if there
        are none).
        """
        return self._result.metrics

    @property
    def party_metrics(self) -> dict[str, dict[str, float | None]]:
        """Metrics of each party on its held-out records.

        If no records are held out, a fit without privacy has metrics on all records of each party
        instead, and a private fit has none.
        """
        return self._result.party_metrics

    @property
    def privacy(self) -> FitPrivacy:
        """The privacy guarantee of this fit; `str(fit.privacy)` describes it."""
        return FitPrivacy.of(
            self._result.privacy,
            None if self._outcome is None else self._outcome.plan,
            self._result.data.frames,
        )

    def __repr__(self) -> str:
        """Short text without records, which could otherwise be saved in notebooks."""
        privacy = self.privacy
        return (
            f"Fit({self.posterior!r}, {len(self._result.parties)} parties, "
            f"{self._result.rounds} rounds, "
            f"{self._verdict}, "
            f"{'not private' if privacy.guarantee is None else privacy.guarantee}"
            f"{'' if self.clipped is None else f', {self.clipped:.0%} of units clipped'})"
            + "".join(f"\nWarning: {text}" for text in self._shared_cautions)
        )

    def predict(
        self,
        records: Any,
        kind: Kind = "mean",
        *,
        level: float = INTERVAL,
        draws: int = 1000,
        seed: int = 0,
    ) -> Any:
        """Predict the outcome of new records, in the units of the training records.

        Parameters
        ----------
        records
            Raw records without an outcome: a pandas, polars or Arrow data frame, a dictionary of
            columns or the path of a file. For a fit to plain arrays, a dictionary of arrays with
            the columns of the training records; "x" for a regression.
        kind
            "mean": a number per record, a probability for a yes/no outcome, or one row of
            probabilities per record for an outcome with levels. "interval": a frame with the mean
            and a central interval: for a probability if the outcome is yes/no or has levels,
            otherwise for a new outcome. "draws": the mean under each draw of the parameters, shape
            (draws, records). "outcomes": a new outcome under each draw, as in the records: numbers,
            or an array of texts if the levels of the outcome are texts.
        level
            Probability of the intervals.
        draws, seed
            Number and seed of draws, if they are used.

        Returns
        -------
        numpy.ndarray or DataFrame
            The predictions, in the order of the records. Intervals are a frame of the library of
            the records (pandas, with their index, or Arrow), otherwise a polars frame. A record
            that the schema drops for a missing value gets NaN, or None among texts.
        """
        with python_names():
            new = read_new(self.posterior, self._result.data, records)
        if kind == "interval" and new.posterior.model.uncalibrated is not None:
            raise ConfigError(
                f"kind = 'interval'; model {new.posterior.model.kind!r} has no intervals of its "
                "predictions; use kind = 'mean' or 'draws'"
            )
        self._warn_outside(new.prepared)
        found = predicted(new, kind, level=level, draws=draws, seed=seed)
        return like_frame(found, records) if kind == "interval" else found

    def summary(
        self,
        *,
        level: float = INTERVAL,
        exponentiate: bool = False,
        scale: Literal["original", "scaled"] = "original",
        per: Per | None = None,
    ) -> Any:
        """Return a table of coefficients with their intervals; `print(fit)` shows more.

        The column `learned` is 1 − (posterior sd / prior sd)². Variables of a NumPyro model are on
        the scale on which the model samples them.

        Parameters
        ----------
        level
            Probability of the intervals.
        exponentiate
            True: odds ratios or rate ratios instead of coefficients, without the intercept. The
            column `odds_ratio` or `rate_ratio` is the posterior median.
        scale
            "original": per unit of each column; "scaled": per unit of x, as fitted.
        per
            A dict from columns to the difference that an effect refers to: `{"age": 10}` or
            `{"age": "10 years"}`. By default the unit of the schema, or 1.

        Returns
        -------
        DataFrame
            Columns term, unit, mean (or odds_ratio, rate_ratio), sd, low, high, learned and
            prior, a short description of the prior of a regression; `print(fit)` shows it in full.
            A frame of the library of the frames that were fitted (pandas or Arrow), otherwise a
            polars frame.
        """
        import polars as pl

        rows = self._coefficients(level, scale, per)
        heading = "mean"
        if exponentiate:
            name = ratio_name(self.posterior.model)
            if name is None:
                raise ConfigError(
                    f"exponentiate = True; coefficients of model {self.posterior.model.kind!r} are "
                    "not logarithms of ratios: leave exponentiate out"
                )
            rows, heading = as_ratios(rows), name.replace(" ", "_")
        table = pl.DataFrame(
            {
                "term": [row.term for row in rows],
                "unit": pl.Series([row.unit for row in rows], dtype=pl.String),
                heading: [row.mean for row in rows],
                "sd": [row.sd for row in rows],
                "low": [row.low for row in rows],
                "high": [row.high for row in rows],
                "learned": pl.Series([row.learned for row in rows], dtype=pl.Float64),
                "prior": pl.Series([self._short_prior] * len(rows), dtype=pl.String),
            }
        )
        return to_library(table, self._result.data.frames)

    @property
    def _short_prior(self) -> str | None:
        """Describe the prior in a few words; None for models that describe their prior
        themselves.
        """
        prior = self._result.model.prior
        return None if prior is None else prior.split(":")[0]

    def _coefficients(self, level: float, scale: str, per: Per | None) -> list[Coefficient]:
        if scale not in ("original", "scaled"):
            raise ConfigError(f'scale = {scale!r}; choose "original" or "scaled"')
        if not self.posterior.model.listed:
            raise ConfigError(
                f"model {self.posterior.model.kind!r} has no coefficients to list; use "
                "fit.posterior, or fit.topics(vocabulary) for topics"
            )
        original = scale == "original"
        rows = coefficients(
            self.posterior,
            declared_columns(self._result.data) if original else None,
            self._result.data.outcome,
            learned=self._result.learned,
            level=level,
            per=per,
        )
        if rows:
            return rows
        if per:
            raise ConfigError(
                f"per = {per!r}; model {self.posterior.model.kind!r} has no coefficients of "
                "columns: leave per out"
            )
        if level == INTERVAL and original:
            return table_rows(self._result)
        sites = site_summary(self.posterior, self._result.seed, level) if original else {}
        if sites:
            return [as_coefficient(row) for row in site_rows(sites)]
        low, high = self.posterior.interval(level)
        columns = zip(
            self.posterior.names, self.posterior.mean, self.posterior.sd, low, high, strict=True
        )
        return [
            Coefficient(
                term=name, name=name, mean=float(m), sd=float(s), low=float(a), high=float(b)
            )
            for name, m, s, a, b in columns
        ]

    def __str__(self) -> str:
        """Coefficients in the user's units, the guarantee, metrics and warnings."""
        lines = [title(self._public)]
        if self.posterior.model.listed:
            lines += table_lines(table_rows(self._result))
        for one in self._result.tables:
            lines += [one.title, *plain_table(one.columns, one.rows)]
        note = self._result.intervals.warning
        lines += [] if note is None else [f"warning: {note}"]
        rounds, prior = self._result.rounds, self._result.model.prior
        return "\n".join(
            [
                *lines,
                *interaction_lines(self._result),
                *self._metric_lines(),
                *self._note_lines(),
                str(self.privacy),
                *([] if prior is None else [f"Prior: {prior}."]),
                *([f"{rounds} round{'' if rounds == 1 else 's'}."] if rounds else []),
                *self._remarks(),
            ]
        )

    def _rows(self) -> list[Shown]:
        return site_rows(self._result.sites) or shown_rows(self.posterior)

    def _remarks(self) -> list[str]:
        remarks = [f"Warning: {one.text}" for one in self._result.cautions]
        exact = " (exact, not covered by the guarantee)" if self.privacy.private else ""
        remarks += [f"Warning{exact}: {one.text}" for one in self._result.local_cautions]
        if self._result.clipped is not None:
            remarks.append(f"Clipping: {self._result.clipped.statement}")
        remarks += [f"Converged: {self.why}."] if self.converged else []
        return [*remarks, *(f"  {line}." for line in explained_lines(explained(self.diagnostics)))]

    def _note_lines(self) -> list[str]:
        if not self.notes:
            return []
        remark = " (exact, not covered by the guarantee)" if self.privacy.private else ""
        more = len(self.notes) - MOST_NOTES
        rest = [f"{more} more in fit.notes"] if more > 0 else []
        return [f"Data{remark}: {'; '.join([*self.notes[:MOST_NOTES], *rest])}."]

    def _metric_lines(self) -> list[str]:
        lines = []
        remark = " (exact, not covered by the guarantee)" if self.privacy.private else ""
        for split, values in self.metrics.items():
            if values:
                named = {k.replace("_", " "): v for k, v in values.items() if v is not None}
                shown = ", ".join(f"{name} {value:.4f}" for name, value in named.items())
                lines.append(f"{SPLITS[split]}{remark}: {shown}")
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
            raise ConfigError(
                f"model {self.posterior.model.kind!r} has no coefficients to plot; use print(fit)"
            )
        from tacit.results.figures import plot_coefficients

        rows = [row for row in self._rows() if row.name != LOG_NOISE]
        names, mean, sd, low, high, real = zip(*rows, strict=True)
        warning = self._result.intervals.warning
        return plot_coefficients(
            names, mean, sd,
            low=low, high=high, real=real, warning=warning, converged=self.converged,
        )  # fmt: skip

    def _repr_html_(self) -> str:
        """Table and verdict for notebooks, from the shareable part of the fit."""
        public = self._public
        rows = table_rows(public)[:MOST_ROWS]
        return notebook_html(
            title(public),
            head=["", "mean", "sd", "2.5 %", "97.5 %", "per"],
            rows=[(row.term, *texts(row), row.unit or "") for row in rows],
            remarks=[
                *([f"The first {MOST_ROWS} rows."] if len(rows) == MOST_ROWS else []),
                f"{self._verdict.replace('c', 'C', 1)}: {self.why}.",
                public.privacy.statement,
                *([public.intervals.warning] if public.intervals.warning else []),
            ],
            warnings=self._shared_cautions,
            details=explained(public.diagnostics, public.clipped),
        )

    def to_arviz(self, data: Any = None, *, draws: int = 1000, seed: int = 0) -> Any:
        """Draws of the posterior in ArviZ's format; needs `pip install tacit[arviz]`.

        Coefficients of a regression are the variable `beta`, with the units and terms of
        `summary()`. An inferred `noise_sd` is included. `fit.posterior.to_arviz()` has the
        parameters of the scaled columns.

        Parameters
        ----------
        data
            Records with their outcomes, for `arviz.loo` and `arviz.plot_ppc`: a data frame with the
            columns of the fit, prepared records such as ``federation.test``, or a federation,
            whose training records are then used. A fit contains no records itself.
        draws
            Number of draws.
        seed
            Seed of the draws.

        Returns
        -------
        arviz.InferenceData or xarray.DataTree
            As returned by `Posterior.to_arviz`.
        """
        from tacit.results.arviz_groups import OwnUnits, arviz_of

        facts, records = self._result.data, self._records(data)
        found = unit_map(self.posterior.model, declared_columns(facts), facts.outcome)
        units = None
        if found is not None:
            terms = tuple(term.text for term in found.terms)
            units = OwnUnits(terms, found.values, *outcome_unit(self.posterior.model, facts))
        return arviz_of(self.posterior, draws, seed=seed, records=records, units=units)

    def _records(self, data: Any) -> Records | None:
        """Convert records with outcomes to the arrays that the model reads."""
        if isinstance(data, Federation):
            return pooled(data.parties)
        if data is None or isinstance(data, dict):
            return data
        schema = schema_of(self._result.data)
        if schema is None:
            raise ConfigError(
                "this fit was made from plain arrays without a schema; give the records as "
                "a dictionary of arrays with the columns of the training records"
            )
        keep = tuple(self._result.data.keep)
        with python_names():
            found = prepared_records(schema, data, "data", keep=keep, outcome=True)
        self._warn_outside(found, stacklevel=4)
        return found.records

    def _warn_outside(self, prepared: Prepared, *, stacklevel: int = 3) -> None:
        columns = declared_columns(self._result.data) or ()
        warn_outside(prepared.clipped, columns, "values", stacklevel=stacklevel)

    def report(self, path: str | Path) -> Path:
        """Write the report, one HTML file, from the public part of this fit.

        Parameters
        ----------
        path
            The file, ending in .html, or a folder for report.html. Folders are created if
            necessary; an existing file is replaced.

        Returns
        -------
        pathlib.Path
            The file.
        """
        from tacit.report.load import Run
        from tacit.report.write import REPORT, write_page

        rounds = msgspec.convert(self.history, prepare(list[Round]))
        file = Path(path)
        file = file if file.suffix == ".html" else file / REPORT
        with writing(file.parent):
            file.parent.mkdir(parents=True, exist_ok=True)
        run = Run(directory=file.parent, config="", result=self._public, rounds=rounds, refused=[])
        return write_page(run, file)

    def save(self, path: str | Path) -> Path:
        """Write the public part of this fit to a folder that `tacit.load` reads.

        It contains the posterior, the verdict, the privacy statement and the schema. A private fit
        is saved without metrics on held-out records, and without exact numbers that the guarantee
        does not cover, for example of dropped records.

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
