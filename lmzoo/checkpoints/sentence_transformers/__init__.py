"""Folders of Sentence Transformers."""
