"""Checkpoints of KerasHub's own models."""
