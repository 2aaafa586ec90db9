"""File handling: atomic writes, manifests, JSON, archives, downloads and their cache."""
