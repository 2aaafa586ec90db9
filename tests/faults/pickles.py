"""Pickles that act when Python loads them, in both of PyTorch's containers."""

from __future__ import annotations

import marshal
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any


class Global:
    """An object that is pickled as a reference to a name."""

    def __init__(self, name: str) -> None:
        self.module, _, self.name = name.rpartition(".")


class Call:
    """An object that is pickled as a call of a function, which a name or another pickled object stands for."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.function = Global(function) if isinstance(function, str) else function
        self.arguments = arguments


class Built:
    """An object that is pickled as another object whose state is set."""

    def __init__(self, instance: Any, state: Any) -> None:
        self.instance, self.state = instance, state


def opcodes(value: Any) -> bytes:
    """Return the opcodes of protocol 2 that make a value, without the header and the final stop."""
    if isinstance(value, Global):
        return f"c{value.module}\n{value.name}\n".encode()
    if isinstance(value, Call):
        return opcodes(value.function) + opcodes(value.arguments) + b"R"
    if isinstance(value, Built):
        return opcodes(value.instance) + opcodes(value.state) + b"b"
    if isinstance(value, tuple):
        return b"(" + b"".join(map(opcodes, value)) + b"t"
    if isinstance(value, list):
        return b"](" + b"".join(map(opcodes, value)) + b"e"
    if isinstance(value, dict):
        return b"}(" + b"".join(opcodes(key) + opcodes(entry) for key, entry in value.items()) + b"u"
    if isinstance(value, bytes):
        return opcodes(Call("_codecs.encode", value.decode("latin1"), "latin1"))
    return pickle.dumps(value, 2)[2:-1]


def pickled(value: Any) -> bytes:
    return b"\x80\x02" + opcodes(value) + b"."


def method(instance: Any, name: str, *arguments: Any) -> Call:
    return Call(Call("builtins.getattr", instance, name), *arguments)


class Touch:
    """An object that Python's own pickler writes, in any protocol; it makes a directory when loaded."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


CODE = "open('made', 'w').close()"
TOUCH = ["touch", "made"]
TRAP = Call("builtins.type", "Trap", (Global("collections.OrderedDict"),), {"__setstate__": Global("os.mkdir")})
TORCH_LOAD = (Global("torch.load"), ("inner.bin",), {"weights_only": False}, {})

