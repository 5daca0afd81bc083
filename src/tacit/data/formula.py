"""Formulas such as "died ~ age + C(sex)": an outcome and the columns that explain it.

A formula names columns. Their bounds and levels come from the public schema, never from the
formula. The following terms are supported:

* columns, joined by `+`; names in backticks; `.` for all other declared columns;
* `C(column)` for a category, and `C(column, "level")` for a category with this reference level;
* interactions `a:b` and `a*b`;
* transformations of the columns of one record, such as `log(a)` and `I(a**2)`.

`died["yes"]` as the outcome means that y = 1 for the level "yes". For other syntax of R or patsy,
the error names the unsupported part.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tacit.data.expressions import parse_expression
from tacit.errors import ConfigError

EXAMPLE = '"died ~ age + C(sex)"'
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<name>[^\W\d]\w*)
      | `(?P<quoted>[^`]*)`
      | "(?P<text>[^"]*)" | '(?P<text2>[^']*)'
      | (?P<number>\d+(?:\.\d+)?)
      | (?P<sign>\|\||\*\*|[-+*/:|()~,.^=%\[\]])
    )""",
    re.VERBOSE,
)
MOST_FACTORS = 4
"""Largest number of factors in a*b*…, because all of their interactions become terms."""
_INSTEAD = {
    "/": "nested terms are not supported: add a separate column and declare it",
    "**": "powers of terms are not supported: write I(column**2)",
    "^": "powers of terms are not supported: write I(column**2)",
    "%": "%in% is not supported: add a separate column and declare it",
}
_GROUPS = (
    "terms with | (random effects of groups) are not supported yet: use a NumPyro model "
    "(tacit.from_numpyro), or C(column) for one coefficient per level"
)


class Term(NamedTuple):
    """One column of a formula, a transformation of columns, or an interaction."""

    column: str
    categorical: bool = False
    """True if the term was written as C(column)."""
    reference: str | None = None
    expression: str | None = None
    """The expression of a transformation, e.g. "log(age)"; `column` is then its name."""
    factors: tuple[Term, ...] = ()
    """Factors of an interaction."""

    @property
    def sources(self) -> tuple[str, ...]:
        """Columns of the records from which the term is computed."""
        if self.factors:
            return tuple(dict.fromkeys(name for one in self.factors for name in one.sources))
        if self.expression is not None:
            return parse_expression(self.expression).columns
        return (self.column,)


class Formula(NamedTuple):
    """An outcome and the terms that explain it."""

    outcome: str
    """Empty for "~ age + weight", a model of the columns themselves."""
    terms: tuple[Term, ...]
    positive: str | None = None
    """The level that is y = 1, if the formula names it: died["yes"] ~ age."""
    others: bool = False
    """True if `.` stands for all other declared columns."""
    text: str = ""

    def columns(self, declared: Sequence[str]) -> tuple[Term, ...]:
        """Return the terms, with `.` replaced by all declared columns that the formula does not
        name.
        """
        if not self.others:
            return self.terms
        named = {self.outcome, *(term.column for term in self.terms)}
        return (*self.terms, *(Term(name) for name in declared if name not in named))


def _written(term: Term) -> str:
    """Return the column of a term as it is written in a formula: `C(name)` for a category,
    otherwise `name`.
    """
    return f"C({term.column})" if term.categorical else term.column


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


