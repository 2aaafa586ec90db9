"""Archives are unpacked whole, and hostile ones are refused."""

from __future__ import annotations

import gzip
import io
import stat
import tarfile
import tracemalloc
import zipfile

import pytest

from lmzoo.files import archives as module
from lmzoo.files.archives import unpack

FILES = {"model/bert_config.json": b"{}", "model/bert_model.ckpt.data": bytes(range(251)) * 13_001, "NOTE": b""}


def make_zip(path, members) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)


def make_tar(path, members) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for member, content in members:
            info = member if isinstance(member, tarfile.TarInfo) else tarfile.TarInfo(member)
            info.size = info.size or len(content)
            archive.addfile(info, io.BytesIO(content))


MAKERS = {"a.zip": make_zip, "a.tar.gz": make_tar, "a.tgz": make_tar}


@pytest.fixture
def folder(tmp_path):
    """Return an empty directory to unpack into, next to the archive."""
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder"


def read_contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", MAKERS)
def test_all_files_are_unpacked(folder, name):
    MAKERS[name](folder.parent / name, FILES.items())
    unpack(folder.parent / name, folder)
    assert read_contents(folder) == FILES


def test_directories_and_dots_in_names_are_accepted(folder):
    directory = tarfile.TarInfo("./")
    directory.type = tarfile.DIRTYPE
    make_tar(folder.parent / "a.tgz", [(directory, b""), ("./x/y", b"7")])
    make_zip(folder.parent / "a.zip", [("z/", b""), ("z/w", b"5")])
    unpack(folder.parent / "a.tgz", folder)
    unpack(folder.parent / "a.zip", folder)
    assert read_contents(folder) == {"x/y": b"7", "z/w": b"5"}


@pytest.mark.parametrize("name", ["a.zip", "a.tgz"])
@pytest.mark.parametrize("member", ["../out", "x/../../out", "absolute", "x/..", "c:/out", "..\\out"])
def test_paths_out_of_the_folder_are_refused(folder, name, member):
    member = member.replace("absolute", str(folder.parent / "out"))
    MAKERS[name](folder.parent / name, [("in", b"1"), (member, b"2")])
    with pytest.raises(ValueError, match="only relative paths inside"):
        unpack(folder.parent / name, folder)
    assert {path.name for path in folder.parent.rglob("*")} <= {name, "folder", "in"}


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE], ids=str
)
def test_links_and_devices_are_refused(folder, kind):
    info = tarfile.TarInfo("x")
    info.type, info.linkname = kind, "../../secret"
    make_tar(folder.parent / "a.tgz", [(info, b"")])
    with pytest.raises(ValueError, match="'x', a link or device"):
        unpack(folder.parent / "a.tgz", folder)
    assert list(folder.iterdir()) == []


def test_links_in_zip_files_are_refused(folder):
    info = zipfile.ZipInfo("x")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    make_zip(folder.parent / "a.zip", [(info, "../../secret")])
    with pytest.raises(ValueError, match="'x', a link or device"):
        unpack(folder.parent / "a.zip", folder)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", ["a.zip", "a.tgz"])
@pytest.mark.filterwarnings("ignore:Duplicate name:UserWarning")  # from `zipfile`
def test_duplicate_names_are_refused(folder, name):
    MAKERS[name](folder.parent / name, [("x", b"1"), ("./x" if name == "a.tgz" else "x", b"2")])
    with pytest.raises(ValueError, match="x' twice"):
        unpack(folder.parent / name, folder)


@pytest.mark.parametrize("name", ["a.zip", "a.tgz"])
def test_bombs_are_refused(folder, name, monkeypatch):
    monkeypatch.setattr(module, "_EXTRA_BYTES", 1 << 20)
    MAKERS[name](folder.parent / name, [("0", bytes(1 << 19)), ("1", bytes(1 << 19)), ("2", bytes(1 << 23))])
    with pytest.raises(ValueError, match="unpacks to more than 10 times its size"):
        unpack(folder.parent / name, folder)
    assert sum(map(len, read_contents(folder).values())) <= 1 << 20


def test_bombs_of_many_files_are_refused(folder, monkeypatch):
    monkeypatch.setattr(module, "_MAX_MEMBERS", 13)
    make_zip(folder.parent / "a.zip", [(str(n), b"") for n in range(14)])
    with pytest.raises(ValueError, match="or to more than 13 files"):
        unpack(folder.parent / "a.zip", folder)
    assert len(read_contents(folder)) == 13
    make_zip(folder.parent / "b.zip", [(f"b{n}", b"") for n in range(13)])
    unpack(folder.parent / "b.zip", folder)


