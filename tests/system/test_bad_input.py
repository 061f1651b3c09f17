"""What people get wrong: each is answered with one sentence that says what, where and what would be right, exit code 2,
and leaves the folder as it was."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkin.data import catalogue
from fedkin.studies import run

Folder = Path


@dataclass(frozen=True)
class Case:
    """What is in the folder, what is typed there, and what has to be in the answer."""

    words: tuple[str, ...]
    said: tuple[str, ...]
    prepare: Callable[[Folder], object] = lambda folder: None


CASES: dict[str, Case] = {}


def case(name: str, words: str, *said: str, prepare: Callable[[Folder], object] = lambda folder: None) -> None:
    assert name not in CASES
    CASES[name] = Case(tuple(words.split()), said, prepare)


# ---- image files ----


def idx(values: np.ndarray, magic: int | None = None) -> bytes:
    number = 0x0800 + values.ndim if magic is None else magic
    return struct.pack(f">{1 + values.ndim}I", number, *values.shape) + values.astype(np.uint8).tobytes()


def mnist(change: Callable[[dict[str, bytes]], object] = lambda parts: None) -> Callable[[Folder], None]:
    """Small files under MNIST's names, with one thing wrong."""

    def prepare(folder: Folder) -> None:
        place = folder / "data" / "mnist"
        place.mkdir(parents=True)
        parts = {}
        for part, count in (("train", 60), ("t10k", 20)):
            parts[f"{part}-images-idx3-ubyte"] = idx(np.zeros((count, 28, 28)))
            parts[f"{part}-labels-idx1-ubyte"] = idx(np.arange(count) % 10)
        packed = {f"{name}.gz": gzip.compress(content) for name, content in parts.items()}
        change(packed)
        for name, content in packed.items():
            (place / name).write_bytes(content)

    return prepare


IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"
UNVERIFIED = "run --data mnist --split iid --clients 2 --data.verify false"


def put(name: str, content: bytes) -> Callable[[dict[str, bytes]], None]:
    return lambda parts: parts.update({name: content})


def as_large(folder: Folder) -> None:
    """Files of the right size, but of zeros."""
    place = folder / "data" / "mnist"
    place.mkdir(parents=True)
    for file in catalogue.CATALOGUE["mnist"].forms[0].files:
        (place / file.name).write_bytes(bytes(file.bytes))


case("no data folder", "run --data mnist", "data/mnist", "fedkin data fetch mnist", "FEDKIN_DATA")
case(
    "a data folder that is a file",
    "run --data mnist",
    "data",
    prepare=lambda folder: (folder / "data").write_text("no folder"),
)
case("a file is missing", "run --data mnist", IMAGES, prepare=mnist(lambda parts: parts.pop(IMAGES)))
case("a truncated download", "run --data mnist", "bytes", "9,912,422", "fedkin data fetch", prepare=mnist())
case("a wrong checksum", "run --data mnist", "sha256", "fedkin data fetch mnist", prepare=as_large)
case("a wrong checksum, asked for", "data check mnist", "", prepare=as_large)
case(
    "a truncated idx file",
    UNVERIFIED,
    IMAGES,
    prepare=mnist(lambda parts: parts.update({IMAGES: parts[IMAGES][:-20]})),
)
case("an idx file that is no gzip", UNVERIFIED, IMAGES, prepare=mnist(put(IMAGES, b"<html>404</html>")))
case(
    "an idx file cut short before packing",
    UNVERIFIED,
    IMAGES,
    prepare=mnist(put(IMAGES, gzip.compress(idx(np.zeros((60, 28, 28)))[:-1]))),
)
case(
    "an idx file of another kind",
    UNVERIFIED,
    IMAGES,
    prepare=mnist(put(IMAGES, gzip.compress(idx(np.zeros((60, 28, 28)), magic=0x0D03)))),
)
case(
    "images and labels that differ in number",
    UNVERIFIED,
    "60",
    "59",
    prepare=mnist(put(LABELS, gzip.compress(idx(np.arange(59) % 10)))),
)
case(
    "a label beyond the classes",
    UNVERIFIED,
    "10",
    prepare=mnist(put(LABELS, gzip.compress(idx(np.arange(60) % 11)))),
)
case(
    "fewer samples than the split needs",
    UNVERIFIED.replace("iid", "practical").replace("--clients 2 ", ""),
    "Too few samples of class",
    prepare=mnist(),
)


def cifar(change: Callable[[dict[str, bytes]], object]) -> Callable[[Folder], None]:
    def prepare(folder: Folder) -> None:
        place = folder / "data" / "cifar100"
        place.mkdir(parents=True)
        parts = {}
        for name in ("train-0", "train-1", "train-2", "train-3", "train-4", "test"):
            parts[f"{name}.npz"] = npz(delta=np.zeros((4, 3, 32, 32)), fine=np.arange(4), coarse=np.arange(4))
        names = "fine,fine_name,coarse,coarse_name\n"
        parts["labels.csv"] = (names + "".join(f"{i},f{i},{i // 5},c{i // 5}\n" for i in range(100))).encode()
        change(parts)
        for name, content in parts.items():
            (place / name).write_bytes(content)

    return prepare


