"""The server's half of a run: messages, schedules, state, step and checkpoint. NumPy only.

Nothing is imported here, so that importing a module of this package does not load a compiler.
"""
