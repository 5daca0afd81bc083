"""Engines: run a plan in this process or on a Ray cluster."""