# Each creates or removes a file when Python's own unpickler reads it: `test_gadgets_act_when_python_loads_them`.
GADGETS: dict[str, Any] = {
    "os.system": Call("os.system", "touch made"),
    "os.popen": Call("os.popen", "touch made"),
    "os.spawnlp": Call("os.spawnlp", 0, "touch", *TOUCH),
    "os.mkdir": Call("os.mkdir", "made"),
    "posix.system": Call("posix.system", "touch made"),
    "subprocess.Popen": Call("subprocess.Popen", TOUCH),
    "subprocess.check_output": Call("subprocess.check_output", TOUCH),
    "builtins.eval": Call("builtins.eval", CODE),
    "builtins.exec": Call("builtins.exec", CODE),
    "__builtin__.eval": Call("__builtin__.eval", CODE),
    "builtins.open": Call("builtins.open", "made", "w"),
    "builtins.getattr": method(Call("builtins.__import__", "os"), "mkdir", "made"),
    "builtins.map": Call("builtins.list", Call("builtins.map", Global("os.mkdir"), ["made"])),
    "io.open": Call("io.open", "made", "w"),
    "runpy.run_path": Call("runpy.run_path", "script.py"),
    "importlib.import_module": Call("importlib.import_module", "script"),
    "importlib.reload": Call("importlib.reload", Call("builtins.__import__", "script")),
    "pty.spawn": Call("pty.spawn", TOUCH),
    "shutil.rmtree": Call("shutil.rmtree", "victim"),
    "shutil.copyfile": Call("shutil.copyfile", "script.py", "made"),
    "webbrowser.open": method(Call("webbrowser.GenericBrowser", ["touch", "%s"]), "open", "made"),
    "marshal.loads": Call("builtins.eval", Call("marshal.loads", marshal.dumps(compile(CODE, "x", "eval")))),
    "types.FunctionType": Call(
        Call("types.FunctionType", Call("marshal.loads", marshal.dumps(compile(CODE, "x", "exec"))), {})
    ),
    "codecs.open": Call("codecs.open", "made", "w"),
    "functools.partial": Call(Call("functools.partial", Global("os.mkdir"), "made")),
    "functools.reduce": Call("functools.reduce", Global("builtins.open"), ["made", "w"]),
    "operator.attrgetter": Call(
        Call(Call("operator.attrgetter", "mkdir"), Call("importlib.import_module", "os")), "made"
    ),
    "operator.methodcaller": Call(Call("operator.methodcaller", "touch"), Call("pathlib.Path", "made")),
    "pickle.loads": Call("pickle.loads", pickled(Call("os.mkdir", "made"))),
    "torch.load": Call(Built(Call("functools.partial", Global("torch.load")), TORCH_LOAD)),
    "torch.utils.collect_env.run": Call("torch.utils.collect_env.run", TOUCH),
    "numpy's _reconstruct": Built(
        Call("numpy.core.multiarray._reconstruct", Global("numpy.ndarray"), (0,), b"b"),
        (1, (1,), Call("numpy.dtype", "O8"), False, [Call("os.mkdir", "made")]),
    ),
    "a subclass of OrderedDict": Built(Call(TRAP), "made"),
    "ctypes.CDLL": method(Call("ctypes.CDLL", None), "mkdir", b"made", 0o700),
    "socket.socket": method(Call("socket.socket", 1, 1), "bind", "made"),
    "tempfile.mkdtemp": Call("tempfile.mkdtemp", "", "made", "."),
    "timeit.timeit": Call("timeit.timeit", CODE, "pass", Global("timeit.default_timer"), 1),
    "cProfile.run": Call("cProfile.run", CODE, "made"),
    "logging.FileHandler": Call("logging.FileHandler", "made"),
    "sqlite3.connect": method(Call("sqlite3.connect", "made"), "execute", "create table t (x)"),
    "in a state dict": {"weight": Call("os.mkdir", "made")},
    "in a namespace": {"args": Built(Call("argparse.Namespace"), {"lr": Call("os.mkdir", "made")}), "model": {}},
    "protocol 0": pickle.dumps(Touch("made"), 0),
    "protocol 4": pickle.dumps(Touch("made"), 4),
    "INST": b"\x80\x02(" + opcodes("made") + b"ios\nmkdir\n.",
    "OBJ": b"\x80\x02(cos\nmkdir\n" + opcodes("made") + b"o.",
}
# These use only functions that torch also needs, but would fill the memory or are not what they claim to be.
LOOKALIKES = {
    "bytes that double": Call("_codecs.encode", Call("_codecs.encode", b"x", "hex"), "hex"),
    "zeros": Call("builtins.bytearray", 1 << 33),
    "numbers": Call("torch.FloatTensor", 1 << 30),
    "nt.system": Call("nt.system", "touch made"),
    "a method of what is allowed": b"\x80\x02cargparse\nNamespace.__init__\n.",
    "what begins like what is allowed": b"\x80\x02ctorch\nFloatStorage_\n.",
    "torch's own call": Call("torch._tensor._rebuild_from_type_v2", Global("os.mkdir"), "made", (), {}),
}
CONTAINERS = ["zip", "legacy"]
HEAD = [pickle.dumps(value, 2) for value in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})]


def pickle_bytes(gadget: Any) -> bytes:
    return gadget if isinstance(gadget, bytes) else pickled(gadget)


def write(path: Path, container: str, data: bytes, name: str = "x/data.pkl") -> None:
    if container == "legacy":
        path.write_bytes(b"".join([*HEAD, data, pickle.dumps([], 2)]))
        return
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, data)
        archive.writestr("x/version", "3\n")
        archive.writestr("x/byteorder", "little")


def lay_out(directory: Path) -> None:
    """Write what the gadgets need: a directory to remove, a script to run, and another pickle."""
    (directory / "victim").mkdir(parents=True)
    (directory / "script.py").write_text(CODE)
    write(directory / "inner.bin", "legacy", pickled(Call("os.mkdir", "made")))
