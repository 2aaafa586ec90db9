"""What the `lmzoo` script runs: help, version and the list of presets, without waiting for Keras.

`import lmzoo` imports Keras and its backend, which takes seconds. Here the package is in place, so that its modules can
be imported, but its `__init__.py` runs only when something asks for what is in there, such as `lmzoo.models`.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from types import ModuleType
from typing import Any


class _Postponed(ModuleType):
    """A package whose `__init__.py` has not run yet."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__version__":  # the import system asks
            raise AttributeError(name)
        self.__class__ = ModuleType  # type: ignore[assignment]
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)


def postpone() -> None:
    """Makes `import lmzoo` cheap until something in it is asked for; does nothing if it has been imported already."""
    if "lmzoo" not in sys.modules:
        spec = importlib.util.find_spec("lmzoo")
        package = _Postponed(spec.name)
        package.__spec__, package.__path__, package.__file__ = spec, spec.submodule_search_locations, spec.origin
        package.__loader__, package.__package__ = spec.loader, spec.name
        sys.modules["lmzoo"] = package


def main() -> None:
    """Runs the command line."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow writes its log lines between ours
    postpone()
    from lmzoo.cli.main import app

    app()
