"""Readers of files and built-in data sets."""
