"""Readers and writers of weight file formats: tensors by name, for any model."""
