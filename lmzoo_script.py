"""What the `lmzoo` script runs: help, version and the list of presets do not wait for Keras.

`import lmzoo` imports Keras and its backend, which takes seconds. Here the package is in place, so that its modules can
be imported, but its `__init__.py` runs only when something asks for one of its names, such as `lmzoo.models`.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType


class _Postponed(ModuleType):
    """A package whose `__init__.py` has not run yet."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__") and name != "__version__":  # the import system asks
            raise AttributeError(name)
        self.__class__ = ModuleType  # type: ignore[assignment]
        if self.__spec__ is not None and self.__spec__.loader is not None:  # as `postpone` has made it
            self.__spec__.loader.exec_module(self)
        return getattr(self, name)


def postpone() -> None:
    """Makes `import lmzoo` cheap until something in it is asked for; does nothing if it has been imported already."""
    if "lmzoo" not in sys.modules and (spec := importlib.util.find_spec("lmzoo")):
        package = importlib.util.module_from_spec(spec)
        package.__class__ = _Postponed
        sys.modules["lmzoo"] = package


def main() -> None:
    """Runs the command line."""
    postpone()
    import lmzoo.common.tensorflow_kernels
    import lmzoo.common.tensorflow_logs  # noqa: F401 - TensorFlow's log lines would mix with ours
    from lmzoo_cli.main import app

    app()
