"""Serving: task models as SavedModels that take raw strings."""
