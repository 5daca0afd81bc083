"""Runs from a configuration file: build, run, write, sweep and tune."""
