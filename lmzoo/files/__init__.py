"""Files that know nothing of models: atomic writes, manifests, JSON, archives, downloads and their cache."""
