"""MIMIC-III benchmark files."""
