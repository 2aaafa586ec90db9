"""Checkpoints of Hugging Face's transformers library."""
