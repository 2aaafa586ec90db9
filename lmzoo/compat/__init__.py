"""Compatibility with the interfaces of other libraries."""
