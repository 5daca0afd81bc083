"""`tacit.fit`, `tacit.check` and `tacit.load`, and the `Fit` that they return.

The function `tacit.fit` is in `tacit.fitting.fit`: a package `tacit.fit` would hide it.
"""
