"""Data sets: files of examples, and corpora to pre-train on.

Imports nothing itself: the command line imports the readers before Keras.
"""
