"""Reports and comparisons of run folders that are made by hand here, so no training is needed."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_runs import LEVEL, MODELS, Folder, answered, make, several, welcomed

from fedkin import report
from fedkin.evidence import comparison
from fedkin.evidence.estimates import Estimate
from fedkin.evidence.findings import Findings
from fedkin.evidence.newcomers import Spread
from fedkin.report import figures, graph, paper, words


class Page(HTMLParser):
    """The page's elements: what is open, attributes, data blocks and text outside scripts."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.blocks: dict[str, Any] = {}
        self.words = ""
        self.feed(self.source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)
        if tag == "script" and "type" not in dict(attrs):
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["script"]:
            self.words += "" if self.open[-1:] == ["style"] else f"{data} "
        elif "type" in self.tags[-1][1]:
            self.blocks[str(self.tags[-1][1]["id"])] = json.loads(data)
        else:
            self.scripts[-1] += data

    @property
    def text(self) -> str:
        return " ".join(self.words.split())


def values(array: Any) -> np.ndarray:
    """A plotly array, which is a list or base64."""
    if not isinstance(array, dict):
        return np.array(array)
    flat = np.frombuffer(base64.b64decode(array["bdata"]), dtype=array["dtype"])
    return flat.reshape([int(n) for n in array["shape"].split(",")]) if "shape" in array else flat


def test_t19_the_two_deviations_are_over_clients_and_over_seeds(tmp_path: Path) -> None:
    first, second = [[0.2, 0.2], [0.4, 0.8]], [[0.7, 0.9], [0.1, 0.1]]
    common: dict[str, Any] = {"rounds": 1, "clients": ["a", "b"], "groups": [0, 1]}
    tables = [{"personal": first}, {"personal": second}]
    runs = [make(tmp_path / str(k), "separate", k, vectors=table, **common) for k, table in enumerate(tables)]
    (row,) = Findings(runs).rows
    assert (row.name, row.headline, row.seeds) == ("separate:personal", True, (0, 1))
    assert row.bmta == pytest.approx(0.7)  # best rounds: 0.6 and 0.8
    assert row.score == row.validated == pytest.approx(0.35)  # one client with validation data chooses no other round
    assert row.std_clients == pytest.approx((0.2 + 0.0) / 2)
    assert row.std_seeds == pytest.approx(0.5 / 2**0.5)
    assert row.worst == pytest.approx((0.4 + 0.1) / 2)
    assert row.last == pytest.approx((0.6 + 0.1) / 2)
    assert Findings(runs[:1]).rows[0].std_seeds is None


def test_rows_put_headlines_first_and_the_best_on_top_and_ignore_newcomers(tmp_path: Path) -> None:
    for metric in ("accuracy", "mse"):
        table = Findings(several(tmp_path / metric, list(LEVEL), [0, 1], metric=metric)).rows
        assert {row.method for row in table[:2]} == {"fedamp", "heurfedamp"}, "a hundredth apart"
        assert [row.method for row in table[2:4]] == ["fedavg", "separate"]
        scores = [row.score for row in table[:4]]
        assert scores == sorted(scores, reverse=metric == "accuracy")
        assert [row.headline for row in table] == [True] * 4 + [False] * 3
        for row in table:
            assert row.validated is not None
            optimism = row.bmta - row.validated if metric == "accuracy" else row.validated - row.bmta
            assert optimism >= 0
            assert row.bmta != pytest.approx(0.99, abs=1e-3)


