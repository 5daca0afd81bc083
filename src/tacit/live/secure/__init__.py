"""Secure sums: the server learns the sum of the parties' integer vectors and none of its terms.

Pure functions with explicit state; see docs/methods/secure-sums.md for protocol and proof sketch.
"""
