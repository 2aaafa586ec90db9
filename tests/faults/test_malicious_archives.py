"""Archives and pickles that would write elsewhere, fill the disk or run something."""

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
from pathlib import Path

import pytest

from tests.faults.ground import Ground, listing
from tests.faults.pickles import CONTAINERS, GADGETS, HEAD, LOCAL, Call, data_of, lay_out, pickled, write

# === Archives ===

NAMES = [
    "../made", "a/../../made", "/made", "//made", "..", "a/..", "C:\\made", "..\\made", "a:b", "./../made", "a\0b",
    "../unpacked2/made", "ok/" * 40 + "../" * 41 + "made",
]  # fmt: skip


@pytest.mark.parametrize("kind", ["zip", "tgz"])
def test_paths_out_of_an_archive(kind: str, ground: Ground) -> None:
    for name in NAMES:
        path = ground.folder / f"it.{kind}"
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
        outcome = ground.load("archive", path)
        # Both formats end a name at a zero byte.
        assert outcome.ended == "error" or "\0" in name, name


@pytest.mark.parametrize(
    "type_", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE]
)
@pytest.mark.parametrize("target", ["/etc/passwd", "../secret", "model"])
def test_members_that_are_no_files(type_: bytes, target: str, ground: Ground) -> None:
    (ground.folder / "secret").write_text("secret")
    with tarfile.open(ground.folder / "it.tgz", "w:gz") as archive:
        info = tarfile.TarInfo("model")
        info.type, info.linkname = type_, target
        archive.addfile(info)
        inside = tarfile.TarInfo("model/made")  # through the link
        inside.size = 1
        archive.addfile(inside, io.BytesIO(b"x"))
    ground.refused("archive", ground.folder / "it.tgz", "a link or device")
    with zipfile.ZipFile(ground.folder / "it.zip", "w") as archive:
        info = zipfile.ZipInfo("model")
        info.external_attr = (stat.S_IFLNK if type_ in (tarfile.SYMTYPE, tarfile.LNKTYPE) else stat.S_IFIFO) << 16
        archive.writestr(info, target)
    ground.refused("archive", ground.folder / "it.zip", "a link or device")


def deflated(path: Path, members: int, size: int) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for number in range(members):
            with archive.open(f"{number}", "w") as member:
                for _ in range(size >> 20):
                    member.write(bytes(1 << 20))


def tarred(path: Path, size: int) -> None:
    with gzip.open(path, "wb", compresslevel=1) as file:
        info = tarfile.TarInfo("x")
        info.size = size
        file.write(info.tobuf())
        for _ in range(size >> 20):
            file.write(bytes(1 << 20))


def long_header(path: Path) -> None:
    """Tar readers take the name of the next member, of 200 MB, into memory."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        info = tarfile.TarInfo("x")
        info.type, info.size = tarfile.GNUTYPE_LONGNAME, 200 << 20
        file.write(info.tobuf(tarfile.GNU_FORMAT))
        for _ in range(200):
            file.write(b"x" * (1 << 20))


def lying_size(path: Path) -> None:
    """The central directory says one byte, and there are many."""
    deflated(path, 1, 80 << 20)
    data = bytearray(path.read_bytes())
    place = data.index(b"PK\1\2")
    data[place + 24 : place + 28] = (1).to_bytes(4, "little")
    path.write_bytes(data)


def test_bombs(ground: Ground) -> None:
    for name, make in {
        "a.zip": lambda path: deflated(path, 1, 80 << 20),
        "b.zip": lambda path: deflated(path, 1001, 0),
        "c.zip": lying_size,
        "d.tgz": lambda path: tarred(path, 80 << 20),
        "e.tgz": long_header,
    }.items():
        make(ground.folder / name)
        ground.refused("archive", ground.folder / name, f"^{name} ")


# === Pickles ===


@pytest.mark.slow
def test_pickles_are_live(tmp_path: Path) -> None:
    """Read by pickle itself, in another process, every one does its work."""
    pytest.importorskip("torch")
    before = {}
    for number, gadget in enumerate(GADGETS.values()):
        lay_out(tmp_path / str(number))
        before[number] = listing(tmp_path / str(number))
        (tmp_path / f"{number}.pkl").write_bytes(data_of(gadget))
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

    def unused() -> list[str]:
        return [name for number, name in enumerate(GADGETS) if listing(tmp_path / str(number)) == before[number]]

    end = time.monotonic() + 10  # some work on in processes of their own
    while unused() and time.monotonic() < end:
        time.sleep(0.1)
    assert unused() == []
    assert len(GADGETS) > 40


@pytest.mark.parametrize("container", CONTAINERS)
def test_no_pickle_runs(container: str, ground: Ground) -> None:
    pytest.importorskip("torch")
    path = ground.folder / "pytorch_model.bin"
    lay_out(ground.folder)
    for name, gadget in (GADGETS | LOCAL).items():
        write(path, container, data_of(gadget))
        asks = "." in name and not name.startswith("__")
        other = "" if asks else "|is pickled with protocol|is not a whole file"
        ground.refused("torch", path, rf"^{path} (asks for{other})")
        if name in GADGETS:
            ground.refused("torch_alone", path, rf"^{path} (?!.*weights_only)")  # torch advises to switch it off


@pytest.mark.parametrize("place", range(5))
def test_every_pickle_of_a_legacy_file_is_looked_at(place: int, ground: Ground) -> None:
    parts = [*HEAD, pickle.dumps({}, 2), pickle.dumps([], 2)]
    parts[place] = pickled(Call("os.mkdir", "made"))
    path = ground.folder / "model.pt"
    path.write_bytes(b"".join(parts))
    ground.refused("torch", path, f"{path} asks for 'os.mkdir'")


@pytest.mark.parametrize("name", ["x/data.pkl", "X/DATA.PKL", "y/data.pkl", "data.pkl", "x/other.pkl"])
def test_every_pickle_of_a_zip_is_looked_at(name: str, ground: Ground) -> None:
    path = ground.folder / "model.pt"
    write(path, "zip", pickle.dumps({}, 2))
    with zipfile.ZipFile(path, "a") as archive, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Duplicate name")
        archive.writestr(name, pickled(Call("os.mkdir", "made")))
    ground.refused("torch", path, f"{path} asks for 'os.mkdir'")


def test_a_large_pickle_that_unpacks_from_a_small_file(ground: Ground) -> None:
    path = ground.folder / "model.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/data.pkl", b"\x80\x02" + b"0N" * (1 << 24) + b".")
    ground.refused("torch", path, f"{path} is compressed")


# === What the audit hook sees ===


@pytest.mark.parametrize("function", ["runs_a_command", "writes_a_file", "runs_a_script", "makes_a_folder"])
def test_the_audit_hook_sees(function: str, ground: Ground) -> None:
    (ground.folder / "script.py").write_text("pass")
    outcome = ground.process.ask("call", function=function, path=str(ground.folder / "it"))
    assert outcome.ended == "done"
    assert outcome.events