def test_a_zip_file_that_understates_its_size_is_refused(folder):
    make_zip(folder.parent / "a.zip", [("x", bytes(1 << 20))])
    data = (folder.parent / "a.zip").read_bytes()
    (folder.parent / "a.zip").write_bytes(data.replace((1 << 20).to_bytes(4, "little"), (1000).to_bytes(4, "little")))
    with pytest.raises(ValueError, match=r"damaged or not an archive \(Bad CRC-32"):
        unpack(folder.parent / "a.zip", folder)
    assert sum(map(len, read_contents(folder).values())) <= 1000


@pytest.mark.parametrize("claim", [0, 48 << 20])
@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_endless_headers_are_refused(folder, kind, claim):
    """Headers are read whole; a member before one may claim a length that is not skipped."""
    directory, info = tarfile.TarInfo("d"), tarfile.TarInfo("x")
    directory.type, directory.size = tarfile.DIRTYPE, claim
    info.type, info.size = kind, 48 << 20
    with gzip.open(folder.parent / "a.tgz", "wb", compresslevel=1) as file:
        file.write(directory.tobuf() + info.tobuf())
        for _ in range(48):
            file.write(bytes(1 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="a header is too long"):
            unpack(folder.parent / "a.tgz", folder)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_data_after_the_end_is_refused(folder):
    make_tar(folder.parent / "a.tgz", FILES.items())
    with gzip.open(folder.parent / "a.tgz", "ab") as file:
        for _ in range(3):
            file.write(bytes(1 << 20))
    with pytest.raises(ValueError, match="damaged"):
        unpack(folder.parent / "a.tgz", folder)


@pytest.mark.parametrize("name", ["a.zip", "a.tgz"])
@pytest.mark.parametrize("damage", ["truncated", "truncated by a byte", "altered", "empty", "html"])
def test_damaged_archives_are_refused(folder, name, damage):
    path = folder.parent / name
    MAKERS[name](path, [*FILES.items(), ("last", bytes(range(241)) * 17)])
    data = path.read_bytes()
    middle = len(data) // 2
    damaged = {
        "truncated": data[:middle],
        "truncated by a byte": data[:-1],
        "altered": data[: middle // 2] + bytes([data[middle // 2] ^ 255]) + data[middle // 2 + 1 :],
        "empty": b"",
        "html": b"<html>not here</html>",
    }
    path.write_bytes(damaged[damage])
    with pytest.raises(ValueError, match=f"^{name} is damaged or not an archive"):
        unpack(path, folder)


def test_a_wrong_checksum_after_the_end_is_refused(folder):
    """The last bytes of a .gz are its checksum and length: tarfile alone does not read that far."""
    path = folder.parent / "a.tgz"
    make_tar(path, FILES.items())
    data = path.read_bytes()
    path.write_bytes(data[:-8] + bytes([data[-8] ^ 1]) + data[-7:])
    with pytest.raises(ValueError, match="CRC"):
        unpack(path, folder)


def test_negative_sizes_are_refused(folder):
    """A negative size would raise the limit for the other files."""
    info = tarfile.TarInfo("x")
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block[124:136] = (2**96 - 512).to_bytes(12, "big")  # -512 as GNU tar writes it, in 256ths
    block[148:156] = b"%06o\0 " % (sum(block[:148]) + sum(block[156:512]) + 8 * 32)
    with gzip.open(folder.parent / "a.tgz", "wb") as file:
        file.write(bytes(block) + bytes(10240))
    with pytest.raises(ValueError, match=r"a\.tgz"):
        unpack(folder.parent / "a.tgz", folder)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compressions_are_refused(folder, method):
    """LZMA's header may ask for gigabytes of memory."""
    with zipfile.ZipFile(folder.parent / "a.zip", "w", method) as archive:
        archive.writestr("x", b"1")
    with pytest.raises(ValueError, match="'x' with a method that is not supported"):
        unpack(folder.parent / "a.zip", folder)


def test_encrypted_archives_are_refused(folder):
    make_zip(folder.parent / "a.zip", [("x", b"1")])
    data = bytearray((folder.parent / "a.zip").read_bytes())
    data[6] |= 1
    data[data.index(b"PK\1\2") + 8] |= 1
    (folder.parent / "a.zip").write_bytes(data)
    with pytest.raises(ValueError, match="encrypted"):
        unpack(folder.parent / "a.zip", folder)
