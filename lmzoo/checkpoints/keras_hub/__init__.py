"""Presets of KerasHub's own models."""
