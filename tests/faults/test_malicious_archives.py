"""Archives and pickles that try to write elsewhere, fill the disk or memory, or run code are refused."""

from __future__ import annotations

import gzip
import io
import pickle
import stat
import subprocess
import sys
import tarfile
import textwrap
import time
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.pickles import CONTAINERS, GADGETS, HEAD, LOOKALIKES, Call, lay_out, pickle_bytes, pickled, write
from tests.faults.sandbox import Sandbox, file_sizes

# === Archives ===

NAMES = [
    "../made", "a/../../made", "/made", "//made", "..", "a/..", "C:\\made", "..\\made", "a:b", "./../made", "a\0b",
    "../unpacked2/made", "ok/" * 40 + "../" * 41 + "made",
]  # fmt: skip


@pytest.mark.parametrize("kind", ["zip", "tgz"])
def test_members_with_paths_outside_the_archive_are_not_written(kind: str, sandbox: Sandbox) -> None:
    for name in NAMES:
        path = sandbox.folder / f"it.{kind}"
        if kind == "zip":
            with zipfile.ZipFile(path, "w") as archive:
                info = zipfile.ZipInfo("placeholder")
                info.filename = name
                archive.writestr(info, b"x")
        else:
            with tarfile.open(path, "w:gz") as archive:
                info = tarfile.TarInfo(name)
                info.size = 1
                archive.addfile(info, io.BytesIO(b"x"))
        outcome = sandbox.load("archive", path)
        # Both formats end a name at a zero byte.
        assert outcome.ended == "error" or "\0" in name, name


LINKS_AND_DEVICES = [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE]


@pytest.mark.parametrize("type_", LINKS_AND_DEVICES)
def test_links_and_devices_are_refused(type_: bytes, sandbox: Sandbox) -> None:
    (sandbox.folder / "secret").write_text("secret")
    for target in ("/etc/passwd", "../secret", "model"):
        with tarfile.open(sandbox.folder / "it.tgz", "w:gz") as archive:
            info = tarfile.TarInfo("model")
            info.type, info.linkname = type_, target
            archive.addfile(info)
            inside = tarfile.TarInfo("model/made")  # would be written through the link
            inside.size = 1
            archive.addfile(inside, io.BytesIO(b"x"))
        sandbox.assert_refused("archive", sandbox.folder / "it.tgz", "a link or device")
    with zipfile.ZipFile(sandbox.folder / "it.zip", "w") as archive:
        info = zipfile.ZipInfo("model")
        info.external_attr = (stat.S_IFLNK if type_ in (tarfile.SYMTYPE, tarfile.LNKTYPE) else stat.S_IFIFO) << 16
        archive.writestr(info, "../secret")
    sandbox.assert_refused("archive", sandbox.folder / "it.zip", "a link or device")


def write_zip_of_zeros(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("x", bytes(80 << 20))


def write_long_header(path: Path) -> None:
    """Write a tar file whose next member has a name of 200 MB, which tar readers hold in memory."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        info = tarfile.TarInfo("x")
        info.type, info.size = tarfile.GNUTYPE_LONGNAME, 200 << 20
        file.write(info.tobuf(tarfile.GNU_FORMAT))
        for _ in range(200):
            file.write(b"x" * (1 << 20))


@pytest.mark.parametrize(("name", "write_bomb"), [("a.zip", write_zip_of_zeros), ("a.tgz", write_long_header)])
def test_a_bomb_is_refused(name: str, write_bomb: Callable[[Path], None], sandbox: Sandbox) -> None:
    """`tests/files/test_archives.py` has other bombs; here, the memory and the disk of a whole process are watched."""
    write_bomb(sandbox.folder / name)
    sandbox.assert_refused("archive", sandbox.folder / name, f"^{name} ")


# === Pickles ===


@pytest.mark.slow
def test_gadgets_act_when_python_loads_them(tmp_path: Path) -> None:
    """The pickles that lmzoo refuses would otherwise act: Python's own unpickler runs each of them."""
    pytest.importorskip("torch")
    sizes_before = {}
    for number, gadget in enumerate(GADGETS.values()):
        lay_out(tmp_path / str(number))
        sizes_before[number] = file_sizes(tmp_path / str(number))
        (tmp_path / f"{number}.pkl").write_bytes(pickle_bytes(gadget))
    code = """
        import contextlib, os, pickle, sys
        sys.path.insert(0, "")
        for number in range(int(sys.argv[1])):
            sys.modules.pop("script", None)
            with open(f"{number}.pkl", "rb") as file, contextlib.chdir(str(number)), contextlib.suppress(Exception):
                pickle.load(file)
    """
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), str(len(GADGETS))]
    subprocess.run(command, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=600)

    def inactive_gadgets() -> list[str]:
        names = enumerate(GADGETS)
        return [name for number, name in names if file_sizes(tmp_path / str(number)) == sizes_before[number]]

    deadline = time.monotonic() + 10  # some act later, in processes of their own
    while inactive_gadgets() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert inactive_gadgets() == []
    assert len(GADGETS) > 40


@pytest.mark.parametrize("container", CONTAINERS)
def test_no_pickle_runs(container: str, sandbox: Sandbox) -> None:
    pytest.importorskip("torch")
    path = sandbox.folder / "pytorch_model.bin"
    lay_out(sandbox.folder)
    for name, gadget in (GADGETS | LOOKALIKES).items():
        write(path, container, pickle_bytes(gadget))
        names_function = "." in name and not name.startswith("__")
        alternatives = "" if names_function else "|is pickled with protocol|is not a whole file"
        sandbox.assert_refused("torch", path, rf"^{path} (asks for{alternatives})")
        if name in GADGETS:
            sandbox.assert_refused(
                "torch_alone", path, rf"^{path} (?!.*weights_only)"
            )  # torch's own message says how to disable the protection


@pytest.mark.parametrize("place", range(5))
def test_every_pickle_of_a_legacy_file_is_checked(place: int, sandbox: Sandbox) -> None:
    parts = [*HEAD, pickle.dumps({}, 2), pickle.dumps([], 2)]
    parts[place] = pickled(Call("os.mkdir", "made"))
    path = sandbox.folder / "model.pt"
    path.write_bytes(b"".join(parts))
    sandbox.assert_refused("torch", path, f"{path} asks for 'os.mkdir'")


@pytest.mark.parametrize("name", ["x/data.pkl", "X/DATA.PKL", "y/data.pkl", "data.pkl", "x/other.pkl"])
def test_every_pickle_of_a_zip_file_is_checked(name: str, sandbox: Sandbox) -> None:
    path = sandbox.folder / "model.pt"
    write(path, "zip", pickle.dumps({}, 2))
    with zipfile.ZipFile(path, "a") as archive, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Duplicate name")
        archive.writestr(name, pickled(Call("os.mkdir", "made")))
    sandbox.assert_refused("torch", path, f"{path} asks for 'os.mkdir'")


def test_a_compressed_pickle_is_refused(sandbox: Sandbox) -> None:
    path = sandbox.folder / "model.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/data.pkl", b"\x80\x02" + b"0N" * (1 << 24) + b".")
    sandbox.assert_refused("torch", path, f"{path} is compressed")


# === The audit hook ===


@pytest.mark.parametrize("function", ["runs_a_command", "writes_a_file", "runs_a_script", "makes_a_folder"])
def test_the_audit_hook_sees_forbidden_actions(function: str, sandbox: Sandbox) -> None:
    (sandbox.folder / "script.py").write_text("pass")
    outcome = sandbox.process.ask("call", function=function, path=str(sandbox.folder / "it"))
    assert outcome.ended == "done"
    assert outcome.events
