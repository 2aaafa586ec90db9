"""Data sets: readers of files with examples, and corpora to pre-train on.

Nothing is imported here, since the command line imports the readers before Keras.
"""