def test_everything_stands_on_the_round_that_validation_data_choose(tmp_path: Path) -> None:
    """The best test round flatters one method by thirty points; on the honest one it is the worse for every client."""
    names = [f"silo-{i}" for i in range(8)]
    common: dict[str, Any] = {"rounds": 2, "clients": names, "groups": [0] * 8}

    def run(method: str, scores: list[float], validation: list[float]) -> Folder:
        own = {model: [[score] * 8 for score in scores] for model in MODELS[method]}
        made = make(tmp_path / method, method, vectors=own, **common)
        lines = [json.loads(line) for line in (made.path / "rounds.jsonl").read_text().splitlines()]
        for line, value in zip(lines, validation, strict=False):
            for model in line["models"].values():
                model["validation"] = {"mean": value, "clients": [value] * 8}
        (made.path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return made

    lucky = run("fedamp", [0.9, 0.6, 0.5], [0.1, 0.3, 0.2])
    steady = run("separate", [0.7, 0.7, 0.65], [0.1, 0.3, 0.2])
    found = Findings([lucky, steady])
    first, second = found.headlines
    assert (first.name, first.score, first.bmta) == ("separate:personal", pytest.approx(0.7), pytest.approx(0.7))
    assert (second.name, second.score, second.bmta) == ("fedamp:cloud", pytest.approx(0.6), pytest.approx(0.9))
    assert second.last == pytest.approx(0.5)
    (pair,) = found.tests()
    assert (pair.first, pair.result.wins, pair.result.losses) == ("separate:personal", 8, 0)
    assert {name: len(worse) for name, worse in found.worse_than_alone.items()} == {"fedamp:cloud": 8}
    assert set(found.clients(second).values()) == {0.6}
    lead, *_ = words.finding(found)
    chosen = "a mean test accuracy of 70.0 % in the round chosen on validation data"
    assert lead.startswith(f"Training alone does best: {chosen}, 10.0 points above fedamp (60.0 %), more than chance")
    page = Page(report.write_report(found, tmp_path / "report.html"))
    assert "Best mean accuracy 70.0 % separate:personal" in page.text and "Lost by joining 10.0 points" in page.text
    assert "best test round" in page.text and "flatters some rows more than others" in page.text
    for made in (lucky, steady):
        lines = [json.loads(line) for line in (made.path / "rounds.jsonl").read_text().splitlines()]
        for line in lines:
            for model in line["models"].values():
                model["validation"] = None
        (made.path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = Findings([Folder(lucky.path), Folder(steady.path)])
    assert [(row.score, row.validated) for row in found.headlines] == [(pytest.approx(0.65), None), (0.5, None)]
    assert "65.0 % in the last round, 15.0 points above fedamp" in words.finding(found)[0]


def test_pairs_are_clients_and_their_seeds_are_averaged_first(tmp_path: Path) -> None:
    runs = several(tmp_path, ["separate", "fedavg", "fedamp"], [0, 1])
    pairs = Findings([*runs[:5], make(tmp_path / "more", "fedamp", 7)]).tests()
    assert [(pair.first, pair.second) for pair in pairs] == [
        ("fedamp:cloud", "fedavg:global"),
        ("fedamp:cloud", "separate:personal"),
        ("fedavg:global", "separate:personal"),
    ]
    assert [pair.seeds for pair in pairs] == [(0,), (0,), (0, 1)]
    assert [pair.result.pairs for pair in pairs] == [10, 10, 10]
    assert all(pair.p is not None and pair.p >= pair.result.two_sided for pair in pairs)
    separate, fedavg = (
        [seed.at_chosen for row in Findings(runs).rows if row.name == name for seed in Findings(runs).seeds(row)[:2]]
        for name in ("separate:personal", "fedavg:global")
    )
    means = [{n: np.mean([seed[n] for seed in each]) for n in each[0]} for each in (fedavg, separate)]
    assert pairs[2].result.wins == sum(means[0][n] > means[1][n] for n in means[0])
    against = Findings(runs).tests("fedavg")
    assert [(pair.first, pair.second) for pair in against] == [
        ("fedavg:global", "fedamp:cloud"),
        ("fedavg:global", "separate:personal"),
    ]
    both = {frozenset((pair.first, pair.second)): pair.p for pair in Findings(runs).tests()}
    assert all(pair.p == both[frozenset((pair.first, pair.second))] for pair in against), "one family, one p-value"
    with pytest.raises(ValueError, match="no row 'fedprox'"):
        Findings(runs).tests("fedprox")


def test_a_method_that_ends_without_a_finite_score_comes_last(tmp_path: Path) -> None:
    names = ["a", "b"]
    common: dict[str, Any] = {"rounds": 1, "clients": names, "groups": [0, 0], "validation": False}
    fine = make(tmp_path / "s", "separate", vectors={"personal": [[0.5, 0.5]] * 2}, **common)
    lost = make(tmp_path / "j", vectors=dict.fromkeys(MODELS["fedamp"], [[0.9, 0.9]] * 2), **common)
    path = lost.path / "rounds.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for model in lines[1]["models"].values():
        model["clients"] = [None, None]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for order in ([fine, lost], [lost, fine]):
        found = Findings(order)
        assert [row.method for row in found.headlines] == ["separate", "fedamp"]
        assert words.finding(found)[0].endswith("50.0 % in the last round; fedamp has no finite score there.")


def test_more_seeds_of_the_same_clients_are_no_more_clients(tmp_path: Path) -> None:
    """Three seeds that say the same of eight clients say no more than one."""
    names = [f"silo-{i}" for i in range(8)]
    common: dict[str, Any] = {"rounds": 1, "clients": names, "groups": [0] * 8}
    scores = {"separate": [0.5] * 8, "fedamp": [0.6] * 6 + [0.45] * 2}

    def runs(seeds: int) -> list[Folder]:
        return [
            make(
                tmp_path / f"{seeds}-{method}-{s}",
                method,
                s,
                vectors=dict.fromkeys(MODELS[method], [own] * 2),
                **common,
            )
            for method, own in scores.items()
            for s in range(seeds)
        ]

    (once,), (thrice,) = Findings(runs(1)).tests(), Findings(runs(3)).tests()
    assert thrice.seeds == (0, 1, 2) and once.p == thrice.p


def test_five_clients_are_too_few_for_a_test_and_six_are_not(tmp_path: Path) -> None:
    for count in (5, 6):
        names = [f"silo-{i}" for i in range(count)]
        common: dict[str, Any] = {"rounds": 1, "clients": names, "groups": [0] * count}
        better = [[0.6 + 0.01 * i for i in range(count)]] * 2
        runs = [
            make(tmp_path / f"s{count}", "separate", vectors={"personal": [[0.5] * count] * 2}, **common),
            make(tmp_path / f"j{count}", vectors={"cloud": better, "personal": better}, **common),
        ]
        page = Page(report.write_report(runs, tmp_path / "report.html"))
        (pair,) = Findings(runs).tests()
        if count == 5:
            assert pair.p is None and pair.result.wins == 5
            assert "whether that is more than chance, 5 clients cannot tell" in page.text
            assert "5 clients are too few for a test, which needs 6" in page.text and "p = " not in page.text
        else:
            assert pair.p is not None and pair.p < 0.05
            assert f"(p = {words.p_text(pair.p)})" in page.text


@pytest.mark.parametrize(("metric", "loser"), [("accuracy", "b"), ("mse", "a")])
def test_worse_than_alone_is_by_name_and_over_the_shared_seeds(tmp_path: Path, metric: str, loser: str) -> None:
    common: dict[str, Any] = {"rounds": 1, "groups": [0, 1], "metric": metric}
    alone = make(tmp_path / "s", "separate", clients=["a", "b"], vectors={"personal": [[0.5, 0.6]] * 2}, **common)
    vectors = {"global": [[0.4, 0.7]] * 2, "finetuned": [[0.0, 0.0]] * 2}
    joined = make(tmp_path / "j", "fedavg", clients=["b", "a"], vectors=vectors, **common)
    other = make(tmp_path / "o", "fedavg", 1, clients=["b", "a"], vectors=vectors, **common)
    expected = {"b": ("b", 0.6, 0.4), "a": ("a", 0.5, 0.7)}[loser]
    assert Findings([alone, joined, other]).worse_than_alone == {"fedavg:global": [expected]}
    assert Findings([joined]).worse_than_alone == {}
    assert Findings([alone, other]).worse_than_alone == {}


def test_runs_that_cannot_be_compared_are_refused_and_variants_told_apart(tmp_path: Path) -> None:
    run = make(tmp_path / "a", settings="sigma = 10")
    with pytest.raises(ValueError, match="Leave one of them out"):
        _ = Findings([run, make(tmp_path / "b", settings="sigma = 10")]).rows
    with pytest.raises(ValueError, match="same data, split and metric"):
        _ = Findings([run, make(tmp_path / "c", metric="mse")]).rows
    variants = [run, make(tmp_path / "d", settings="sigma = 25"), make(tmp_path / "e", seed=1, settings="sigma = 25")]
    assert {m: len(r) for m, r in comparison.by_method(variants).items()} == {
        "fedamp (sigma=10)": 1,
        "fedamp (sigma=25)": 2,
    }
    with pytest.raises(ValueError, match="no run"):
        _ = Findings([]).rows


def test_clients_are_in_order_of_group_then_name_as_people_count() -> None:
    names = ["silo-10", "silo-9", "b", "silo-1"]
    assert [names[i] for i in comparison.client_order(names, [1, 1, 1, 0])] == ["silo-1", "b", "silo-9", "silo-10"]
    assert [names[i] for i in comparison.client_order(names, None)] == ["b", "silo-1", "silo-9", "silo-10"]


def test_the_page_is_whole_and_loads_nothing(tmp_path: Path) -> None:
    runs = several(tmp_path, list(LEVEL), [0, 1, 2], rounds=8)
    page = Page(report.write_report(runs, tmp_path / "out" / "report.html", "Four methods", {"budget": "equal"}))
    assert page.open == []
    assert not [value for _, attrs in page.tags for name, value in attrs.items() if name in ("src", "href", "srcset")]
    assert "link" not in {tag for tag, _ in page.tags}
    assert "url(" not in page.source[: page.source.index("</style>")]
    assert page.source.count("plotly.js v") == 1
    policy = next(attrs["content"] for _, attrs in page.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    for script in page.scripts:
        assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy
    assert len(page.scripts) == 2
    best = Findings(runs).rows[0].method
    expected = ["Four methods", f"{best} does best", f"p against {best}", "best test round", "chosen round", "equal"]
    expected += ["± over clients", "± over seeds", "Client by client", "Who learns from whom", "torch"]
    for phrase in expected:
        assert phrase in page.text


def test_the_figures_show_the_runs(tmp_path: Path) -> None:
    runs = several(tmp_path, ["separate", "fedamp"], [0, 1], rounds=8)
    page = Page(report.write_report(runs, tmp_path / "report.html"))
    lines = {trace["name"]: trace for trace in page.blocks["data-curves"]["data"] if "name" in trace}
    assert list(lines) == ["fedamp:cloud", "separate:personal", "fedamp:personal"]
    assert values(lines["fedamp:cloud"]["x"]).tolist() == list(range(1, 10))  # with the closing exchange
    means = [[line["models"]["cloud"]["mean"] for line in run.rounds[:9]] for run in runs[2:]]
    assert values(lines["fedamp:cloud"]["y"]) == pytest.approx(np.mean(means, axis=0))
    assert (lines["fedamp:personal"]["visible"], lines["fedamp:personal"]["line"]["dash"]) == ("legendonly", "dash")
    strips = {trace["name"]: trace for trace in page.blocks["data-distribution"]["data"]}
    found = Findings(runs[2:])
    scores = found.clients(found.rows[0])
    assert values(strips["fedamp:cloud"]["x"]) == pytest.approx(list(scores.values()))
    assert strips["fedamp:cloud"]["text"][3].startswith("silo-03: ")
    assert strips["fedamp:cloud"]["line"]["color"] == lines["fedamp:cloud"]["line"]["color"]
    heat = page.blocks["data-xi-0"]
    assert [step["label"] for step in heat["layout"]["sliders"][0]["steps"]] == ["1", "3", "5", "7"]
    assert values(heat["data"][1]["z"]) == pytest.approx(runs[2].collaboration(3))
    assert sorted({shape["x0"] for shape in heat["layout"]["shapes"]}) == [-0.5, 2.5, 5.5]


def test_the_heat_map_orders_clients_by_group_or_by_kin_when_groups_are_unknown(tmp_path: Path) -> None:
    names = ["d", "c", "b", "a"]
    known: Any = figures.collaboration(make(tmp_path / "a", clients=names, groups=[0, 1, 0, 1]))
    assert list(known.data[0].x) == ["b", "d", "a", "c"]
    run = make(tmp_path / "b", clients=names, groups=[0, 1, 0, 1])
    run.change(groups=None)
    found: Any = figures.collaboration(run)
    assert list(found.data[0].x) == ["b", "d", "a", "c"]
    assert {shape.line.dash for shape in found.layout.shapes} == {"dot"}
    run.change(clients=names[:3])
    with pytest.raises(ValueError, match="3 clients"):
        figures.collaboration(run)


def test_a_nasty_client_name_stays_text(tmp_path: Path) -> None:
    nasty = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;"
    names = [nasty, *(f"silo-{i}" for i in range(1, 10))]
    runs = several(tmp_path, ["separate", "fedamp"], [0], clients=names, settings="note = '<b onclick=x>'")
    page = Page(report.write_report(runs, tmp_path / "report.html", "<i>title</i>"))
    assert page.open == []
    assert "img" not in {tag for tag, _ in page.tags}
    assert len(page.scripts) == 2
    assert " ".join(nasty.split()) in page.text
    assert "<i>title</i>" in page.text
    shown = page.blocks["data-xi-0"]["data"][0]["x"][0]  # plotly reads HTML too, so there it is escaped once more
    assert shown.startswith("&lt;/script&gt;")
    assert any(text.startswith("&lt;/script") for text in page.blocks["data-distribution"]["data"][0]["text"])


def test_a_single_run_makes_a_report(tmp_path: Path) -> None:
    run = make(tmp_path / "run", validation=False)
    page = Page(report.write_report([run], run.path / "report.html"))
    assert "fedamp reaches a mean test accuracy of" in page.text
    assert "one seed only" in page.text
    assert "so everything stands on the last one" in page.text
    assert "Include the method separate" in page.text
    page = Page(report.write_report([make(tmp_path / "alone", "separate", groups=None)], tmp_path / "alone.html"))
    assert "Who learns from whom" not in page.text


def test_lower_is_better_in_words_and_numbers(tmp_path: Path) -> None:
    runs = several(tmp_path, ["separate", "fedamp"], [0, 1, 2], metric="mse")
    page = Page(report.write_report(runs, tmp_path / "report.html"))
    assert re.search(
        r"fedamp does best: a mean test MSE of 0\.0\d+ in the round chosen on validation data, 0\.0\d+ below separate",
        page.text,
    )
    assert "lower is better" in page.text
    assert "higher is better" not in page.source[: page.source.index("plotly.js v")]
    assert "Gained by joining" in page.text
    assert "%" not in words.score_text(0.01, "mse")


def test_findings_say_who_loses_by_joining_and_caveats_name_different_seeds(tmp_path: Path) -> None:
    common: dict[str, Any] = {"rounds": 1, "groups": [0, 0, 0]}
    alone = make(tmp_path / "s", "separate", vectors={"personal": [[0.5, 0.6, 0.9]] * 2}, **common)
    vectors = {"global": [[0.6, 0.7, 0.8]] * 2, "finetuned": [[0.0] * 3] * 2}
    runs = [alone, *(make(tmp_path / f"j{seed}", "fedavg", seed, vectors=vectors, **common) for seed in (0, 1))]
    lead, joining = words.finding(Findings(runs))
    best = "a mean test accuracy of 70.0 % in the round chosen on validation data"
    assert lead.startswith(f"fedavg does best: {best}, 3.3 points above separate (66.7 %)")
    assert lead.endswith("whether that is more than chance, 3 clients cannot tell.")
    assert joining == "Joining took the mean from 66.7 % alone to 70.0 % with fedavg; 1 of 3 clients did better alone."
    notes = " ".join(words.caveats(Findings(runs)))
    assert "separate: 0; fedavg: 0, 1" in notes


def joined(folder: Path, clients: list[str] | None = None) -> list[Folder]:
    """Alone, with one global model and with FedAMP: the first silo gains, the second loses, the others stay."""
    names = clients or [f"silo-{i:02d}" for i in range(4)]
    shares = {"separate": [0.3, 0.9, 0.7, 0.7], "fedavg": [0.5] * 4, "fedamp": [0.9, 0.3, 0.75, 0.7]}
    runs = several(folder, ["separate", "fedavg", "fedamp"], [0], clients=names, groups=[0, 0, 1, 1])
    return [answered(run, dict(zip(names, shares[run.summary["method"]], strict=True))) for run in runs]


def test_the_page_says_for_each_silo_whether_joining_was_worth_it(tmp_path: Path) -> None:
    page = Page(report.write_report(joined(tmp_path), tmp_path / "report.html"))
    assert page.open == []
    silos = "helped silo-00, harmed silo-01, and for silo-02 and silo-03 it cannot be told."
    assert f"Joining with fedamp {silos}" in page.text
    assert "not of a best test round" in page.text
    assert "best mean validation score" in page.text
    assert page.text.count("cannot tell: with 40 test samples the difference could be chance") == 1
    assert page.text.count("cannot tell: its 40 test samples show no difference") == 1
    assert "Silos helped 1 of 4 harmed: 1, cannot tell: 2" in page.text
    gained = r"Gained by joining 1\.[23] points fedamp, mean of the models handed out"  # of +60, −60, +5 and 0: 1.25
    assert re.search(gained, page.text)
    row = page.text[page.text.index("silo-00 40") :]
    assert row.startswith("silo-00 40 30.0 % (18–45) 50.0 % (35–65) 90.0 % (77–96) +60.0 (+")
    assert "handed out gain" not in page.text and "global fedamp:cloud gain" in page.text  # all have the same
    assert "Joining took the mean" not in page.text  # which says so of the chosen rounds
    clients = page.text[page.text.index("Client by client") :]
    assert "in the round chosen on validation data" in clients and "so signs may differ" in clients
    assert "▼ worse than alone: fed" in clients


def test_what_silos_have_with_nothing_stands_beside_and_in_the_way(tmp_path: Path) -> None:
    names = [f"silo-{i:02d}" for i in range(3)]
    shares = {"separate": [0.3, 0.3, 0.7], "fedamp": [0.9, 0.9, 0.7]}
    beside = {"majority": dict.fromkeys(names, 0.5), "linear": dict(zip(names, (0.95, 0.6, 0.8), strict=True))}
    runs = [
        answered(run, dict(zip(names, shares[run.summary["method"]], strict=True)), beside=beside)
        for run in several(tmp_path, ["separate", "fedamp"], [0], clients=names, groups=[0, 0, 1])
    ]
    page = Page(report.write_report(runs, tmp_path / "report.html"))
    assert "silo test samples majority linear alone fedamp:cloud gain worth joining?" in page.text
    rows = [page.text[page.text.index(f"{name} 40 50.0 %") :] for name in names]
    assert rows[0].startswith("silo-00 40 50.0 % 95.0 % 30.0 % (18–45) 90.0 % (77–96) +60.0")
    assert "cannot tell: a linear model of its own scores 95.0 %, which is no worse silo-01 40" in rows[0]
    assert " yes silo-02 40" in rows[1] and "Silos helped 1 of 3 harmed: 0, cannot tell: 2" in page.text
    assert page.text.count("At silo-00 joining is better for sure than the network alone, but a linear model of") == 2
    assert "the network alone is no good yardstick here" in page.text
    plain = Page(report.write_report(joined(tmp_path / "plain"), tmp_path / "plain.html"))
    assert "silo test samples alone global fedamp:cloud gain" in plain.text and "yardstick" not in plain.text


def test_the_words_on_joining_follow_the_models_handed_out_not_the_best_round(tmp_path: Path) -> None:
    names = [f"silo-{i}" for i in range(3)]
    common: dict[str, Any] = {"rounds": 1, "clients": names, "groups": [0, 0, 0]}
    alone = make(tmp_path / "s", "separate", vectors={"personal": [[0.9] * 3] * 2}, **common)
    fedamp = make(tmp_path / "j", vectors={"cloud": [[0.8] * 3] * 2, "personal": [[0.7] * 3] * 2}, **common)
    runs = [answered(alone, dict.fromkeys(names, 0.3)), answered(fedamp, dict.fromkeys(names, 0.9))]
    page = Page(report.write_report(runs, tmp_path / "report.html"))
    assert "Training alone does best" in page.text and "Joining with fedamp helped all 3 silos." in page.text
    assert "That is of the models handed out at the end" in page.text  # so the two do not contradict each other
    assert "Gained by joining 60.0 points fedamp" in page.text and "Lost by joining" not in page.text
    assert not any("Joining" in sentence for sentence in words.finding(Findings(runs)))  # said once, by the answer
    runs[1].answered = None
    page = Page(report.write_report(runs, tmp_path / "report.html"))
    assert "Lost by joining 10.0 points fedamp" in page.text and "signs may differ" not in page.text
    assert "Joining took the mean from 90.0 % alone to 80.0 % with fedamp" in page.text


def test_silos_that_are_handed_different_models_have_a_column_for_it(tmp_path: Path) -> None:
    runs = joined(tmp_path)
    outputs = runs[2].answered
    assert outputs is not None
    runs[2].answered = replace(outputs, handed=("personal", *outputs.handed[1:]))
    page = Page(report.write_report(runs, tmp_path / "report.html"))
    assert "fedamp handed out gain" in page.text
    assert "90.0 % (77–96) personal +60.0 (+" in page.text and "30.0 % (18–45) cloud −60.0 (−" in page.text


def test_the_picture_of_silos_shows_values_and_intervals(tmp_path: Path) -> None:
    page = Page(report.write_report(joined(tmp_path), tmp_path / "report.html"))
    figure = page.blocks["data-joining"]
    assert figure["layout"]["yaxis"]["ticktext"] == ["silo-01", "silo-03", "silo-02", "silo-00"]  # the largest on top
    traces = {trace["name"]: trace for trace in figure["data"] if "name" in trace}
    assert list(traces) == ["alone", "one global model", "with fedamp"]
    assert values(traces["with fedamp"]["x"]) == pytest.approx([0.3, 0.7, 0.75, 0.9])
    assert values(traces["alone"]["x"]) == pytest.approx([0.9, 0.7, 0.7, 0.3])
    low, high = 0.7695, 0.9604  # Wilson's of 36 out of 40
    whiskers = traces["with fedamp"]["error_x"]
    assert values(whiskers["arrayminus"])[-1] == pytest.approx(0.9 - low, abs=1e-3)
    assert values(whiskers["array"])[-1] == pytest.approx(high - 0.9, abs=1e-3)
    gains = [trace for trace in figure["data"] if trace.get("xaxis") == "x2"]
    assert {trace["marker"]["color"]: values(trace["x"]).round(6).tolist() for trace in gains} == {
        words.ANSWERS["yes"]: [60.0],
        words.ANSWERS["no"]: [-60.0],
        words.ANSWERS["cannot tell"]: [0.0, 5.0],
    }


def test_the_page_has_all_metrics_of_the_handed_out_models(tmp_path: Path) -> None:
    page = Page(report.write_report(joined(tmp_path), tmp_path / "report.html"))
    text = page.text[page.text.index("By other measures") :]
    assert "accuracy ↑ balanced accuracy ↑ AUC ↑ log loss ↓" in text
    assert re.search(
        r"silo-00 90\.0 % \(77–96\) 90\.0 % \(7\d–9\d\) 0\.900 \(0\.\d\d–0\.\d\d\) 0\.\d+ \(0\.\d+–0\.\d+\)", text
    )
    single = Page(report.write_report(joined(tmp_path / "more")[2:], tmp_path / "single.html"))
    assert "By other measures" in single.text and "Was it worth joining?" not in single.text


def test_runs_without_outputs_have_a_report_without_that_part(tmp_path: Path) -> None:
    runs = joined(tmp_path)
    runs[2].answered = None
    page = Page(report.write_report(runs, tmp_path / "report.html"))
    assert "Was it worth joining?" not in page.text and "By other measures" not in page.text
    assert "Clients better off alone" in page.text
    assert "did better alone." in page.text


def test_a_nasty_name_stays_text_among_the_silos(tmp_path: Path) -> None:
    nasty = "<img src=x onerror=alert(2)>"
    page = Page(report.write_report(joined(tmp_path, [nasty, "b", "c", "d"]), tmp_path / "report.html"))
    assert "img" not in {tag for tag, _ in page.tags}
    assert "&lt;img src=x onerror=alert(2)&gt;" in page.blocks["data-joining"]["layout"]["yaxis"]["ticktext"]


@pytest.mark.parametrize(
    ("value", "metric", "text"),
    [
        (0.873456, "accuracy", "87.3 %"),
        (0.873456, "balanced_accuracy", "87.3 %"),
        (0.873456, "auc", "0.873"),
        (1.0, "auc", "1.000"),
        (0.873456, "log_loss", "0.8735"),
        (12345.6, "mse", "12,346"),
        (9999.7, "mse", "10,000"),
        (45.678, "rmse", "45.68"),
        (1234.5, "rmse", "1234"),
        (0.0021, "mse", "0.002100"),
        (0.00026649, "mse", "0.000266"),
        (0.000034, "mse", "3.40e-5"),
        (0.0, "mse", "0"),
        (float("nan"), "auc", "–"),
    ],
)
def test_scores_are_printed_as_people_read_them(value: float, metric: str, text: str) -> None:
    assert words.score_text(value, metric) == text


def test_intervals_and_gains_are_printed_as_people_read_them() -> None:
    nan = float("nan")
    assert words.estimate_text(Estimate(0.842, 0.7512, 0.9), "accuracy") == "84.2 % (75–90)"
    assert words.estimate_text(Estimate(0.8731, 0.7132, 0.96), "auc") == "0.873 (0.71–0.96)"
    assert words.estimate_text(Estimate(0.5, nan, nan), "auc") == "0.500"
    assert words.estimate_text(Estimate(nan), "auc") == words.estimate_text(None, "auc") == "–"
    assert words.gain_text(Estimate(0.061, -0.003, 0.125), "accuracy") == "+6.1 (−0.3 to +12.5)"
    assert words.gain_text(Estimate(-1e-17, -0.1, 0.1), "accuracy") == "0.0 (−10.0 to +10.0)"
    assert words.gain_text(Estimate(166.04, 80.3, 247.4), "rmse") == "+166 (+80.3 to +247)"
    assert words.gain_text(Estimate(0.0012, -0.0003, 0.0021), "mse") == "+0.00120 (−0.000300 to +0.00210)"


def test_the_gains_are_a_figure_for_print(tmp_path: Path) -> None:
    names = [path.name for path in report.write_figures(joined(tmp_path), tmp_path, ["png"])]
    assert names == ["curves.png", "distribution.png", "joining.png", "collaboration-fedamp.png"]
    (axes,) = paper.joining(Findings(joined(tmp_path / "more")).joined).axes  # type: ignore[arg-type]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["silo-01", "silo-03", "silo-02", "silo-00"]
    assert axes.get_xlabel() == "gain in test accuracy over training alone in points"


# ---- newcomers ----


def served(folder: Path, metric: str = "accuracy") -> list[Folder]:
    """FedAMP in two seeds and FedAvg in one; three clients, at the end 0.6, 0.7, 0.8 and, in seed 1, 0.8 each."""
    common: dict[str, Any] = {"rounds": 1, "clients": ["a", "b", "c"], "groups": [0, 0, 0], "metric": metric}
    ends = {0: [[0.9] * 3, [0.6, 0.7, 0.8]], 1: [[0.9] * 3, [0.8] * 3]}
    runs = []
    for seed, new in {0: [0.2, 0.4], 1: [0.5, None]}.items():
        run = make(folder / f"amp-{seed}", seed=seed, vectors=dict.fromkeys(MODELS["fedamp"], ends[seed]), **common)
        runs.append(welcomed(run, {"cloud": new, "personal": [0.1, 0.1], "generated-mean": [0.9, 0.9]}))
    plain = make(folder / "avg", "fedavg", vectors=dict.fromkeys(MODELS["fedavg"], ends[0]), **common)
    return [*runs, welcomed(plain, {"finetuned": [1.0, 1.0], "global": [0.8, 0.8]})]


def test_t19_newcomers_and_known_clients_have_both_deviations(tmp_path: Path) -> None:
    found = {row.name: row for row in Findings(served(tmp_path)).newcomers}
    row = found["fedamp:cloud"]
    assert row.known is not None
    assert row.known.mean == pytest.approx(0.75)  # of 0.7 and 0.8 at the closing exchange, not of 0.9 at the best round
    assert row.known.std_clients == pytest.approx((0.02 / 3) ** 0.5 / 2)
    assert row.known.std_seeds == pytest.approx(0.1 / 2**0.5)
    assert row.newcomers.mean == pytest.approx(0.4)  # of 0.3 and, as one has no score, 0.5
    assert row.newcomers.std_clients == pytest.approx(0.05)
    assert row.newcomers.std_seeds == pytest.approx(0.2 / 2**0.5)
    assert row.difference == pytest.approx(-0.35)
    assert row.counts == (2, 2)
    only = found["fedamp:generated-mean"]
    assert only.known is None and np.isnan(only.difference)
    assert only.newcomers == Spread(pytest.approx(0.9), pytest.approx(0), pytest.approx(0))  # type: ignore[arg-type]
    assert found["fedavg:global"].newcomers.std_seeds is None
    assert Findings([make(tmp_path / "none")]).newcomers == []


def test_the_method_that_serves_newcomers_best_is_on_top_and_its_models_stand_below_it(tmp_path: Path) -> None:
    amp = ["fedamp:cloud", "fedamp:generated-mean", "fedamp:personal"]
    avg = ["fedavg:global", "fedavg:finetuned"]
    assert [row.name for row in Findings(served(tmp_path / "up")).newcomers] == avg + amp
    lower = Findings(served(tmp_path / "down", "mse")).newcomers
    assert [row.name for row in lower] == [amp[0], amp[2], amp[1], *avg]
    assert [row.headline for row in lower] == [True, False, False, True, False]


def test_newcomers_without_any_score_are_last_and_shown_as_a_dash(tmp_path: Path) -> None:
    runs = served(tmp_path)
    welcomed(runs[2], {"global": [None, None], "finetuned": [None, None]})
    assert [row.method for row in Findings(runs).newcomers] == ["fedamp"] * 3 + ["fedavg"] * 2
    page = Page(report.write_report(runs, tmp_path / "report.html"))
    assert "fedavg:global 70.0 % 8.2 % – – – – –" in page.text


def test_the_page_and_the_terminal_have_a_table_of_newcomers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from fedkin.cli import terminal

    runs = served(tmp_path)
    page = Page(report.write_report(runs, tmp_path / "report.html"))
    text = page.text[page.text.index("Newcomers 2 of 5 clients were held out") :]
    assert "known clients ± over clients ± over seeds newcomers ± over clients ± over seeds difference" in text
    assert "fedamp:cloud 75.0 % 4.1 % 7.1 % 40.0 % 5.0 % 14.1 % −35.0" in text
    assert "fedamp:generated-mean – – – 90.0 % 0.0 % 0.0 % –" in text
    assert "in seed 0 (others in other seeds) these were new-0, new-1." in text and "a minus is" not in text
    assert "a minus is a gain" in Page(report.write_report(served(tmp_path / "l", "mse"), tmp_path / "l.html")).text
    terminal.show_newcomers(Findings(runs))  # type: ignore[arg-type]
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    cells = "fedamp:cloud 75.0 % 4.1 % 7.1 % 40.0 % 5.0 % 14.1 % −35.0"
    assert cells.split() in lines
    assert ["fedamp:generated-mean", *"–––", "90.0", "%", "0.0", "%", "0.0", "%", "–"] in lines


# ---- the relation graph ----

EDGES = [(0, 1), (0, 2), (1, 2), (3, 4), (2, 3)]
"""Of six clients in two groups of three; the last has no neighbour."""


def related(folder: Path, edges: list[tuple[int, int]] = EDGES, m: int = 6, **options: Any) -> list[Folder]:
    settings = '[corruption]\nkind = "flip"'
    runs = several(folder, ["separate", "fedamp"], [0, 1], groups=[0] * 3 + [1] * (m - 3), settings=settings, **options)
    weights = np.zeros((m, m))
    for i, j in edges:
        weights[i, j] = weights[j, i] = 0.5
    for run in runs[2:]:
        np.save(run.path / "graph.npy", weights)
    return runs


def test_the_graph_is_drawn_with_every_edge_between_its_clients(tmp_path: Path) -> None:
    runs = related(tmp_path)
    page = Page(report.write_report(runs, tmp_path / "report.html"))
    lines, *nodes = page.blocks["data-graph"]["data"]
    place = {name: (x, y) for t in nodes for name, x, y in zip(t["text"], values(t["x"]), values(t["y"]), strict=True)}
    names = runs[0].summary["clients"]
    assert sorted(place) == names and len(set(place.values())) == 6
    x, y = values(lines["x"]).reshape(-1, 3), values(lines["y"]).reshape(-1, 3)
    drawn = {frozenset([(x[k, 0], y[k, 0]), (x[k, 1], y[k, 1])]) for k in range(len(x))}
    assert drawn == {frozenset([place[names[i]], place[names[j]]]) for i, j in EDGES}
    assert np.isnan(x[:, 2].astype(float)).all(), "edges are not joined to each other"
    assert {t["name"]: t["text"] for t in nodes} == {"group 0": names[:3], "group 1": names[3:]}
    assert len({t["marker"]["color"] for t in nodes}) == 2
    found = Findings(runs[2:])
    scores = found.seeds(found.rows[0])[0].at_chosen
    hover = nodes[0]["customdata"][2]
    assert hover == (
        f"<b>{names[2]}</b>, group 0<br>3 neighbours<br>accuracy {100 * scores[names[2]]:.1f} % with fedamp:cloud"
    )


def test_the_graph_is_told_in_words(tmp_path: Path) -> None:
    page = Page(report.write_report(related(tmp_path), tmp_path / "report.html"))
    assert (
        "5 edges among 6 clients, 1.7 neighbours each on average; 1 client without any (silo-05). Within the known "
        "groups lie 80% of the edges (of all pairs: 40%). Shown is the graph of fedamp, seed 0."
    ) in page.text
    runs = related(tmp_path / "other")
    np.save(runs[3].path / "graph.npy", np.ones((6, 6)) - np.eye(6))
    assert "seed 0; others of these runs have another one." in graph.words(graph.relations(Findings(runs)), runs)  # type: ignore[arg-type]
    turned = related(tmp_path / "turned")
    weights = turned[3].graph
    turned[3].change(clients=turned[3].summary["clients"][::-1])
    np.save(turned[3].path / "graph.npy", weights[::-1, ::-1])
    assert "another one" not in graph.words(graph.relations(Findings(turned)), turned), (
        "the same graph in another order"
    )  # type: ignore[arg-type]
    none = Page(report.write_report(several(tmp_path / "n", ["fedamp"], [0]), tmp_path / "none.html"))
    assert "Who is related to whom" not in none.text and "data-graph" not in none.blocks


def test_attacked_clients_and_newcomers_stand_out_in_the_graph(tmp_path: Path) -> None:
    runs = related(tmp_path)
    for run in runs:
        run.change(corrupted=["silo-01", "silo-04"])
    found = graph.relations(Findings(runs))
    assert found is not None
    assert found.kinds == ["benign", "attacked", "benign", "benign", "attacked", "benign"]
    more = related(tmp_path / "more")
    for run in more[2:]:
        welcomed(run, {model: [0.5] for model in MODELS["fedamp"]})
        wider = np.zeros((7, 7))
        wider[6, 0] = wider[0, 6] = 1
        np.save(run.path / "graph.npy", wider)
    known = graph.relations(Findings(more))
    assert known is not None
    assert (known.names[-1], known.kinds[-1]) == ("new-0", "newcomer")
    assert "1 edge among 7 clients" in graph.words(known, more) and "Within" not in graph.words(known, more)
    assert graph.picture(known, Findings(more)).data[-1].name == "newcomer"


def test_a_graph_too_large_to_be_drawn_is_a_matrix_by_group(tmp_path: Path, monkeypatch: Any) -> None:
    runs = related(tmp_path, clients=["silo-10", "silo-9", "c", "a", "b", "x"])
    monkeypatch.setattr(graph, "MOST_EDGES", 4)
    found = graph.relations(Findings(runs))
    assert found is not None
    (trace,) = graph.picture(found, Findings(runs)).data
    assert trace.type == "heatmap"
    order = [2, 1, 0, 3, 4, 5]  # by group, then by name
    assert list(trace.x) == list(trace.y) == [found.names[i] for i in order]
    assert np.array_equal(np.array(trace.z), found.weights[np.ix_(order, order)])
    monkeypatch.setattr(graph, "MOST_EDGES", 5)
    assert graph.picture(found, Findings(runs)).data[0].type == "scatter"


def test_a_graph_of_other_clients_is_refused_and_an_empty_one_is_not(tmp_path: Path) -> None:
    runs = related(tmp_path, edges=[])
    page = Page(report.write_report(runs, tmp_path / "report.html"))
    assert "0 edges among 6 clients, 0.0 neighbours each on average; 6 clients without any (silo-00," in page.text
    nodes = page.blocks["data-graph"]["data"][1:]
    assert len({(x, y) for t in nodes for x, y in zip(values(t["x"]), values(t["y"]), strict=True)}) == 6
    np.save(runs[2].path / "graph.npy", np.zeros((5, 5)))
    with pytest.raises(ValueError, match=r"shape \(5, 5\), but the run has 6 clients"):
        report.write_report(runs, tmp_path / "report.html")


def test_a_nasty_name_stays_text_in_the_graph(tmp_path: Path) -> None:
    nasty = "<img src=x onerror=alert(3)>"
    runs = related(tmp_path, clients=[nasty, "b", "c", "d", "e", "f"])
    page = Page(report.write_report(runs, tmp_path / "report.html"))
    assert "img" not in {tag for tag, _ in page.tags}
    node = page.blocks["data-graph"]["data"][1]
    assert node["text"][0] == "&lt;img src=x onerror=alert(3)&gt;"
    assert node["customdata"][0].startswith("<b>&lt;img")


@pytest.mark.parametrize(("metric", "ticks"), [("accuracy", ".0%"), ("mse", None)])
def test_axes_have_plain_numbers(tmp_path: Path, metric: str, ticks: str | None) -> None:
    runs = several(tmp_path, ["separate", "fedamp"], [0], metric=metric)
    axis = figures.distribution(Findings(runs)).layout.xaxis
    assert axis.tickformat == ticks and axis.exponentformat == (None if ticks else "none")


@pytest.mark.parametrize("metric", ["accuracy", "mse"])
def test_figures_for_print_are_files_of_their_kind_and_leave_matplotlib_alone(tmp_path: Path, metric: str) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    names = ["$x$", *(f"silo-{i}" for i in range(1, 10))]
    runs = several(tmp_path, ["separate", "fedamp"], [0, 1], metric=metric, clients=names)
    paths = report.write_figures(runs, tmp_path)
    stems = ["curves", "distribution", "collaboration-fedamp"]
    assert [path.name for path in paths] == [f"{stem}.{kind}" for stem in stems for kind in ("png", "pdf")]
    for path in paths:
        assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n" if path.suffix == ".png" else b"%PDF-")
    assert dict(matplotlib.rcParams) == before
    assert paper.collaboration(make(tmp_path / "none", "separate", 2)) is None


def test_words_need_no_plotting_library_and_a_missing_one_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    probe = "import sys, fedkin.report; print({'plotly', 'matplotlib'} & set(sys.modules))"
    source = str(Path(report.__file__).parents[2])
    found = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, env={"PYTHONPATH": source})
    assert found.stdout.strip() == "set()", found.stderr
    for module in ("fedkin.report.page", "fedkin.report.figures", "fedkin.report.paper"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    for name in ("page", "figures", "paper"):
        monkeypatch.delattr(report, name, raising=False)
    for name in [m for m in sys.modules if m.partition(".")[0] in ("plotly", "matplotlib")]:
        monkeypatch.delitem(sys.modules, name)  # whatever parts of them other tests have loaded
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    run = make(tmp_path / "run")
    with pytest.raises(ImportError, match="Reports need plotly"):
        report.write_report([run], tmp_path / "report.html")
    with pytest.raises(ImportError, match="need matplotlib"):
        report.write_figures([run], tmp_path)


# ---- what is said of the end of runs ----


@pytest.mark.parametrize(("flagged", "told"), [(1, False), (2, False), (3, True), (4, True)])
def test_still_improving_is_said_of_most_seeds_and_of_how_many(tmp_path: Path, flagged: int, told: bool) -> None:
    runs = several(tmp_path, ["separate", "fedamp"], [0, 1, 2, 3])
    for run in [run for run in runs if run.summary.method == "fedamp"][:flagged]:
        models = {name: {**each, "improving": True} for name, each in run.summary["models"].items()}
        run.change(models=models)
    said = " ".join(words.ends(Findings(runs)))
    assert ("still improving" in said) == told
    if told:
        assert f"fedamp (in {flagged} of 4 seeds) was still improving on validation data at the end" in said


def test_of_one_seed_that_was_still_improving_no_count_is_told(tmp_path: Path) -> None:
    run = make(tmp_path / "one")
    run.change(models={name: {**each, "improving": True} for name, each in run.summary["models"].items()})
    assert words.ends(Findings([run]))[0].startswith("fedamp was still improving on validation data at the end")


def test_the_page_says_by_which_rule_the_round_was_chosen(tmp_path: Path) -> None:
    told, patient = make(tmp_path / "told"), make(tmp_path / "auto", "separate")
    config = patient.path / "config.toml"
    config.write_text("patience = 20\n" + config.read_text())
    by_loss = "the latest whose validation loss is within 5 % of the lowest"
    by_score = "the last, or an earlier one where they clearly say so"
    assert words.round_rule(Findings([told])) == by_score
    assert words.round_rule(Findings([patient])) == by_loss
    error = make(tmp_path / "error", metric="rmse", settings="[data]\n")
    (error.path / "config.toml").write_text("patience = 20\n")
    assert words.round_rule(Findings([error])) == by_loss.replace("5 %", "1 %")
    assert words.round_rule(Findings([told, patient])) == (
        f"where runs end by validation data, {by_loss}, else {by_score}"
    )
    page = Page(report.write_report([told], tmp_path / "report.html"))
    assert f"The round of a run is chosen by validation data: {by_score}; all columns" in page.text
