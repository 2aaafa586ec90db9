"""Utilities without models: argument checks, progress bars, tensor types and TensorFlow settings."""
