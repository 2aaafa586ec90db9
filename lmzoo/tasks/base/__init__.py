"""The base class of tasks and its helpers."""
