"""Tokenizers, one per file: they turn strings into ids."""
