"""Secure sums: the server learns only the sum of the parties' integer vectors.

Pure functions with explicit state; see docs/methods/secure-sums.md for protocol and proof sketch.
"""
