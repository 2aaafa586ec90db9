"""File handling that imports no models: atomic writes, manifests, JSON, archives, downloads and their cache."""
