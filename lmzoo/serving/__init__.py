"""Serving: models exported as SavedModels that take raw strings, and a REST server for them."""
