"""Checkpoints in the formats of others, one reader to a format."""
