"""The server's half of a run: messages, schedules, state, step and checkpoint, without JAX.

This file imports nothing, so importing a module of this package does not load a compiler.
"""
