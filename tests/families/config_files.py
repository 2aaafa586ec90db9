"""Changes of stored configurations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def edit_config(directory: Path, *removed: str, **changes: Any) -> None:
    """Remove and change keys of a directory's `config.json`."""
    file = directory / "config.json"
    config = {key: value for key, value in json.loads(file.read_text()).items() if key not in removed}
    file.write_text(json.dumps({**config, **changes}))
