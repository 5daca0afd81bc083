"""Posteriors, predictions, metrics, diagnostics and saved fits."""

from tacit.models.predictive import Prediction
from tacit.results.metrics import calibration_bins, calibration_error, evaluate, score
from tacit.results.predict import predict
from tacit.results.reference import (
    check_nuts,
    exact_posterior,
    kl_gaussian,
    kl_to,
    mean_field_optimum,
    nuts_reference,
)
from tacit.results.stationarity import gradient_step

__all__ = [
    "Prediction",
    "calibration_bins",
    "calibration_error",
    "check_nuts",
    "evaluate",
    "exact_posterior",
    "gradient_step",
    "kl_gaussian",
    "kl_to",
    "mean_field_optimum",
    "nuts_reference",
    "predict",
    "score",
]
