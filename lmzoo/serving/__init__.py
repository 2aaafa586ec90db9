"""Export of models as SavedModels that take strings, and a REST server for them."""