def parse_formula(text: str) -> Formula:
    """Parse a formula; raise an error that names the first unsupported part.

    >>> [(term.column, term.reference) for term in parse_formula("died ~ age + C(sex, 'f')").terms]
    [('age', None), ('sex', 'f')]
    """
    if not isinstance(text, str):
        raise ConfigError(f"formula = {text!r}; give text such as {EXAMPLE}")
    return _Parser(text).formula()


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = [*self._split(), _Token("end", "", len(text))]
        self.place = 0

    def _split(self) -> Iterator[_Token]:
        at, end = 0, len(self.text.rstrip())
        while at < end:
            found = _TOKEN.match(self.text, at)
            if found is None:
                raise self.fault(f"{self.text[at:].strip()[0]!r} is not part of a formula")
            kind = str(found.lastgroup)
            yield _Token("text" if kind == "text2" else kind, found[kind], found.start(kind))
            at = found.end()

    def fault(self, why: str) -> ConfigError:
        return ConfigError(f"formula = {self.text!r}; {why}")

    @property
    def now(self) -> _Token:
        return self.tokens[self.place]

    def take(self, *signs: str) -> bool:
        if self.now.kind == "sign" and self.now.text in signs:
            self.place += 1
            return True
        return False

    def formula(self) -> Formula:
        if not any(token == ("sign", "~") for token in (t[:2] for t in self.tokens)):
            raise self.fault(f'"~" is missing between outcome and columns; write e.g. {EXAMPLE}')
        outcome, positive = self.outcome()
        terms: list[Term] = []
        others = False
        while True:
            term = self.term()
            if term == ".":
                others = True
            elif isinstance(term, Term):
                found = self.product(term)
                if any(outcome in one.sources for one in found):
                    raise self.fault(
                        f"{outcome} is the outcome and a term; remove it from the right side of ~"
                    )
                known = [one.column for one in terms]
                if len(found) == 1 and found[0].column in known:
                    raise self.fault(f"{found[0].column} occurs twice; name it once")
                terms += [one for one in found if one.column not in known]
            if self.now.kind == "end":
                break
            self.separator()
        self.check_interactions(terms, others)
        return Formula(outcome, tuple(terms), positive, others, self.text)

    def check_interactions(self, terms: list[Term], others: bool) -> None:
        """Raise an error for an interaction without the terms that it contains, such as a:b without
        a.

        Numbers are centred before they are multiplied. With a, b and a:b this gives the same models
        as without centring. Without a or b it would be a different model than in R or statsmodels.
        """
        known = {frozenset(one.column for one in term.factors or (term,)) for term in terms}
        for term in terms:
            for size in range(1, len(term.factors)):
                for part in itertools.combinations(term.factors, size):
                    plain = others and size == 1 and part[0].expression is None
                    if not plain and frozenset(one.column for one in part) not in known:
                        missing = ":".join(one.column for one in part)
                        whole = "*".join(_written(one) for one in term.factors)
                        raise self.fault(
                            f"the interaction {term.column} needs {missing} as a term too: write "
                            f"{whole}, or multiply the columns before the fit"
                        )

    def outcome(self) -> tuple[str, str | None]:
        """Parse the outcome and, if given, the level that is y = 1."""
        if self.take("~"):  # a model of the columns themselves
            return "", None
        if self.now.kind not in ("name", "quoted"):
            raise self.fault(f"the outcome must be a column, not {self.now.text!r}")
        name, positive = self.now.text, None
        self.place += 1
        if self.take("["):
            if self.now.kind not in ("text", "number"):
                raise self.fault(f'{name}[…] must name a level in quotes, e.g. {name}["yes"]')
            positive = self.now.text
            self.place += 1
            if not self.take("]"):
                raise self.fault(f'{name}["{positive}" is not closed; write {name}["{positive}"]')
        if not self.take("~"):
            raise self.fault(
                f"the outcome must be one column, but {name!r} is followed by {self.now.text!r}: "
                "transform the outcome before the fit"
            )
        return name, positive

    def separator(self) -> None:
        if self.take("+"):
            return
        sign = self.now.text
        if self.now.kind == "sign" and sign == "-":
            self.place += 1
            what = "the intercept" if self.now.text == "1" else f"{self.now.text!r}"
            raise self.fault(f"leaving {what} out with - is not supported; name what to include")
        if sign in ("|", "||"):
            raise self.fault(_GROUPS)
        if sign in _INSTEAD:
            raise self.fault(_INSTEAD[sign])
        if sign == "~":
            raise self.fault("~ occurs twice; a formula has one ~")
        if sign == ".":
            raise self.fault("write a name with a dot in backticks, `a.b`")
        if self.now.kind == "name":
            before = self.tokens[self.place - 1]
            both = f" (`{before.text} {sign}`)" if before.kind == "name" else ""
            raise self.fault(
                f"{sign!r} is not expected here; join columns with +, or write a name with spaces "
                f"in backticks{both}"
            )
        raise self.fault(f"{sign!r} is not expected here; join columns with +")

    def product(self, first: Term) -> list[Term]:
        """Parse a term and the factors joined to it by `:` or `*`; a*b is short for a + b + a:b."""
        groups = [[first]]
        while self.now.text in (":", "*") and self.now.kind == "sign":
            crossed = self.take("*")
            if not crossed:
                self.take(":")
            factor = self.term()
            if not isinstance(factor, Term):
                raise self.fault(f"{factor!r} cannot be part of an interaction; name a column")
            if crossed:
                groups.append([factor])
            else:
                groups[-1].append(factor)
        if len(groups) > MOST_FACTORS:
            raise self.fault(
                f"{len(groups)} factors are joined by *, but at most {MOST_FACTORS} are allowed; "
                "write the interactions that you need with :, as in a + b + a:b"
            )
        sets = itertools.chain.from_iterable(
            itertools.combinations(groups, size) for size in range(1, len(groups) + 1)
        )
        return [self.interaction([one for group in chosen for one in group]) for chosen in sets]

    def interaction(self, factors: list[Term]) -> Term:
        distinct = list({one.column: one for one in factors}.values())
        if len(distinct) < len(factors):
            raise self.fault(f"{factors[0].column} interacts with itself; write I(column**2)")
        if len(distinct) == 1:
            return distinct[0]
        return Term(":".join(one.column for one in distinct), factors=tuple(distinct))

    def term(self) -> Term | str:
        """Parse a column, ".", "1" or a transformation."""
        token = self.now
        if token.kind == "number":
            self.place += 1
            if token.text == "1":
                return "1"
            if token.text == "0":
                raise self.fault("models without an intercept are not supported; leave 0 out")
            raise self.fault(f"{token.text} is a number; write names of columns only")
        if token.kind == "sign" and token.text == ".":
            self.place += 1
            return "."
        if token.kind == "sign" and token.text == "(":
            raise self.fault(
                _GROUPS if self.has_bar() else "brackets are not supported; join columns with +"
            )
        if token.kind == "sign" and token.text == "-":
            self.separator()
        if token.kind not in ("name", "quoted"):
            what = (
                "a column is missing at the end"
                if token.kind == "end"
                else (f"{token.text!r} is not a column")
            )
            raise self.fault(f"{what}; write e.g. {EXAMPLE}")
        self.place += 1
        if token.kind == "name" and token.text in ("np", "numpy") and self.take("."):
            token = self.now._replace(at=token.at)
            self.place += 1
        if token.kind == "name" and self.take("("):
            return self.call(token)
        if not token.text.strip():
            raise self.fault("`` names no column; write the name of a column between the backticks")
        return Term(token.text)

    def call(self, token: _Token) -> Term:
        if token.text != "C":
            return self.transformed(token)
        if self.now.kind not in ("name", "quoted"):
            raise self.fault(f"C(…) needs a column, not {self.now.text!r}")
        column, reference = self.now.text, None
        self.place += 1
        if self.take(","):
            reference = self.reference()
        if not self.take(")"):
            raise self.fault(
                f"C({column} … is not closed; write C({column}) or C({column}, 'level')"
            )
        return Term(column, True, reference)

    def transformed(self, token: _Token) -> Term:
        """Parse a transformation such as log(column) or I(…), up to its closing bracket."""
        depth = 1
        while depth and self.now.kind != "end":
            depth += {"(": 1, ")": -1}.get(self.now.text if self.now.kind == "sign" else "", 0)
            self.place += 1
        end = self.tokens[self.place - 1]
        text = self.text[token.at : end.at + len(end.text)]
        if depth:
            raise self.fault(f"{text} is not closed: a bracket is missing; write e.g. log(age)")
        text = re.sub(r"\b(?:np|numpy)\s*\.\s*", "", text)
        try:
            parse_expression(text)
        except ConfigError as error:
            raise self.fault(str(error)) from None
        return Term(re.sub(r"\s+", "", text), expression=text)

    def reference(self) -> str:
        """Parse the reference level of a category: 'level', reference='level' or
        Treatment('level').
        """
        treatment = False
        if self.now.kind == "name":
            word = self.now.text
            self.place += 1
            treatment = word == "Treatment" and self.take("(")
            if treatment and self.now.kind == "name" and self.now.text == "reference":
                self.place += 1
                self.take("=")
            elif not treatment and not (word == "reference" and self.take("=")):
                raise self.fault(
                    f"C(column, {word} …) is not supported; name a level, C(column, 'a')"
                )
        if self.now.kind not in ("text", "number"):
            raise self.fault("the reference of C(column, …) must be a level in quotes")
        level = self.now.text
        self.place += 1
        if treatment:
            self.take(")")
        return level

    def has_bar(self) -> bool:
        return any(t.kind == "sign" and t.text in ("|", "||") for t in self.tokens[self.place :])
