"""Checkpoints of Sentence Transformers."""
