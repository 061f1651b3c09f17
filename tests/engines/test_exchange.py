"""Everything that passes between a server and its sites is bytes, and what comes of it is what a simulation comes to:
for every method, with one site or many, with lost uploads, dropped and sampled clients, newcomers, and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import ON_CPU, Watched, close, normed, ready, same, same_record, simulate, toy
from safetensors.torch import load

from fedkin import methods
from fedkin.base import streams
from fedkin.base.round import Round
from fedkin.base.state import State
from fedkin.base.task import Task
from fedkin.data.federation import Client, Federation
from fedkin.engines.assembly import Assembly
from fedkin.engines.exchange import Handed, Hello, News, Parcel, Reply, from_bytes, to_bytes
from fedkin.engines.server import Server
from fedkin.engines.simulation import server_of
from fedkin.engines.site import Site
from fedkin.runs.folder import Writer
from fedkin.studies.run import Run
from fedkin.testing import Post, by_post, one_each
from fedkin.testing.post import Side

METHODS = methods.names()
TROUBLED = {"sample": 0.7, "dropped": 0.2, "lost": 0.4, "novel": 0.25}
EIGHT = (13, 12, 9, 8, 7, 6, 5, 4)


def unlike(a: Assembly) -> list[list[int]]:
    """Three sites, whose clients do not follow each other."""
    everyone = list(range(len(a.problem)))
    return [each for each in (everyone[::3], everyone[1::3], everyone[2::3]) if each]


def settings(method: str, participation: dict[str, float]) -> dict[str, Any]:
    small = {"hidden": 6, "embedding": 3} if method.startswith(("panacea", "pfedhn")) else {}
    if method == "pfedhn":
        small = {"hidden": 6}
    return {"method": method, "participation": participation, "settings": small, "data": {"validation": 0.2}}


def agree(post: Post, run: Watched, exact: bool) -> None:
    """The same lines, server and memories: bit by bit, or to 1e-9."""
    ours, theirs = Run(post.writer.path).rounds, Run(run.writer.path).rounds
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        if exact:
            assert same_record(dict(one), dict(other))
        else:
            assert one.models.keys() == other.models.keys() and one.participants == other.participants
            for name, scores in one.models.items():
                assert scores.clients == pytest.approx(other.models[name].clients, abs=1e-9, nan_ok=True)
    for name, tensor in run.server.state.items():
        found = dict(post.server.state.items())[name]
        assert same(found, tensor) if exact else close(found.double(), tensor.double())
    for site in post.sites:
        for name, rows in run.memory.items():
            own = dict(site.memory.items())[name]
            wanted = rows[site.clients]
            assert same(own, wanted) if exact else close(own.double(), wanted.double())


@pytest.mark.parametrize("participation", [{}, TROUBLED], ids=["quiet", "troubled"])
@pytest.mark.parametrize("method", METHODS)
def test_one_site_by_post_is_the_simulation_bit_for_bit(
    tmp_path: Path, method: str, participation: dict[str, float]
) -> None:
    federation = toy(EIGHT, (0, 1, 0, 1, 0, 1, 0, 1))
    run = simulate(tmp_path, federation, **settings(method, participation))
    a = ready(federation, **settings(method, participation))
    post = by_post(a, tmp_path, [list(range(len(a.problem)))])
    assert post.letters > 3
    agree(post, run, exact=ON_CPU)


@pytest.mark.parametrize("participation", [{}, TROUBLED], ids=["quiet", "troubled"])
@pytest.mark.parametrize("method", METHODS)
def test_a_site_for_each_client_comes_to_the_same(tmp_path: Path, method: str, participation: dict[str, float]) -> None:
    federation = toy(EIGHT, (0, 1, 0, 1, 0, 1, 0, 1))
    run = simulate(tmp_path, federation, **settings(method, participation))
    a = ready(federation, **settings(method, participation))
    for number, sites in enumerate((one_each(a), unlike(a))):
        (tmp_path / str(number)).mkdir()
        post = by_post(a, tmp_path / str(number), sites)
        agree(post, run, exact=False)


@pytest.mark.parametrize("side", ["server", "sites", "both"])
@pytest.mark.parametrize("method", METHODS)
def test_either_side_may_come_up_anew(tmp_path: Path, method: str, side: Side) -> None:
    federation = toy(EIGHT, (0, 1, 0, 1, 0, 1, 0, 1))
    run = simulate(tmp_path, federation, **settings(method, TROUBLED))
    a = ready(federation, **settings(method, TROUBLED))
    post = by_post(a, tmp_path, unlike(a), again_after=2, side=side)
    agree(post, run, exact=False)


@pytest.mark.parametrize("side", ["server", "sites", "both"])
def test_a_kept_optimiser_and_chosen_rounds_come_up_anew_too(tmp_path: Path, side: Side) -> None:
    own: dict[str, Any] = {
        **settings("fedamp", {"dropped": 0.3, "lost": 0.4}),
        "local": {"optimiser": "sgd", "momentum": 0.9, "persist_optimiser": True, "lr": 0.01},
        "patience": 3,
        "rounds": 6,
    }
    federation = toy(EIGHT, (0, 1, 0, 1, 0, 1, 0, 1))
    run = simulate(tmp_path, federation, **own)
    a = ready(federation, **own)
    post = by_post(a, tmp_path, unlike(a), again_after=2, side=side)
    agree(post, run, exact=False)
    handed = {path.stem: path for i in range(3) for path in (tmp_path / f"site-{i}" / "models").glob("*.safetensors")}
    theirs = sorted((run.writer.path / "models").glob("*.safetensors"))
    assert sorted(handed) == [path.stem for path in theirs]
    for path in theirs:
        for name, tensor in load(path.read_bytes()).items():
            assert close(load(handed[path.stem].read_bytes())[name].double(), tensor.double(), 1e-6)


def test_running_statistics_pass_too(tmp_path: Path) -> None:
    own = {**settings("fedamp", TROUBLED), "model": normed}
    federation = toy(EIGHT)
    run = simulate(tmp_path, federation, **own)
    a = ready(federation, **own)
    post = by_post(a, tmp_path, one_each(a))
    agree(post, run, exact=False)


def pictures(shape: tuple[int, int, int]) -> Federation:
    """Three clients with a few pictures each."""
    members = []
    for name, n in (("a", 9), ("b", 7), ("c", 4)):
        x = torch.randn(n + 4, *shape, generator=streams.generator("picture", name), dtype=torch.float64)
        y = torch.arange(n + 4) % 3
        members.append(Client(name, (x[:n], y[:n]), (x[n:], y[n:])))
    return Federation("pictures", tuple(members), Task.classification(shape, 3))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedamp", "scaffold"])
@pytest.mark.parametrize(
    ("model", "shape"),
    [({"name": "cnn"}, (1, 28, 28)), ({"name": "resnet18"}, (3, 16, 16))],
    ids=["CNN", "ResNet with BatchNorm"],
)
def test_large_models_by_post(tmp_path: Path, model: dict[str, Any], shape: tuple[int, int, int], method: str) -> None:
    """To rounding: with as many clients at a time as there are, bit for bit."""
    own: dict[str, Any] = {"method": method, "model": model, "rounds": 2, "local": {"epochs": 1, "lr": 0.01}}
    federation = pictures(shape)
    run = simulate(tmp_path, federation, **own)
    a = ready(federation, **own)
    whole = Post(a, tmp_path / "whole", [[0, 1, 2]])
    whole.run()
    agree(whole, run, exact=ON_CPU)
    post = Post(a, tmp_path / "apart", one_each(a))
    post.run()
    agree(post, run, exact=False)


# ---- letters ----


def test_what_passes_comes_out_as_it_went_in() -> None:
    found = {"test": {"cloud": torch.tensor([0.5, float("nan")])}, "validation": {}, "losses": {}}
    letters = [
        Hello([0, 2], torch.tensor([3, 4]), torch.tensor([3.0, 1.0]), torch.tensor([0.1, 0.2]), found),
        Parcel(
            Round(3, 10),
            State({"c": torch.ones(2)}, u=torch.rand(2, 3)),
            [0, 2],
            [2],
            [0, 2],
            bounds=(1.0, float("inf")),
        ),
        Reply(
            [2], State(W=torch.rand(1, 3)), torch.tensor([0.3]), [True], [0, 2], found, 5, 7, handed=Handed([2], [0])
        ),
        News({0: 3, 2: 1}, ("cloud",)),
    ]
    for letter in letters:
        again = from_bytes(to_bytes(letter))
        assert type(again) is type(letter)
        assert to_bytes(again) == to_bytes(letter)
    parcel = from_bytes(to_bytes(letters[1]))
    assert parcel.message.shared == {"c"} and parcel.round == Round(3, 10) and parcel.bounds == (1.0, float("inf"))
    news = from_bytes(to_bytes(letters[3]))
    assert news.held == {0: 3, 2: 1}


def test_a_round_at_a_site_has_no_seed_of_the_server() -> None:
    parcel = from_bytes(to_bytes(Parcel(Round(3, 10, 7), State(), [], [], [])))
    assert parcel.round.seed is None


def test_a_site_is_asked_for_its_own_clients_alone(tmp_path: Path) -> None:
    a = ready(toy(EIGHT), method="fedavg")
    site = Site(a, [0, 1], Writer.create(tmp_path / "site", a.config))
    site.enlist()
    with pytest.raises(ValueError, match="client 2, which is not at this site"):
        next(site.answer(Parcel(Round(1, 3), State({"w": a.problem.initial}), [2], [2], [2], bounds=(1.0,))))


def test_the_server_sees_no_data(tmp_path: Path) -> None:
    """It can be made, and can run, of what an assembly has without its samples."""
    from dataclasses import replace

    federation = toy(EIGHT)
    a = ready(federation, method="fedamp")
    post = Post(a, tmp_path, one_each(a))
    gone: Any = None
    post.server = server_of(replace(a, cohort=gone, test=gone, execution=gone), post.writer)
    post.run()
    run = simulate(tmp_path, federation, method="fedamp")
    agree(post, run, exact=False)


def test_a_parcel_is_cut_by_clients() -> None:
    message = State({"c": torch.ones(2)}, u=torch.arange(6.0).view(3, 2))
    parcel = Parcel(Round(1, 3), message, [1, 4, 6], [4, 6], [1, 6], bounds=(1.0, 2.0, 3.0))
    part = parcel.of([6, 1])
    assert (part.clients, part.train, part.score, part.bounds) == ([1, 6], [6], [1, 6], (1.0, 3.0))
    assert torch.equal(part.message.u, message.u[[0, 2]]) and "c" in part.message.shared
    assert parcel.bytes == 3 * (8 + 8)
    assert isinstance(Server, type)
