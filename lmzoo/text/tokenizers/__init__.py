"""Tokenizers: from strings to ids, a file each."""
