"""Which graph a run looks at, and graphs from attention: inferred once, before round 1, kept with the run, and without
a word from those who come later."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import BASE, same, toy
from torch import Tensor

import fedkin
from fedkin.base.round import Round
from fedkin.base.settings import ConfigError
from fedkin.base.state import State
from fedkin.data import graphs
from fedkin.data.federation import Federation
from fedkin.engines import inferred_graph, start
from fedkin.engines.assembly import Assembly
from fedkin.engines.simulation import Diverged, Interrupted, Listener, MethodError
from fedkin.methods.sfl import SFL
from fedkin.runs.config import merge
from fedkin.runs.folder import RunError
from fedkin.studies import plan
from fedkin.studies.run import Run
from fedkin.studies.supply import Supply

SIZES = (40, 38, 36, 34, 32, 30)
GROUPS = (0, 1, 0, 1, 0, 1)
NAMES = tuple("abcdef")


class Other(SFL):
    """Another method that looks at the graph."""


class Broken(SFL):
    """One that sends nothing to anybody."""

    def download(self, problem: Any, server: Any, clients: Tensor, round: Round) -> State:
        return State(u=server.U[:0])


OTHER = f"{__name__}:Other"
TABLE = merge(BASE, {"method": "sfl", "graph": {"infer_rounds": 2, "top": 2}})


def ready(federation: Federation | None = None, source: str | None = None, **settings: Any) -> Assembly:
    table = merge(TABLE, settings if source is None else merge(settings, {"graph": {"source": source}}))
    return start.prepare(table, federation=toy(SIZES, GROUPS) if federation is None else federation)


def related(assembly: Assembly) -> Tensor:
    """The graph of a problem, in the order of the clients' names."""
    graph, names = assembly.problem.graph, assembly.problem.names
    assert graph is not None
    at = [names.index(name) for name in sorted(names)]
    return graph[at][:, at].cpu()


