"""HTML report of a finished run, made from its directory."""

from tacit.report.write import write_report
from tacit.results.figures import (
    plot_calibration,
    plot_coefficients,
    plot_convergence,
    plot_negative_elbo,
    plot_parties,
)

__all__ = [
    "plot_calibration",
    "plot_coefficients",
    "plot_convergence",
    "plot_negative_elbo",
    "plot_parties",
    "write_report",
]
