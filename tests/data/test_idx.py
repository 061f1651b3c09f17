"""Files of images: what was written is read, in every form, and a damaged file is answered with its name and fault."""

from __future__ import annotations

import csv
import gzip
import io
import os
import pickle
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedkin import data
from fedkin.data import idx
from fedkin.data.files import DataError
from fedkin.data.sets import cifar100

RNG = np.random.default_rng(0)
MNIST = {
    "train-images-idx3-ubyte.gz": RNG.integers(0, 256, (30, 28, 28), dtype=np.uint8),
    "train-labels-idx1-ubyte.gz": np.arange(30, dtype=np.uint8) % 10,
    "t10k-images-idx3-ubyte.gz": RNG.integers(0, 256, (20, 28, 28), dtype=np.uint8),
    "t10k-labels-idx1-ubyte.gz": np.arange(20, dtype=np.uint8) % 10,
}


def as_idx(array: np.ndarray, kind: int = 8) -> bytes:
    return bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("FEDKIN_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def mnist(folder) -> Path:
    """A folder of small files in MNIST's form, gzipped."""
    (folder / "mnist").mkdir()
    for name, array in MNIST.items():
        (folder / "mnist" / name).write_bytes(gzip.compress(as_idx(array)))
    return folder / "mnist"


# ---- idx ----


def test_what_is_in_the_files_is_read(mnist):
    source = data.source("mnist", verify=False)
    assert (source.x.dtype, source.y.dtype) == (torch.uint8, torch.int64)
    pairs = zip((source.x[:, 0], source.y, source.x_test[:, 0], source.y_test), MNIST.values(), strict=True)
    assert all(np.array_equal(read.numpy(), written) for read, written in pairs)


def test_a_file_that_is_not_gzipped_is_read_all_the_same(mnist):
    expected = data.source("mnist", verify=False)
    for name, array in MNIST.items():
        (mnist / name).write_bytes(as_idx(array))
    again = data.source("mnist", verify=False)
    assert again is not expected
    assert torch.equal(again.x, expected.x)


def test_a_changed_file_is_read_anew_and_one_that_stayed_is_not(mnist):
    first = data.source("mnist", verify=False)
    assert data.source("mnist", verify=False) is first
    labels, path = MNIST["train-labels-idx1-ubyte.gz"][::-1].copy(), mnist / "train-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(as_idx(labels)))
    os.utime(path, ns=(0, 10**18))
    assert np.array_equal(data.source("mnist", verify=False).y.numpy(), labels)


def test_files_that_are_not_the_published_ones_are_refused_unless_told_otherwise(mnist):
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz is truncated .* data\.verify = false"):
        data.source("mnist")


Change = Callable[[bytes], bytes]
IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"
DAMAGE: dict[str, tuple[str, Change, str]] = {
    "truncated gzip": (IMAGES, lambda b: gzip.compress(b)[:-500], "cannot be unpacked"),
    "truncated in the header": (IMAGES, lambda b: gzip.compress(b)[:7], "cannot be unpacked"),
    "a flipped byte": (IMAGES, lambda b: _flipped(gzip.compress(b, mtime=0), -3), "cannot be unpacked"),
    "garbage after the end": (IMAGES, lambda b: gzip.compress(b) + b"garbage", "cannot be unpacked"),
    "an empty file": (IMAGES, lambda b: b"", "is empty instead of 00 00 08 03"),
    "a web page": (IMAGES, lambda b: b"<!DOCTYPE html>", "begins with 3c 21 44 4f instead of 00 00 08 03"),
    "labels for images": (IMAGES, lambda b: as_idx(MNIST[LABELS]), "begins with 00 00 08 01 instead of 00 00 08 03"),
    "images for labels": (LABELS, lambda b: as_idx(MNIST[IMAGES]), "begins with 00 00 08 03 instead of 00 00 08 01"),
    "floating-point numbers": (IMAGES, lambda b: b"\0\0\x0d" + b[3:], "begins with 00 00 0d 03"),
    "a header alone, cut": (IMAGES, lambda b: b[:9], "ends within its first"),
    "too few images": (IMAGES, lambda b: b[:-1], "says that it holds 30 x 28 x 28 bytes of data, but holds 23519"),
    "too many images": (IMAGES, lambda b: b + b"\0", "but holds 23521"),
    "images of other sides": (
        IMAGES,
        lambda b: as_idx(np.zeros((30, 32, 32), np.uint8)),
        "holds images of 32 x 32 pixels instead of 28 x 28",
    ),
    "fewer labels than images": (
        LABELS,
        lambda b: as_idx(np.zeros(29, np.uint8)),
        "holds 29 labels, but train-images.* beside it 30 images",
    ),
    "a label beyond nine": (
        LABELS,
        lambda b: as_idx(np.full(30, 11, np.uint8)),
        "holds the label 11, but there are only classes 0 to 9",
    ),
}


def _flipped(content: bytes, at: int) -> bytes:
    changed = bytearray(content)
    changed[at - 5] ^= 0xFF  # inside the checksum at the end
    return bytes(changed)


@pytest.mark.parametrize("fault", DAMAGE)
def test_a_damaged_file_is_named_with_its_fault(mnist, fault):
    name, change, sentence = DAMAGE[fault]
    (mnist / name).write_bytes(change(as_idx(MNIST[name])))
    with pytest.raises(DataError, match=sentence) as raised:
        data.source("mnist", verify=False)
    assert str(raised.value).startswith(str(mnist / name))
    assert "Replace it by a sound copy" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_files_without_a_sample_are_refused(mnist):
    (mnist / IMAGES).write_bytes(as_idx(np.zeros((0, 28, 28), np.uint8)))
    (mnist / LABELS).write_bytes(as_idx(np.zeros(0, np.uint8)))
    with pytest.raises(DataError, match="holds no labels"):
        data.source("mnist", verify=False)


def test_a_file_that_may_not_be_read_is_named(mnist):
    with pytest.raises(DataError, match=r"mnist cannot be read: Is a directory\."):
        idx.read(mnist, 3)


# ---- EMNIST ----


def test_the_official_files_are_turned_upright(folder):
    (folder / "emnist").mkdir()
    upright = {part: RNG.integers(0, 256, (5, 28, 28), dtype=np.uint8) for part in ("train", "test")}
    for part, images in upright.items():
        place = folder / "emnist" / f"emnist-byclass-{part}"
        lying = as_idx(np.ascontiguousarray(images.transpose(0, 2, 1)))
        Path(f"{place}-images-idx3-ubyte.gz").write_bytes(gzip.compress(lying))
        Path(f"{place}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(as_idx(np.arange(57, 62, dtype=np.uint8))))
    source = data.source("emnist", verify=False)
    assert np.array_equal(source.x[:, 0].numpy(), upright["train"])
    assert np.array_equal(source.x_test[:, 0].numpy(), upright["test"])
    assert [source.class_names[y] for y in source.y] == list("vwxyz")
    assert source.notes == (), "this is all of EMNIST"


# ---- CIFAR-100 ----

TABLE = [(c, f"class {c}", c // 5, f"superclass {c // 5}") for c in range(100)]


def pool(n: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    fine = rng.integers(0, 100, n).astype(np.uint8)
    return {"x": rng.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8), "fine": fine, "coarse": fine // 5}


TRAIN, TEST = pool(500, 1), pool(300, 2)


def coded(x: np.ndarray) -> np.ndarray:
    """(R - G, G, B - G), each pixel less its left neighbour, modulo 256."""
    planes = x.astype(int)
    planes = np.stack([planes[:, 0] - planes[:, 1], planes[:, 1], planes[:, 2] - planes[:, 1]], 1)
    return (np.diff(planes, axis=-1, prepend=0) % 256).astype(np.uint8)


def arrays(pool: dict[str, np.ndarray], rows: Any = slice(None)) -> dict[str, np.ndarray]:
    return {"delta": coded(pool["x"][rows]), "fine": pool["fine"][rows], "coarse": pool["coarse"][rows]}


def in_arrays_order(pool: dict[str, np.ndarray]) -> list[int]:
    """The first image of each class, then the second of each, and so on."""
    seen: dict[int, int] = {}
    keys = []
    for i, c in enumerate(pool["fine"].tolist()):
        keys.append((seen.get(c, 0), c, i))
        seen[c] = seen.get(c, 0) + 1
    return [i for *_, i in sorted(keys)]


@pytest.fixture
def npz(folder) -> Path:
    """Small files in the form without pickles."""
    (folder / "cifar100").mkdir()
    for i in range(5):
        np.savez(folder / "cifar100" / f"train-{i}.npz", **arrays(TRAIN, slice(100 * i, 100 * (i + 1))))
    np.savez(folder / "cifar100" / "test.npz", **arrays(TEST, in_arrays_order(TEST)))
    with (folder / "cifar100" / "labels.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([("fine", "fine_name", "coarse", "coarse_name"), *TABLE])
    return folder / "cifar100"


def python2(thing: Any) -> bytes:
    """A thing in the pickle that Python 2 made of it (protocol 2, text and bytes alike), without its last full stop."""
    if thing is None or isinstance(thing, bool):
        return {None: b"N", True: b"\x88", False: b"\x89"}[thing]
    if isinstance(thing, int):
        return b"J" + struct.pack("<i", thing)
    if isinstance(thing, str | bytes):
        content = thing.encode() if isinstance(thing, str) else thing
        return b"T" + struct.pack("<i", len(content)) + content
    if isinstance(thing, tuple):
        return b"(" + b"".join(map(python2, thing)) + b"t"
    if isinstance(thing, list):
        return b"](" + b"".join(map(python2, thing)) + b"e"
    if isinstance(thing, dict):
        return b"}(" + b"".join(python2(k) + python2(v) for k, v in thing.items()) + b"u"
    assert isinstance(thing, np.ndarray)
    dtype = b"cnumpy\ndtype\n" + python2((thing.dtype.str[1:], 0, 1)) + b"R"
    dtype += python2((3, thing.dtype.str[0], None, None, None, -1, -1, 0)) + b"b"
    start = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n" + python2((0,)) + python2("b") + b"tR"
    return start + b"(" + python2(1) + python2(thing.shape) + dtype + python2(False) + python2(thing.tobytes()) + b"tb"


def member(pool: dict[str, np.ndarray], **changes: Any) -> bytes:
    content = {
        "filenames": ["a.png"] * len(pool["fine"]),
        "batch_label": "a batch",
        "fine_labels": pool["fine"].tolist(),
        "coarse_labels": pool["coarse"].tolist(),
        "data": pool["x"].reshape(-1, 3072),
    }
    return b"\x80\x02" + python2(content | changes) + b"."


META = b"\x80\x02" + python2({"fine_label_names": [row[1] for row in TABLE], "coarse_label_names": []}) + b"."


def pack(place: Path, **members: bytes) -> Path:
    """An archive like the original, with some members changed."""
    place.mkdir(parents=True, exist_ok=True)
    path = place / cifar100.ARCHIVE
    given = {"file.txt~": b"", "train": member(TRAIN), "test": member(TEST), "meta": META} | members
    with tarfile.open(path, "w:gz") as archive:
        for name, content in given.items():
            info = tarfile.TarInfo(f"cifar-100-python/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def test_our_imitation_is_what_python_2_would_have_written():
    read = pickle.loads(member(TRAIN), encoding="bytes")
    assert np.array_equal(read[b"data"], TRAIN["x"].reshape(-1, 3072))
    assert read[b"fine_labels"] == TRAIN["fine"].tolist()


def test_arrays_are_decoded(npz):
    source = data.source("cifar100", verify=False)
    assert np.array_equal(source.x.numpy(), TRAIN["x"])
    assert np.array_equal(source.x_test.numpy(), TEST["x"][in_arrays_order(TEST)])
    assert np.array_equal(source.y.numpy(), TRAIN["fine"])
    assert source.class_names[7] == "class 7"


def test_the_original_archive_gives_the_same_samples_in_the_same_order(npz, tmp_path, monkeypatch):
    a = data.source("cifar100", verify=False)
    pack(tmp_path / "elsewhere" / "cifar100")
    monkeypatch.setenv("FEDKIN_DATA", str(tmp_path / "elsewhere"))
    b = data.source("cifar100", verify=False)
    assert a is not b
    assert all(torch.equal(getattr(a, part), getattr(b, part)) for part in ("x", "y", "x_test", "y_test"))
    assert (a.groups, a.class_names) == (b.groups, b.class_names)
    assert [path.name for path in (tmp_path / "elsewhere").rglob("*")] == ["cifar100", cifar100.ARCHIVE], "not unpacked"


def test_an_archive_that_was_written_anew_by_python_3_is_read_too(folder):
    content = {"data": TRAIN["x"].reshape(-1, 3072), "fine_labels": TRAIN["fine"].tolist()}
    content["coarse_labels"] = TRAIN["coarse"].tolist()
    by_columns = content | {"data": np.asfortranarray(content["data"])}
    for way in (pickle.dumps(content, 3), pickle.dumps(content, 4), pickle.dumps(by_columns, 4)):
        pack(folder / "cifar100", train=way)
        assert np.array_equal(data.source("cifar100", verify=False).x.numpy(), TRAIN["x"])


# ---- nothing that a file says is run ----


class Evil:
    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.does = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.does


def evils(marker: Path) -> dict[str, bytes]:
    touch = f"touch {marker}"
    by_hand = b"\x80\x02cos\nsystem\n(X" + struct.pack("<I", len(touch)) + touch.encode() + b"tR."
    inside = member(TRAIN)[:-2] + python2("more") + by_hand[2:-1] + b"u."
    return {
        "os.system": pickle.dumps({"data": Evil(os.system, touch)}, 2),
        "protocol 5": pickle.dumps({"data": Evil(os.system, touch)}, 5),
        "builtins.eval": pickle.dumps([Evil(eval, f"open({str(marker)!r}, 'w')")], 4),
        "numpy's own door": b"\x80\x02cnumpy\nsave\n" + python2((str(marker).encode(), 1)) + b"R.",
        "a name with a dot": b"\x80\x04\x8c\x05numpy\x8c\x0fdtype.__class__\x93)R.",
        "in place of everything": by_hand,
        "amid sound samples": inside,
        "an old instance": b"(S'" + touch.encode() + b"'\nios\nsystem\n.",
    }


@pytest.mark.parametrize("way", evils(Path()))
@pytest.mark.parametrize("place", ["train", "test", "meta"])
def test_nothing_in_an_archive_is_run(folder, tmp_path, way, place):
    marker = tmp_path / "evil"
    path = pack(folder / "cifar100", **{place: evils(marker)[way]})
    with pytest.raises(DataError, match=f"asks in its member {place} for .*; nothing of it was run") as raised:
        data.source("cifar100", verify=False)
    assert str(raised.value).startswith(str(path))
    assert not list(tmp_path.glob("evil*"))


def test_the_same_pickle_would_have_run_elsewhere(tmp_path):
    """So the test above can fail."""
    pickle.loads(evils(tmp_path / "evil")["os.system"])
    assert (tmp_path / "evil").exists()


def test_stand_ins_told_to_do_odd_things_do_nothing(folder):
    odd = {
        "an array called, not built": b"cnumpy\nndarray\n" + python2((3072,)) + b"R",
        "an array of objects": python2(np.array([0])).replace(b"T\x02\x00\x00\x00i8", b"T\x02\x00\x00\x00O8"),
        "a state of words": b"cnumpy.core.multiarray\n_reconstruct\n)R" + python2("state") + b"b",
        "a shape that does not fit": python2(np.zeros(5, np.uint8)).replace(python2((5,)), python2((7,))),
    }
    for thing in odd.values():
        content = b"\x80\x02}(" + python2("data") + thing + b"u."
        pack(folder / "cifar100", train=content)
        with pytest.raises(DataError, match="no array 'data' of bytes|cannot be read in its member train"):
            data.source("cifar100", verify=False)


# ---- damaged files ----

ARCHIVES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "cut": (lambda place: _cut(pack(place)), "cannot be unpacked|has no member"),
    "cut at the very beginning": (lambda place: _cut(pack(place), 20), "cannot be unpacked"),
    "not an archive": (lambda place: pack(place).write_bytes(b"<html>"), "cannot be unpacked"),
    "without meta": (lambda place: _without(pack(place), "meta"), "has no member cifar-100-python/meta"),
    "without test": (lambda place: _without(pack(place), "test"), "has no member cifar-100-python/test"),
    "an empty member": (lambda place: pack(place, train=b""), "cannot be read in its member train"),
    "half a pickle": (lambda place: pack(place, test=member(TEST)[:9999]), "cannot be read in its member test"),
    "no pickle": (lambda place: pack(place, test=b"hello there"), "cannot be read in its member test"),
    "a list": (lambda place: pack(place, train=b"\x80\x02" + python2([1]) + b"."), "no table in its member train"),
    "grey images": (
        lambda place: pack(place, train=member(TRAIN, data=np.zeros((500, 1024), np.uint8))),
        "no array 'data' of bytes, 3,072 for each image, in its member train",
    ),
    "floating-point pixels": (
        lambda place: pack(place, train=member(TRAIN, data=np.zeros((500, 3072), "<f4"))),
        "no array 'data' of bytes",
    ),
    "fewer labels": (lambda place: pack(place, train=member(TRAIN, fine_labels=[1])), "500 images, but 1 classes"),
    "labels of words": (
        lambda place: pack(place, train=member(TRAIN, fine_labels=["x"] * 500)),
        "has no list 'fine_labels' of numbers",
    ),
    "no labels": (lambda place: pack(place, train=member(TRAIN, coarse_labels=None)), "has no list 'coarse_labels'"),
    "a class beyond 99": (
        lambda place: pack(place, train=member(TRAIN, fine_labels=[100] * 500)),
        "an image of class 100, but there are only 0 to 99",
    ),
    "names of 99 classes": (
        lambda place: pack(place, meta=b"\x80\x02" + python2({"fine_label_names": ["x"] * 99}) + b"."),
        "does not name 100 classes",
    ),
}


def _cut(path: Path, size: int | None = None) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2 if size is None else size])


def _without(path: Path, name: str) -> None:
    with tarfile.open(path) as archive:
        kept = [(m, archive.extractfile(m).read()) for m in archive if m.name != f"cifar-100-python/{name}"]
    with tarfile.open(path, "w:gz") as archive:
        for info, content in kept:
            archive.addfile(info, io.BytesIO(content))


@pytest.mark.parametrize("fault", ARCHIVES)
def test_a_damaged_archive_is_named_with_its_fault(folder, fault):
    spoil, sentence = ARCHIVES[fault]
    spoil(folder / "cifar100")
    with pytest.raises(DataError, match=sentence) as raised:
        data.source("cifar100", verify=False)
    assert str(raised.value).startswith(str(folder / "cifar100" / cifar100.ARCHIVE))


def _stored(path: Path, **changes: np.ndarray | None) -> None:
    given = arrays(TRAIN, slice(100, 200)) | changes
    np.savez(path, **{name: array for name, array in given.items() if array is not None})


ARRAYS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "cut": (lambda path: _cut(path), "cannot be read as arrays"),
    "empty": (lambda path: path.write_bytes(b""), "cannot be read as arrays"),
    "a web page": (lambda path: path.write_bytes(b"<html>"), "cannot be read as arrays"),
    "a flipped byte": (lambda path: path.write_bytes(_with_a_flipped_byte(path)), "cannot be read as arrays"),
    "a header that never ends": (
        lambda path: path.write_bytes(path.read_bytes().replace(b"(100, 3, 32, 32), }", b"(100, 3, 32, 32  ( ")),
        "cannot be read as arrays",
    ),
    "one array alone": (lambda path: _alone(path), "cannot be read as arrays"),
    "no classes": (lambda path: _stored(path, fine=None), "holds no array 'fine'"),
    "objects": (lambda path: _stored(path, fine=np.array([{}] * 100)), "cannot be read as arrays"),
    "floating-point pixels": (
        lambda path: _stored(path, delta=np.zeros((100, 3, 32, 32))),
        r"holds float64 of shape \(100, 3, 32, 32\) as 'delta' instead of uint8",
    ),
    "channels last": (
        lambda path: _stored(path, delta=np.zeros((100, 32, 32, 3), np.uint8)),
        r"holds uint8 of shape \(100, 32, 32, 3\) as 'delta' instead of uint8 of shape \('n', 3, 32, 32\)",
    ),
    "a single number": (lambda path: _stored(path, fine=np.uint8(3)), r"of shape \(\) as 'fine'"),
    "fewer labels": (
        lambda path: _stored(path, coarse=np.zeros(99, np.uint8)),
        "holds 100 images, but 100 classes and 99 superclasses",
    ),
    "no images": (
        lambda path: _stored(path, **{name: array[:0] for name, array in arrays(TRAIN).items()}),
        "holds 0 images",
    ),
    "a superclass beyond 19": (
        lambda path: _stored(path, coarse=np.full(100, 20, np.uint8)),
        "an image of superclass 20, but there are only 0 to 19",
    ),
    "a class of two superclasses": (
        lambda path: _stored(path, fine=np.full(100, 7, np.uint8), coarse=np.arange(100, dtype=np.uint8) % 2),
        "puts images of class 7 into more than one superclass",
    ),
}


def _alone(path: Path) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(3))
    path.write_bytes(buffer.getvalue())


def _with_a_flipped_byte(path: Path) -> bytes:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    return bytes(content)


@pytest.mark.parametrize("fault", ARRAYS)
def test_damaged_arrays_are_named_with_their_fault(npz, fault):
    spoil, sentence = ARRAYS[fault]
    spoil(npz / "train-1.npz")
    with pytest.raises(DataError, match=sentence) as raised:
        data.source("cifar100", verify=False)
    assert str(raised.value).startswith(str(npz / "train-1.npz"))


@pytest.mark.parametrize(
    "table", ["", "fine,fine_name\n0,apple\n", "number,name\n0,apple\n", "fine,fine_name\n\xff,\n"]
)
def test_a_table_without_all_names_is_refused(npz, table):
    (npz / "labels.csv").write_bytes(table.encode("latin1"))
    with pytest.raises(DataError, match=r"labels\.csv does not name classes 0 to 99"):
        data.source("cifar100", verify=False)