@pytest.fixture
def inferences(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The configurations under which attention was worked out, as they come."""
    begun: list[str] = []
    plain = inferred_graph.Simulation

    class Counted(plain):  # type: ignore[valid-type,misc]
        def __init__(self, assembly: Assembly, *rest: Any) -> None:
            begun.append(f"{assembly.config.method}, seed {assembly.config.seed}")
            super().__init__(assembly, *rest)

    monkeypatch.setattr(inferred_graph, "Simulation", Counted)
    yield begun


# ---- which graph ----

OWN = torch.tensor([[0.0, 3, 0, 0, 0, 1], [3, 0, 0, 0, 2, 0], [0, 0, 0, 1, 0, 0]] + [[0.0] * 6] * 3)
OWN = torch.maximum(OWN, OWN.T)


def test_the_federations_own_graph_is_given_in_the_precision_of_the_run():
    found = ready(toy(SIZES, GROUPS).with_graph(OWN, order=NAMES))
    assert found.problem.graph is not None
    assert found.problem.graph.dtype == torch.float64
    assert torch.equal(related(found), OWN.double())


def test_without_one_edges_are_drawn_by_the_known_groups_and_the_splits_seed():
    settings = {"seed": 5, "split_seed": 2, "graph": {"inside": 0.7, "across": 0.2}}
    drawn = graphs.of_groups(GROUPS, NAMES, 0.7, 0.2, seed=2)
    assert torch.equal(related(ready(**settings)), drawn.double())
    assert not torch.equal(related(ready(**{**settings, "split_seed": 3})), drawn.double())
    given = toy(SIZES, GROUPS).with_graph(OWN, order=NAMES)
    assert torch.equal(related(ready(given, "groups", **settings)), drawn.double()), "on request in place of its own"


def test_digits_in_groups_have_a_graph_by_default():
    found = start.prepare(method="sfl", data={"name": "digits", "split": "practical"})
    groups, graph = found.problem.groups, found.problem.graph
    assert groups is not None and graph is not None
    kin = groups[:, None] == groups
    assert 0.4 < float(graph[kin.clone().fill_diagonal_(False)].mean()) < 0.8
    assert float(graph[~kin].mean()) < 0.12


def test_the_controls():
    given = toy(SIZES, GROUPS).with_graph(OWN, order=NAMES)
    assert torch.equal(related(ready(given, "empty")), torch.zeros(6, 6).double())
    assert torch.equal(related(ready(given, "complete")), graphs.complete(6).double())
    permuted = related(ready(given, "permuted"))
    assert torch.equal(permuted, graphs.permuted(OWN, NAMES, 0).double())
    assert sorted(permuted.flatten().tolist()) == sorted(OWN.flatten().tolist())
    drawn = graphs.of_groups(GROUPS, NAMES, 0.6, 0.05, seed=0)
    assert torch.equal(related(ready(source="permuted")), graphs.permuted(drawn, NAMES, 0).double())


def test_a_file_is_found_from_anywhere(tmp_path, monkeypatch):
    (tmp_path / "edges.csv").write_text("source,target\na,f\nb,c\n")
    monkeypatch.chdir(tmp_path)
    found = ready(source="edges.csv")
    assert Path(found.config.graph.source) == tmp_path / "edges.csv"
    assert related(found).nonzero().tolist() == [[0, 5], [1, 2], [2, 1], [5, 0]]
    assert any("2 of 6 clients have no edge" in said for said in found.warnings)
    monkeypatch.chdir("/")
    assert torch.equal(related(ready(source=found.config.graph.source)), related(found))


def test_newcomers_are_in_the_whole_graph_and_not_in_the_one_that_is_trained_on():
    given = toy(SIZES, GROUPS).with_graph(OWN, order=NAMES)
    found = ready(given, participation={"novel": 0.34})
    assert found.problem.known == 4
    assert torch.equal(related(found), OWN.double())
    known = found.known_problem()
    at = [NAMES.index(name) for name in known.names]
    assert known.graph is not None
    assert torch.equal(known.graph.cpu(), OWN.double()[at][:, at])


@pytest.mark.parametrize(
    ("federation", "source", "said"),
    [
        (toy(SIZES, GROUPS), "grupos", "There is no graph 'grupos'. Did you mean 'groups'"),
        (toy(SIZES, GROUPS), "graph.txt", "a file that ends in .csv"),
        (toy(SIZES, GROUPS), "", "There is no graph ''"),
        (toy(SIZES), "groups", "here they are not known"),
        (toy(SIZES), "permuted", "here there is none"),
        (toy(SIZES), "given", "--graph inferred"),
        (toy(SIZES, GROUPS), "none", "--graph inferred"),
    ],
)
def test_a_graph_that_cannot_be_had_is_refused(federation, source, said):
    with pytest.raises(ConfigError) as caught:
        ready(federation, source)
    assert said in str(caught.value)


def test_a_file_of_other_clients_is_refused(tmp_path):
    (tmp_path / "edges.csv").write_text("source,target\na,g\n")
    with pytest.raises(graphs.GraphError, match="edges.csv, line 2: 'g' in the graph is no client"):
        ready(source=str(tmp_path / "edges.csv"))


def test_methods_that_look_at_no_graph_get_none_drawn_and_read_no_file():
    for source in ("given", "inferred", "groups", "nowhere.csv"):
        assert ready(source=source, method="fedavg").problem.graph is None
    with pytest.raises(ConfigError, match="There is no graph 'nonsense'"):
        ready(source="nonsense", method="fedavg")


def test_the_command_refuses_a_wrong_word_with_a_sentence(command, capsys, tmp_path):
    words = ["run", "--method", "panacea", "--data", "digits", "--graph", "nonsense", "--out", tmp_path / "run"]
    assert command(*words) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    assert printed.err.startswith("fedkin: There is no graph 'nonsense'.")
    assert not (tmp_path / "run").exists()


# ---- attention ----


def plain_attention(folder: Path, by: str, federation: Federation, **settings: Any) -> Tensor:
    """xi at the end of an ordinary run, in float32, as it is on disk."""
    table = merge(merge(TABLE, {"method": by, "rounds": 2}), settings)
    run = fedkin.run(table, federation=federation, out=folder)
    found = run.collaboration(3)
    assert found is not None
    return torch.from_numpy(found)


@pytest.mark.parametrize("by", ["heurfedamp", "fedamp"])
def test_attention_is_that_of_an_ordinary_run_on_the_same_lies_with_the_same_absences(by, tmp_path):
    federation = toy(SIZES, GROUPS)
    settings: dict[str, Any] = {
        "seed": 3,
        "corruption": {"labels": 0.6, "clients": 0.5, "kind": "dirty"},
        "participation": {"sample": 0.7, "lost": 0.1},
        "data": {"validation": 0.1},
    }
    expected = plain_attention(tmp_path / by, by, federation, **settings)
    found = inferred_graph.attention(ready(federation, "inferred", **settings, graph={"infer_by": by}))
    assert same(found.float(), expected)
    other = inferred_graph.attention(ready(federation, "inferred", **{**settings, "seed": 4}, graph={"infer_by": by}))
    assert not same(other.float(), expected)


def test_those_who_label_alike_are_found(tmp_path):
    federation = toy((60,) * 6, GROUPS)
    run = fedkin.run(merge(TABLE, {"graph": {"source": "inferred", "infer_rounds": 5}}), federation=federation,
                     out=tmp_path / "run")  # fmt: skip
    groups = [GROUPS[NAMES.index(name)] for name in run.summary["clients"]]
    kin = np.equal.outer(groups, groups) & ~np.eye(6, dtype=bool)
    assert run.graph is not None
    assert np.array_equal(run.graph > 0, kin)


# ---- with a run ----


def inferring(**settings: Any) -> dict[str, Any]:
    return merge(merge(TABLE, {"graph": {"source": "inferred"}}), settings)


def test_who_resembles_nobody_has_no_edges(tmp_path):
    """Before, a loner's flat attention gave it as many edges as anyone."""
    world = {"name": "digits", "split": "mixed", "clients": 11, "agreeing": 6, "relabelled": 4, "lone": 1}
    settings = {"method": "panacea", "data": world, "graph": {"source": "inferred"}, "local": {"lr": 0.01}}
    run = fedkin.run(settings, rounds=1, out=tmp_path / "run")
    graph = run.graph
    names = list(run.summary.clients)
    loner = names.index("silo-10")
    assert graph is not None and not graph[loner].any() and not graph[:, loner].any()
    assert (graph.sum(1) > 0).sum() == 10, "all others have kin"


def test_nothing_is_inferred_before_a_run_begins(inferences):
    found = ready(source="inferred")
    assert found.infers
    assert related(found).count_nonzero() == 0
    objects: dict[str, Any] = {"federation": toy(SIZES, GROUPS)}
    plan.seeds_together(plan.compared(inferring(), ["sfl", OTHER], 3, Path("nowhere"), objects), Supply(objects))
    assert inferences == []


def test_a_run_keeps_its_graph_and_one_without_a_use_for_it_none(tmp_path, inferences):
    federation = toy(SIZES, GROUPS)
    run = fedkin.run(inferring(), federation=federation, out=tmp_path / "run")
    assert inferences == ["heurfedamp, seed 0"]
    assert run.resolved().graph.source == "inferred"
    expected = inferred_graph.graph(ready(federation, "inferred"))
    assert run.graph is not None
    assert np.array_equal(run.graph, expected.cpu().numpy())
    again = ready(federation, str(run.path / "graph.npz"))
    assert torch.equal(again.problem.graph, expected.to(again.problem.graph)), "it is a file that --graph takes"
    given = fedkin.run(TABLE, federation=federation.with_graph(OWN, order=NAMES), out=tmp_path / "given")
    at = [NAMES.index(name) for name in given.summary["clients"]]
    assert given.graph is not None
    assert np.array_equal(given.graph, OWN[at][:, at].numpy())
    blind = fedkin.run(inferring(method="fedavg"), federation=federation, out=tmp_path / "blind")
    assert blind.graph is None and not (blind.path / "graph.npz").exists()


def test_what_is_trained_on_is_what_was_inferred(tmp_path):
    federation = toy(SIZES, GROUPS)
    inferred = fedkin.run(inferring(), federation=federation, out=tmp_path / "inferred")
    same = fedkin.run(
        merge(TABLE, {"graph": {"source": str(inferred.path / "graph.npz")}}),
        federation=federation,
        out=tmp_path / "same",
    )
    empty = fedkin.run(merge(TABLE, {"graph": {"source": "empty"}}), federation=federation, out=tmp_path / "empty")
    scores = [[line["models"] for line in run.rounds] for run in (inferred, same, empty)]
    assert scores[0] == scores[1] != scores[2]


@pytest.mark.parametrize("methods", [("sfl", OTHER), (OTHER, "sfl")])
def test_a_comparison_infers_once_a_seed_whatever_the_number_of_methods(methods, tmp_path, inferences):
    federation = toy(SIZES, GROUPS)
    results = fedkin.compare(inferring(), methods=methods, seeds=2, federation=federation, out=tmp_path / "c")
    assert inferences == ["heurfedamp, seed 0", "heurfedamp, seed 1"]
    by_seed = {(run.summary["method"], run.summary["seed"]): run.graph for run in results.runs}
    assert np.array_equal(by_seed["sfl", 0], by_seed[OTHER, 0])  # type: ignore[arg-type]
    fedkin.compare(inferring(), methods=methods, seeds=2, federation=federation, out=tmp_path / "c")
    assert len(inferences) == 2, "what is complete needs nothing"
    fedkin.run(inferring(), federation=federation, out=tmp_path / "alone")
    assert len(inferences) == 3, "nothing is remembered beyond a comparison, where objects may be others"


def test_a_grid_infers_once(tmp_path, inferences):
    table = inferring(data={"validation": 0.2})
    fedkin.tune(table, grid={"settings.alpha": [0.5, 1.0]}, federation=toy(SIZES, GROUPS), out=tmp_path / "t")
    assert inferences == ["heurfedamp, seed 0"]


# ---- resuming ----


def stopping(after: int) -> Listener:
    heard: list[int] = []
    return Listener(on_round=lambda record: heard.append(record["round"]), stop=lambda: len(heard) >= after)


def lines(run: Run) -> list[Any]:
    """But for time and memory, of which a GPU has kept some since the last run."""
    return [{k: v for k, v in line.items() if k not in ("seconds", "peak_bytes")} for line in run.rounds]


def test_a_resumed_run_goes_on_with_the_graph_it_began_with(tmp_path, inferences):
    federation = toy(SIZES, GROUPS)
    whole = fedkin.run(inferring(), federation=federation, out=tmp_path / "whole")
    path = tmp_path / "cut"
    with pytest.raises(Interrupted):
        # The question is asked in the rounds of the inference too: nothing has been heard by then.
        fedkin.run(inferring(), federation=federation, out=path, listener=stopping(1))
    kept = (path / "graph.npz").read_bytes()
    assert len(inferences) == 2
    resumed = fedkin.resume(path, federation=federation)
    assert len(inferences) == 2, "it is read, not inferred anew"
    assert lines(resumed) == lines(whole)
    assert (path / "graph.npz").read_bytes() == kept


def test_a_graph_on_disk_is_what_counts(tmp_path):
    federation, settings = toy(SIZES, GROUPS), inferring(method="panacea_gn")
    path = tmp_path / "cut"
    with pytest.raises(Interrupted):
        fedkin.run(settings, federation=federation, out=path, listener=stopping(1))
    names = ready(federation, "inferred").problem.names
    np.savez(path / "graph.npz", graph=graphs.complete(6).double().numpy(), names=np.array(names))
    resumed = fedkin.resume(path, federation=federation)
    whole = fedkin.run(settings, federation=federation, out=tmp_path / "whole")
    assert lines(resumed)[0] == lines(whole)[0]
    assert lines(resumed)[1:] != lines(whole)[1:]


def test_a_run_that_was_cut_while_it_inferred_infers_again(tmp_path, inferences):
    federation = toy(SIZES, GROUPS)
    whole = fedkin.run(inferring(), federation=federation, out=tmp_path / "whole")
    path = tmp_path / "cut"
    with pytest.raises(Interrupted, match="Stopped while the graph was being inferred, before round 1."):
        fedkin.run(inferring(), federation=federation, out=path, listener=Listener(stop=lambda: True))
    assert [file.name for file in path.iterdir()] == ["config.toml"]
    resumed = fedkin.resume(path, federation=federation)
    assert lines(resumed) == lines(whole)
    assert np.array_equal(resumed.graph, whole.graph)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("content", "said"), [(b"PK", "graph.npz is damaged"), (None, "graph.npz is of 2 clients, but the run has 6")]
)
def test_a_damaged_graph_on_disk_is_refused(content, said, tmp_path):
    federation = toy(SIZES, GROUPS)
    with pytest.raises(Interrupted):
        fedkin.run(inferring(), federation=federation, out=tmp_path / "cut", listener=stopping(1))
    file = tmp_path / "cut" / "graph.npz"
    file.unlink()
    if content is None:
        np.savez(file, graph=np.zeros((2, 2)))
    else:
        file.write_bytes(content)
    with pytest.raises(RunError, match=said):
        fedkin.resume(tmp_path / "cut", federation=federation)


