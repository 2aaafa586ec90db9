"""Tokenizers, which turn strings into ids and back."""
