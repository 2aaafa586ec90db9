"""Checks of arguments, the progress bar, names of tensor types, and settings of TensorFlow: nothing about models."""