def test_an_inference_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    def fail(*_: Any) -> Tensor:
        raise fedkin.FedkinError("No room.")

    monkeypatch.setattr(inferred_graph, "attention", fail)
    with pytest.raises(fedkin.FedkinError, match="No room"):
        fedkin.run(inferring(), federation=toy(SIZES, GROUPS), out=tmp_path / "made" / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_method_that_fails_at_once_leaves_no_graph_behind(tmp_path):
    with pytest.raises(MethodError):
        fedkin.run(inferring(method=f"{__name__}:Broken"), federation=toy(SIZES, GROUPS), out=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_training_that_diverges_while_inferring_is_told_and_leaves_a_client_alone(tmp_path):
    federation = toy(SIZES, GROUPS)
    x, y = federation.clients[2].train
    members = list(federation.clients)
    members[2] = replace(members[2], train=(torch.full_like(x, 1e308), y))
    told: list[str] = []
    run_federation = replace(federation, clients=tuple(members))
    run = fedkin.run(
        inferring(),
        federation=run_federation,
        out=tmp_path / "run",
        listener=Listener(on_warning=told.append),
    )
    assert any(said.startswith("While the graph was inferred: Round 1: the training of client 'c'") for said in told)
    assert run.graph is not None
    assert not run.graph[run.summary["clients"].index("c")].any()
    strict = tmp_path / "strict"
    with pytest.raises(Diverged, match="Round 1: the training of client 'c'"):
        fedkin.run(inferring(on_divergence="stop"), federation=run_federation, out=strict)
    assert (strict / "graph.npz").exists(), "the run itself stopped, not the inference"


# ---- newcomers ----


def with_other_data(federation: Federation, names: Sequence[str]) -> Federation:
    """The same clients, but for the training data of some."""
    members = [
        replace(c, train=(-c.train[0].flip(0), c.train[1])) if c.name in names else c for c in federation.clients
    ]
    return replace(federation, clients=tuple(members))


def test_who_comes_later_has_no_say_in_who_is_related_among_the_known(tmp_path):
    federation = toy((40,) * 9, [i % 3 for i in range(9)])
    settings = inferring(participation={"novel": 0.34}, graph={"infer_rounds": 3})
    found = start.prepare(settings, federation=federation)
    known, newcomers = found.problem.known, found.problem.names[found.problem.known :]
    assert len(newcomers) == 3
    graph = inferred_graph.graph(found)
    moved = with_other_data(federation, newcomers)
    other = inferred_graph.graph(start.prepare(settings, federation=moved))
    assert torch.equal(graph[:known, :known], other[:known, :known])
    assert not torch.equal(graph, other), "their own edges follow from their data"
    assert not graph[known:, known:].any(), "newcomers are not related to each other"
    assert bool((graph[known:, :known].sum(1) >= 1).all())
    of_known = with_other_data(federation, found.problem.names[:2])
    assert not torch.equal(
        inferred_graph.graph(start.prepare(settings, federation=of_known))[:known, :known], graph[:known, :known]
    )
    run = fedkin.run(settings, federation=federation, out=tmp_path / "run")
    assert run.graph is not None
    assert np.array_equal(run.graph, graph.cpu().numpy())
    with np.load(run.path / "graph.npz", allow_pickle=False) as file:
        assert file["names"].tolist() == [*run.summary["clients"], *run.summary["novel"]["clients"]]


@pytest.mark.parametrize("top", [1, 2, 5])
def test_newcomers_are_told_from_the_known(top, monkeypatch):
    found = ready(source="inferred", participation={"novel": 0.34}, graph={"top": top})
    xi = torch.rand(6, 6, generator=torch.Generator().manual_seed(top))
    xi[4:, 0] += 9  # both newcomers have client 0 in mind
    monkeypatch.setattr(inferred_graph, "attention", lambda *_: xi)
    assert found.problem.known == 4
    assert torch.equal(inferred_graph.graph(found)[:4, :4], graphs.from_collaboration(xi[:4, :4], top))


def test_newcomers_find_their_kin():
    federation = toy((80,) * 9, [i % 3 for i in range(9)])
    found = start.prepare(
        inferring(participation={"novel": 0.34}, graph={"infer_rounds": 5}, local={"lr": 0.05}), federation=federation
    )
    graph, groups = inferred_graph.graph(found), found.problem.groups
    assert groups is not None
    new = found.problem.known
    inside = (graph[new:, :new] * (groups[new:, None] == groups[:new])).sum() / graph[new:, :new].sum()
    assert float(inside) > 0.7  # a third by chance