def npz(**arrays: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.savez(content, **{k: v if v.dtype == object else v.astype(np.uint8) for k, v in arrays.items()})
    return content.getvalue()


CIFAR = "run --data cifar100 --split iid --clients 2 --data.verify false"
case(
    "a truncated npz file",
    CIFAR,
    "train-2.npz",
    prepare=cifar(lambda parts: parts.update({"train-2.npz": parts["train-2.npz"][:-400]})),
)
case(
    "an npz file without an array",
    CIFAR,
    "train-1.npz",
    "fine",
    prepare=cifar(put("train-1.npz", npz(delta=np.zeros((4, 3, 32, 32)), coarse=np.arange(4)))),
)
case(
    "an npz file with Python objects",
    CIFAR,
    "test.npz",
    prepare=cifar(put("test.npz", npz(delta=np.array([{}], dtype=object), fine=np.arange(4), coarse=np.arange(4)))),
)
case(
    "images of another shape",
    CIFAR,
    "train-0.npz",
    prepare=cifar(put("train-0.npz", npz(delta=np.zeros((4, 32, 32)), fine=np.arange(4), coarse=np.arange(4)))),
)


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (Path("pwned"),)  # type: ignore[return-value]


def archive(member: bytes, cut: int | None = None) -> Callable[[Folder], None]:
    def prepare(folder: Folder) -> None:
        place = folder / "data" / "cifar100"
        place.mkdir(parents=True)
        with tarfile.open(place / "cifar-100-python.tar.gz", "w:gz") as tar:
            for name in ("train", "test", "meta"):
                info = tarfile.TarInfo(f"cifar-100-python/{name}")
                info.size = len(member)
                tar.addfile(info, io.BytesIO(member))
        if cut:
            path = place / "cifar-100-python.tar.gz"
            path.write_bytes(path.read_bytes()[:-cut])

    return prepare


case("an archive that would run code", CIFAR, "cifar-100-python", prepare=archive(pickle.dumps(Evil())))
case(
    "a truncated archive",
    CIFAR,
    "cifar-100-python.tar.gz",
    prepare=archive(np.random.default_rng(0).bytes(9000), cut=4000),
)
case("an archive of something else", CIFAR, "cifar-100-python", prepare=archive(pickle.dumps([1, 2, 3])))


# ---- tables ----

ROWS = [("north" if i % 2 else "south", 30 + i, i % 3, "yes" if i % 5 < 2 else "no") for i in range(24)]
TABLE = "age,stage,ill"
GOOD = f"hospital,{TABLE}\n" + "".join(f"{a},{b},{c},{d}\n" for a, b, c, d in ROWS)
OWN = "run --data p.csv --client hospital --target ill --rounds 1"


def csv(text: str | bytes, name: str = "p.csv") -> Callable[[Folder], object]:
    content = text if isinstance(text, bytes) else text.encode()
    return lambda folder: (folder / name).write_bytes(content)


def with_row(row: str) -> Callable[[Folder], object]:
    return csv(GOOD + row + "\n")


def parquet(cut: int) -> Callable[[Folder], None]:
    def prepare(folder: Folder) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = dict(zip(("hospital", "age", "stage", "ill"), zip(*ROWS, strict=True), strict=True))
        pq.write_table(pa.table(columns), folder / "p.parquet")
        whole = (folder / "p.parquet").read_bytes()
        (folder / "p.parquet").write_bytes(whole[:-cut] if cut else whole.replace(b"north", b"n\xff\xfeth"))

    return prepare


case("no such table", OWN, "There is no file", "p.csv")
case("an empty table", OWN, "p.csv", "empty", prepare=csv(""))
case("a header without rows", OWN, "p.csv", "no row", prepare=csv(f"hospital,{TABLE}\n"))
case("a row with too many cells", OWN, "line 26", prepare=with_row("north,50,1,yes,7"))
case("a row with too few cells", OWN, "line 26", prepare=with_row("north,50"))
case("an unclosed quote", OWN, "p.csv", "quot", prepare=with_row('north,50,1,"yes'))
case("a text that is not UTF-8", OWN, "p.csv", "UTF-8", prepare=csv(GOOD.encode() + b"n\x81rd,50,1,yes\n"))
case("two columns of one name", OWN, "'age'", prepare=csv(GOOD.replace("stage", "age", 1)))
case("no client column", "run --data p.csv --target ill", "names the silo", "hospital, age", prepare=csv(GOOD))
case(
    "a client column that is not there",
    OWN.replace("client hospital", "client hospitel"),
    "hospitel",
    "'hospital'",
    prepare=csv(GOOD),
)
case("no target", "run --data p.csv --client hospital", "target", "age", prepare=csv(GOOD))
case(
    "a target that is not there", OWN.replace("target ill", "target sick"), "'sick'", "hospital, age", prepare=csv(GOOD)
)
case("a row without a client", OWN, "line 26", "hospital", prepare=with_row(",50,1,yes"))
case("a row without a target", OWN, "line 26", "ill", prepare=with_row("north,50,1,"))
case("text where numbers belong", OWN, "line 26", "'age'", "'old'", "missing", prepare=with_row("north,old,1,yes"))
case("NaN where missing was not declared", OWN, "line 26", "'age'", "nan", prepare=with_row("north,nan,1,yes"))
case("infinity", OWN, "line 26", "'age'", "inf", prepare=with_row("north,inf,1,yes"))
case(
    "a column with one value over all silos",
    OWN,
    "'unit'",
    "ignore",
    prepare=csv("".join(f"{line},{'unit' if i == 0 else 'mg'}\n" for i, line in enumerate(GOOD.splitlines()))),
)
case(
    "a column that is empty everywhere",
    OWN,
    "'note'",
    "ignore",
    prepare=csv("".join(f"{line},{'note' if i == 0 else ''}\n" for i, line in enumerate(GOOD.splitlines()))),
)
case("a client with one row", OWN, "'west'", "1", prepare=with_row("west,50,1,yes"))
case("one class only", OWN, "'ill'", "yes", prepare=csv(GOOD.replace(",no\n", ",yes\n")))
case("labels of mixed types", OWN, "'ill'", "line", prepare=csv(GOOD.replace(",no\n", ",0\n")))
case(
    "a regression of words",
    f"{OWN} --table.task regression",
    "'ill'",
    "numbers",
    prepare=csv(GOOD),
)
case("a column to ignore that is not there", f'{OWN} --ignore ["agee"]', "'agee'", "'age'", prepare=csv(GOOD))
case("medians of all silos", f"{OWN} --fill median", "median", "own", prepare=csv(GOOD))
case("a truncated Parquet file", OWN.replace("p.csv", "p.parquet"), "p.parquet", prepare=parquet(300))
case(
    "a Parquet file that is none",
    OWN.replace("p.csv", "p.parquet"),
    "p.parquet",
    prepare=csv("hello", "p.parquet"),
)
case("a folder without tables", "run --data ./empty --target ill", "empty", prepare=lambda f: (f / "empty").mkdir())


def hospitals(**texts: str) -> Callable[[Folder], None]:
    def prepare(folder: Folder) -> None:
        (folder / "h").mkdir()
        for name, text in texts.items():
            (folder / "h" / f"{name}.csv").write_text(text)

    return prepare


NORTH = f"{TABLE}\n" + "".join(f"{b},{c},{d}\n" for _, b, c, d in ROWS)
case(
    "hospitals whose columns differ",
    "run --data ./h --target ill",
    "stage",
    prepare=hospitals(north=NORTH, south=NORTH.replace("stage", "grade")),
)
case(
    "a hospital without a row",
    "run --data ./h --target ill",
    "south",
    prepare=hospitals(north=NORTH, south=f"{TABLE}\n"),
)


# ---- settings ----

case("an unknown data set", "run --data minst", "'minst'", "'mnist'")
case("an unknown split", "run --split practicle", "practicle", "practical")
case("too many clients", "run --split iid --clients 5000", "5000", "1797")
case("a model whose input does not fit", "run --model cnn --rounds 1", "cnn", "(64,)", "(channels, height, width)")
case("an unknown metric", "run --metric acuracy", "'acuracy'", "'accuracy'")
case("a metric for another task", "run --metric rmse", "rmse", "accuracy")
case("a share above one", "run --corruption.labels 2", "corruption.labels = 2")
case("augmentation of what is no image", "run --augment true", "augment")
case("a data set that cannot be imported", "run --data nowhere:load", "nowhere:load")

MODULE = """
import torch
from torch import nn
from fedkin import Client, Federation, State, Task
from fedkin.methods.fedavg import FedAvg

def pair(n, classes, width=3):
    return torch.zeros(n, width), torch.arange(n) % classes

def federation(labels, inputs=3, test=4):
    clients = [Client(name, pair(12, labels), pair(test, 2)) for name in ("a", "b")]
    return Federation("mine", tuple(clients), Task.classification((inputs,), 2))

def beyond(): return federation(3)
def no_test(): return federation(2, test=0)
def other_shape(): return federation(2, inputs=4)
def number(): return 7
def narrow(inputs, outputs): return nn.Linear(inputs[0], outputs + 1)
def deaf(inputs, outputs): return nn.Linear(inputs[0] + 1, outputs)

class Wrong(FedAvg):
    def models(self, cohort, message, memory, round):
        return {"global": message.w[0], "finetuned": memory.finetuned}

class Short(FedAvg):
    def train(self, cohort, message, memory, round):
        upload, memory = super().train(cohort, message, memory, round)
        return State(**{n: t[:1] for n, t in upload.items()}), memory
"""


def module(folder: Folder) -> None:
    (folder / "mine.py").write_text(MODULE)


def own(name: str, words: str, *said: str) -> None:
    case(name, f"run --rounds 1 {words}", *said, prepare=module)


own("labels beyond the model's outputs", "--data mine:beyond", "'a'", "labels run from 0 to 2", "classes 0 to 1")
own("a client without test samples", "--data mine:no_test", "test data: there is no sample")
own("data of another shape than the task's", "--data mine:other_shape", "shape (3,)", "(4,)")
own("a data set that is a number", "--data mine:number", "mine:number", "Federation")
own("a data set's name that is not there", "--data mine:nothing", "mine:nothing")
own("a model with too many outputs", "--model mine:narrow", "(2, 10)", "(2, 11)")
own("a model that cannot read the data", "--model mine:deaf", "(64,)")
own(
    "a method that returns one row for all", "--method mine:Wrong", "model 'global'", "a row of weights for each client"
)
own("a method that uploads for one client only", "--method mine:Short", "train (upload)", "20 clients")


# ---- graphs ----

FOUR = ("silo-00", "silo-01", "silo-02", "silo-03")
RELATED = "run --method panacea --split iid --clients 4 --rounds 1 --graph"
RING = "a,b,weight\nsilo-00,silo-01,1\nsilo-01,silo-02,0.5\nsilo-02,silo-03,2\n"
RUBBISH = bytes(range(256)) * 3


def arrays(**values: Any) -> bytes:
    """An .npz file."""
    content = io.BytesIO()
    np.savez(content, **values)
    return content.getvalue()


def array(values: np.ndarray) -> bytes:
    """An .npy file."""
    content = io.BytesIO()
    np.save(content, values)
    return content.getvalue()


def graphml(nodes: tuple[str, ...] = FOUR, head: str = "") -> str:
    names = "".join(f'<node id="{node}"/>' for node in nodes)
    edges = f'<edge source="{nodes[0]}" target="{nodes[1]}"/>'
    return (
        f'<?xml version="1.0"?>{head}<graphml xmlns="http://graphml.graphdrawing.org/xmlns">'
        f'<graph edgedefault="undirected">{names}{edges}</graph></graphml>'
    )


def graph(name: str, file: str, content: str | bytes, *said: str) -> None:
    case(name, f"{RELATED} {file}", file, *said, prepare=csv(content, file))


case("no such graph file", f"{RELATED} g.csv", "There is no file", "g.csv")
case("a graph that is a folder", f"{RELATED} g.csv", "is a folder", prepare=lambda folder: (folder / "g.csv").mkdir())
case(
    "a graph of another kind of file", f"{RELATED} g.xlsx", "g.xlsx", ".csv", ".graphml", prepare=csv(RUBBISH, "g.xlsx")
)
case("a graph that there is not", f"{RELATED} nonsense", "'nonsense'", "inferred", ".graphml")
case("a graph with a typing error", f"{RELATED} infered", "Did you mean 'inferred'?")
graph("an empty graph file", "g.csv", "", "empty")
graph("edges of an unknown client", "g.csv", RING + "silo-03,silo-4,1\n", "line 5", "'silo-4'", "'silo-0")
graph("an edge of negative weight", "g.csv", RING.replace("0.5", "-0.5"), "line 3", "'-0.5'")
graph("an edge whose weight is a word", "g.csv", RING.replace("0.5", "strong"), "line 3", "'strong'")
graph("an edge of infinite weight", "g.csv", RING.replace("0.5", "inf"), "line 3", "'inf'")
graph("an edge twice with other weights", "g.csv", RING + "silo-00,silo-01,3\n", "line 5", "second time")
graph("edges with a cell too many", "g.csv", RING + "silo-00,silo-02,1,9\n", "line 5", "4 cells")
graph("edges of one column", "g.csv", "a\nsilo-00\n", "one column")
graph("a matrix whose names differ", "g.csv", "x,silo-00,silo-01,silo-02\nsilo-00,0,1,1\nsilo-01,1,0,1\n", "matrix")
graph("a text of rubbish", "g.csv", RUBBISH, "UTF-8")
graph("a matrix that is not square", "g.npy", array(np.ones((4, 3))), "(4, 4)", "(4, 3)", "silo-00")
graph("a matrix of another size", "g.npy", array(np.ones((5, 5))), "4 clients", "(5, 5)")
graph("a matrix of words", "g.npy", array(np.full((4, 4), "a")), "number")
graph("a matrix with NaN", "g.npy", array(np.full((4, 4), np.nan)), "nan", "silo-00")
graph("a matrix of Python objects", "g.npy", array(np.full((4, 4), None)), "Python objects")
graph("an array of rubbish", "g.npy", RUBBISH, "does not begin")
graph("arrays of rubbish", "g.npz", RUBBISH, "does not begin")
graph("a truncated file of arrays", "g.npz", arrays(graph=np.ones((4, 4)), names=np.array(FOUR))[:-150])
graph("a matrix with a stranger", "g.npz", arrays(graph=np.ones((4, 4)), names=np.array([*FOUR[:3], "b"])), "'b'")
graph("a matrix that lacks clients", "g.npz", arrays(graph=np.ones((3, 3)), names=np.array(FOUR[:3])), "silo-03")
graph("GraphML of rubbish", "g.graphml", RUBBISH, "line 1")
graph("truncated GraphML", "g.graphml", graphml()[:-30], "line 1")
graph("GraphML with a document type", "g.graphml", graphml(head='<!DOCTYPE a [<!ENTITY x "lol">]>'), "DOCTYPE")
graph("GraphML of other clients", "g.graphml", graphml(("a", "b")), "'a'", "silo-0")
for method in ("panacea", "sfl"):
    case(
        f"{method} without a graph",
        RELATED.replace("panacea", method) + " given",
        "graph",
        "--graph inferred",
        "--graph groups",
    )
case("panacea told to do without a graph", f"{RELATED} none", "no graph", "--graph inferred")
case("a graph by groups that are not known", f"{RELATED} groups", "'groups'", "not known")
case("a permuted graph where there is none", f"{RELATED} permuted", "'permuted'", "none")
case("a chance above one", f"{RELATED} groups --graph.inside 1.5", "graph.inside = 1.5")
case("a graph inferred by another method", f"{RELATED} inferred --graph.infer_by scaffold", "infer_by", "fedamp")
case("a graph of no neighbours at all", f"{RELATED} inferred --graph.top 0", "graph.top = 0")


# ---- methods ----

DOMAINS = "run --data fl60 --clients 4 --rounds 1"
case(
    "a hypernetwork that does not fit",
    f"{DOMAINS} --method panacea --model mlp model.settings.hidden=[2000,2000] --settings.hidden 20000",
    "The hypernetwork does not fit",
    "GiB are free",
    "a smaller model",
)
case(
    "a hypernetwork that has nothing to write",
    f"{DOMAINS} --method pfedhn --model logistic --personal_classifier true",
    "one layer",
    "personal_classifier",
)
case("an unknown generator", f"{DOMAINS} --method panacea --generator none", "generator", "'identity'")
case("no graph layer", f"{DOMAINS} --method panacea_gn --layers 0", "settings.layers = 0")
case("a hypernetwork without width", f"{DOMAINS} --method pfedhn --settings.hidden 0", "settings.hidden = 0")
case("a leash that overshoots", f"{DOMAINS} --method pfedme --eta 0.5 --strength 15", "0.5 * 15", "7.5", "settings.eta")
case(
    "a proximal gradient that diverges",
    f"{DOMAINS} --method fedamp --proximal gradient --beta 0.01 --local.optimiser sgd --local.lr 0.1",
    "first in round 1",
    "0.1 and beta is 0.01, a ratio of 10",
    "rate / beta > 3.8",
    "at most 0.038",  # by the momentum that these data have; without it 2
)
case(
    "a weight that is no word",
    f"{DOMAINS} --method fedamp --weight-on-others trust",
    "it has to be 'auto', 'attention', a number or a table.",
)
case(
    "a weight for a client that is not there",
    f"{DOMAINS} --method fedamp --weight-on-others {{nobody=0.5}}",
    "for nobody, which is no client here",
)
case("an unknown Hessian", f"{DOMAINS} --method perfedavg --hessian none", "hessian", "'exact'")
case("a rate below zero", f"{DOMAINS} --method perfedavg --settings.alpha -1", "settings.alpha = -1")
case("a difference of length zero", f"{DOMAINS} --method perfedavg --settings.delta 0", "settings.delta = 0")
case("half a step over the graph", f"{DOMAINS} --method sfl --power 0.5", "settings.power = 0.5")
case("an unknown regulariser", f"{DOMAINS} --method sfl --regulariser cubic", "regulariser", "'squared'")
case("newcomers that are nobody", f"{DOMAINS} --method panacea --novel 0.1", "participation.novel = 0.1", "nobody")


# ---- data sets that bring their clients ----


def brought(directory: str, make: Callable[[], dict[str, bytes]]) -> Callable[..., Callable[[Folder], None]]:
    """Small files as a data set has them, with one thing wrong."""

    def damaged(change: Callable[[dict[str, bytes]], object] = lambda parts: None) -> Callable[[Folder], None]:
        def prepare(folder: Folder) -> None:
            place = folder / "data" / directory
            place.mkdir(parents=True)
            parts = make()
            change(parts)
            for name, content in parts.items():
                (place / name).write_bytes(content)

        return prepare

    return damaged


def replaced(name: str, old: str, new: str) -> Callable[[dict[str, bytes]], None]:
    """One text for another, once."""

    def change(parts: dict[str, bytes]) -> None:
        assert old.encode() in parts[name]
        parts[name] = parts[name].replace(old.encode(), new.encode(), 1)

    return change


def cut(name: str, size: int) -> Callable[[dict[str, bytes]], None]:
    return lambda parts: parts.update({name: parts[name][:-size]})


def dg60(**changes: Any) -> bytes:
    made = {"data": np.random.default_rng(0).normal(size=(6000, 2)), "label": np.tile([0, 1], 3000)}
    made |= {"domain": np.repeat(np.arange(60), 100), "adjacency": np.zeros((60, 60)), "angle": np.zeros(60)}
    return arrays(**{name: values for name, values in (made | changes).items() if values is not None})


def tpt48() -> dict[str, bytes]:
    names = [f"S{i}" for i in range(48)]
    rows = [["year", "month", *names]]
    rows += [[str(2008 + i // 12), str(1 + i % 12), *(f"{50 + i % 12}.{s}" for s in range(48))] for i in range(144)]
    borders = "state_a,state_b\n" + "".join(f"{a},{b}\n" for a, b in pairwise(names))
    return {
        "tpt48_2008_2019.csv": "".join(",".join(row) + "\n" for row in rows).encode(),
        "state_adjacency.csv": borders.encode(),
    }


def metr_la(**changes: Any) -> dict[str, bytes]:
    ids = np.array(["7001", "7002", "7003"])
    speed = np.full((130, 3), 60.0)
    return {
        "metr-la.npz": arrays(**{"speed": speed, "sensor_ids": ids, **changes}),
        "adjacency.npz": arrays(adjacency=np.ones((3, 3)), sensor_ids=ids),
        "sensor_locations.csv": b"",
    }


domains = brought("dg", lambda: {"dg60.npz": dg60()})
states, sensors = brought("tpt48", tpt48), brought("metr-la", metr_la)
FL60, TPT48, METR = (f"run --data {name} --rounds 1 --data.verify false" for name in ("fl60", "tpt48", "metr_la"))
TEMPERATURES, BORDERS, SPEEDS = "tpt48_2008_2019.csv", "state_adjacency.csv", "metr-la.npz"

case("no file of domains", "run --data fl60", "dg60.npz is missing", "variant = 'generated'", "FEDKIN_DATA")
case(
    "a truncated file of domains",
    "run --data fl60",
    "dg60.npz",
    "of 95,298 bytes",
    prepare=domains(put("dg60.npz", dg60()[:9000])),
)
case("a truncated file of domains, unverified", FL60, "dg60.npz is not the file", prepare=domains(cut("dg60.npz", 90)))
case("a file of domains that is rubbish", FL60, "dg60.npz is not the file", prepare=domains(put("dg60.npz", RUBBISH)))
case("a file of domains without angles", FL60, "no array 'angle'", prepare=domains(put("dg60.npz", dg60(angle=None))))
case("a file of fewer domains", FL60, "60 domains", prepare=domains(put("dg60.npz", dg60(domain=np.zeros(6000)))))
case(
    "a domain with NaN",
    FL60,
    "'domain-00'",
    "NaN",
    prepare=domains(put("dg60.npz", dg60(data=np.full((6000, 2), np.nan)))),
)
case(
    "a domain with a third label",
    FL60,
    "'domain-00'",
    "2",
    prepare=domains(put("dg60.npz", dg60(label=np.full(6000, 2)))),
)
case(
    "a graph of domains with negative weights",
    f"{FL60} --method sfl",
    "'domain-00'",
    "-1",
    prepare=domains(put("dg60.npz", dg60(adjacency=-np.ones((60, 60))))),
)
case("no domain at all", "run --data fl60 --clients 0", "data.clients = 0")
case("domains fewer than none", "run --data fl60 --clients -3", "data.clients = -3")
case("an unknown setting of domains", "run --data fl60 data.settings.pionts=50", "data.settings.points")
case("an unknown variant of domains", "run --data fl60 data.settings.variant=relased", "variant", "'released'")
case("an odd number of points", "run --data fl60 data.settings.points=51", "data.settings.points = 51", "multiple of 2")
case("domains with a split of others", "run --data fl60 --split practical", "fl60", "'natural'", "'practical'")
case("domains in time", "run --data fl60 --split chronological", "fl60", "'natural'", "'chronological'")
case("settings of data that has none", "run --data digits data.settings.points=50", "data.settings.points")
case("a pool of samples in time", "run --data digits --split chronological", "'chronological'", "series in time")

case("no tables of states", "run --data tpt48", TEMPERATURES, BORDERS, "missing", "mirror")
case(
    "a temperature that is missing",
    TPT48,
    TEMPERATURES,
    "line 3",
    "'S7'",
    prepare=states(replaced(TEMPERATURES, ",51.7,", ",,")),
)
case(
    "a temperature that is no number",
    TPT48,
    "line 3",
    "'nan'",
    prepare=states(replaced(TEMPERATURES, ",51.7,", ",nan,")),
)
case("a temperature in words", TPT48, "line 3", "'warm'", prepare=states(replaced(TEMPERATURES, ",51.7,", ",warm,")))
case("a state without a column", TPT48, TEMPERATURES, "48 states", prepare=states(replaced(TEMPERATURES, ",S47", "")))
case("a state twice", TPT48, TEMPERATURES, "48 states", prepare=states(replaced(TEMPERATURES, ",S47", ",S46")))
case("a month that is missing", TPT48, "144 months", prepare=states(replaced(TEMPERATURES, "2009,4,", "2009,5,")))
case("a row of another length", TPT48, "line 3 has 49 cells", prepare=states(replaced(TEMPERATURES, ",51.7,", ",")))
case("an empty table of states", TPT48, TEMPERATURES, "empty", prepare=states(put(TEMPERATURES, b"")))
case("rubbish for states", TPT48, TEMPERATURES, "48 states", prepare=states(put(TEMPERATURES, RUBBISH)))
case(
    "a border of an unknown state",
    TPT48,
    BORDERS,
    "line 5",
    "S2,QQ",
    prepare=states(replaced(BORDERS, "S3,S4", "S2,QQ")),
)
case("a number of states", "run --data tpt48 --clients 5", "48", "data.clients = 5")
case("states by classes", "run --data tpt48 --split natural", "'random' or 'chronological'", "'natural'")
case("more windows than months", "run --data tpt48 data.settings.windows=500", "data.settings.windows = 500")
case("an unknown scaling", "run --data tpt48 data.settings.scaling=zscores", "scaling", "Did you mean 'zscore'?")
case(
    "windows that end before the test",
    f"{TPT48} --split chronological data.settings.windows=50",
    "windows = 50",
    "109",
    prepare=states(),
)
case("classes of temperatures", f"{TPT48} --metric accuracy", "accuracy", prepare=states())

case("no readings of sensors", "run --data metr_la", SPEEDS, "missing", "DCRNN")
case("damaged readings", "run --data metr_la", SPEEDS, "8,674,484", prepare=sensors())
case("readings cut short", METR, SPEEDS, "cannot be read", prepare=sensors(cut(SPEEDS, 100)))
case("readings that are rubbish", METR, SPEEDS, "does not begin", prepare=sensors(put(SPEEDS, RUBBISH)))
case(
    "readings of Python objects",
    METR,
    SPEEDS,
    "Python objects",
    prepare=sensors(put(SPEEDS, arrays(speed=np.full((9, 3), None), ids=np.arange(3)))),
)
case(
    "readings that are negative",
    METR,
    SPEEDS,
    "-7.0",
    prepare=sensors(put(SPEEDS, metr_la(speed=np.full((130, 3), -7.0))[SPEEDS])),
)
case(
    "readings turned round",
    METR,
    SPEEDS,
    "Transpose",
    prepare=sensors(put(SPEEDS, metr_la(speed=np.full((3, 130), 7.0))[SPEEDS])),
)
case(
    "a graph of other sensors",
    METR,
    "adjacency.npz",
    "7001",
    prepare=sensors(put("adjacency.npz", arrays(adjacency=np.ones((2, 2)), sensor_ids=np.array(["1", "2"])))),
)
case(
    "too few steps",
    METR,
    "60 steps are too few",
    "120",
    prepare=sensors(put(SPEEDS, metr_la(speed=np.ones((60, 3)))[SPEEDS])),
)
case("too few steps asked for", f"{METR} data.settings.steps=60", "60 steps are too few", prepare=sensors())
case("more steps than there are", f"{METR} data.settings.steps=500", "130 steps", "500", prepare=sensors())
case("more sensors than there are", f"{METR} --clients 9", "3 sensors", "data.clients = 9", prepare=sensors())
case("no sensor", f"{METR} --clients 0", "data.clients = 0", prepare=sensors())
case("sensors by lot of classes", f"{METR} --split iid", "'chronological' or 'random'", "'iid'", prepare=sensors())
case("an unknown setting of sensors", "run --data metr_la data.settings.mask=true", "data.settings.masked")
case("a stride of nothing", "run --data metr_la data.settings.stride=0", "data.settings.stride = 0")
case(
    "a teacher whom nobody hears",
    "run --data metr_la data.settings.teacher_forcing=true",
    "teacher_forcing = true",
    "model.settings.teacher",
)
case(
    "a teacher who says nothing",
    "run --data metr_la model.settings.teacher=true",
    "teacher_forcing = false",
    "model.settings.teacher",
)
case("no file of the Bay Area", "run --data pems_bay", "pems-bay", "DCRNN")
case("no photographs of cars", "run --data compcars", "compcars", "agreement")
case("an unknown graph of cars", "run --data compcars data.settings.graph=grids", "graph", "'grid'")
case(
    "sensors fetched from nowhere",
    "data fetch pems_bay",
    "pems-bay",
    "DCRNN",
    prepare=lambda folder: (folder / "data" / "pems-bay").mkdir(parents=True),
)
case("a check of what is not there", "data check metr_la", SPEEDS, "missing", "what to bring")


# ---- rows without federation ----

AGAINST = "compare --methods separate --rounds 1 --references"
case("an unknown reference", f"{AGAINST} climatolgy", "'climatolgy'", "Did you mean 'climatology'?")
case("a reference of numbers for classes", f"{AGAINST} least_squares", "'least_squares'", "'pooled' is for both")
case(
    "a reference by season where there is none",
    f"{AGAINST} climatology --data metr_la --data.verify false",
    "'climatology'",
    "season",
    prepare=sensors(),
)
case(
    "a reference of series for a table",
    f"{AGAINST} persistence --data p.csv --client hospital --target age",
    "'persistence'",
    "series in time",
    prepare=csv(GOOD),
)
case("references beside levels", f"{AGAINST} pooled --vary corruption.labels=0,1", "--references", "--vary")


# ---- folders ----


def a_run(folder: Folder) -> None:
    run.run(rounds=1, data={"clients": 5}, local={"epochs": 1}, out=folder / "run")


def another_configuration(folder: Folder) -> None:
    a_run(folder)
    (folder / "run" / "summary.json").unlink()
    config = folder / "run" / "config.toml"
    config.write_text(config.read_text().replace("lr = 0.01\n", "lr = 0.02\n"))


def own_run(folder: Folder) -> None:
    """An unfinished run on a table that was changed since."""
    csv(GOOD)(folder)
    run.run(
        {"data": str(folder / "p.csv"), "table": {"client": "hospital", "target": "ill"}, "rounds": 1},
        out=folder / "run",
    )
    (folder / "run" / "summary.json").unlink()
    with_row("north,51,1,yes")(folder)


def finished_own_run(folder: Folder) -> None:
    csv(GOOD)(folder)
    run.run(
        {"data": str(folder / "p.csv"), "table": {"client": "hospital", "target": "ill"}, "rounds": 1},
        out=folder / "run",
    )


def damaged_model(folder: Folder) -> None:
    finished_own_run(folder)
    path = folder / "run" / "models" / "north.safetensors"
    path.write_bytes(path.read_bytes()[:-30])


def damaged_graph(folder: Folder) -> None:
    """An unfinished run whose graph was spoilt."""
    run.run(method="sfl", rounds=1, data={"clients": 5, "split": "relabelled"}, local={"epochs": 1}, out=folder / "run")
    (folder / "run" / "summary.json").unlink()
    path = folder / "run" / "graph.npz"
    path.write_bytes(path.read_bytes()[:-30])


case("a truncated graph of a run", "resume run", "graph.npz is damaged", "remove it", prepare=damaged_graph)
case("an output folder that holds another run", "run --rounds 1 --out run", "run holds another run", prepare=a_run)
case(
    "an output folder that is not empty", "run --rounds 1 --out .", "is not empty", prepare=csv("thesis", "thesis.txt")
)
case("a checkpoint of another configuration", "resume run", "another configuration", prepare=another_configuration)
case("a table that changed since the run began", "resume run", "p.csv is not the file", prepare=own_run)
case("no run to predict with", "predict nowhere p.csv --client north", "nowhere")
case("a client that is not there", "predict run p.csv --client nrth", "'nrth'", "north", prepare=finished_own_run)
case(
    "rows without a column",
    "predict run q.csv --client north",
    "'age'",
    prepare=lambda f: (finished_own_run(f), csv("stage\n1\n", "q.csv")(f)),
)
case(
    "rows with text where numbers belong",
    "predict run q.csv --client north",
    "line 3",
    "'young'",
    prepare=lambda f: (finished_own_run(f), csv("age,stage\n50,1\nyoung,2\n60,2\n70,1\n", "q.csv")(f)),
)
case("a truncated model", "predict run p.csv --client north", "north.safetensors", prepare=damaged_model)
case("an unknown format", "export run --format pickle", "pickle", "onnx", prepare=a_run)
case("a grid over what is no setting", "tune --grid learning=1,2 --rounds 1", "learning")
case("a grid value that cannot be", "tune --grid lr=0.1,-1 --rounds 1", "lr", "-1")
case("tuning without validation data", "tune --grid lr=0.1,0.2 --data.validation 0", "validation")
case("levels of what is no setting", "compare --methods fedavg --vary corruption.lables=0,1", "corruption.labels")
case("an unknown data set to fetch", "data fetch minst", "'minst'", "mnist")
case(
    "a download that cannot be had",
    "data fetch heart --mirror http://127.0.0.1:9/",
    "127.0.0.1",
    "processed.cleveland.data",
    "data/heart-disease",
    prepare=lambda folder: (folder / "data" / "heart-disease").mkdir(parents=True),  # files are to be put there
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDKIN_DATA", str(tmp_path / "data"))
    yield tmp_path
    sys.modules.pop("mine", None)


def listing(folder: Path) -> dict[str, bytes | None]:
    kept = (p for p in sorted(folder.rglob("*")) if "__pycache__" not in p.parts)
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in kept}


def assert_answered(code: int, answer: str, said: tuple[str, ...]) -> None:
    assert code == 2, answer
    assert "Traceback" not in answer
    flat = " ".join(answer.split())
    for words in said:
        assert words in flat
    assert flat.endswith((".", "?", ")")) or "\n" in answer.strip(), "a sentence"


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_answered_with_a_sentence_and_nothing_is_half_written(name, folder, command, capsys):
    wrong = CASES[name]
    wrong.prepare(folder)
    before = listing(folder)
    code, said = command(*wrong.words), capsys.readouterr()
    assert_answered(code, said.err + said.out, wrong.said)
    assert not (folder / "pwned").exists()
    assert listing(folder) == before, "the folder is as it was"


def test_there_are_many_ways_to_be_wrong():
    assert len(CASES) >= 180


@pytest.mark.parametrize(
    "name",
    [
        "no data folder",
        "text where numbers belong",
        "a truncated Parquet file",
        "a method that returns one row for all",
        "GraphML with a document type",
        "too few steps",
    ],
)
def test_the_real_command_answers_alike(name, folder):
    wrong = CASES[name]
    wrong.prepare(folder)
    before = listing(folder)
    typed = [sys.executable, "-m", "fedkin", *wrong.words]
    process = subprocess.run(typed, cwd=folder, capture_output=True, text=True, timeout=120)
    assert_answered(process.returncode, process.stderr, wrong.said)
    assert listing(folder) == before
