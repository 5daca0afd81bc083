"""The stages of private scoring, and the arrays that are published and stored between them."""

from __future__ import annotations

LEAST_ROUNDS = 3
COUNTS, MOMENT, SCORE = "counts", "moment", "score"
"""Names of the stages; each stage releases one array of the same name."""
COUNTS_ROUND, MOMENT_ROUND = 1, 2
PUBLIC = ("centre", "scale", "bend", "point", "reach")
"""Public arrays of requests for a score."""
KEPT = ("counts", "moment", "points", "scores", "noise", "width")
"""Arrays of earlier rounds that the server keeps."""
