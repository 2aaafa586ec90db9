"""Data sets: files of examples, and corpora to pre-train on. Imports nothing, since the command line reads files."""
