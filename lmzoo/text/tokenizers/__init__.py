"""Tokenizers: from strings to ids, one per file."""
