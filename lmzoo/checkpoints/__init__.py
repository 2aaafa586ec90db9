"""Checkpoints of other libraries: what is in them, how to read it and how to write it."""
