"""Tokenizers, one per module, which turn strings into ids."""
