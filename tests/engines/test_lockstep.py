"""Runs side by side: one training call for all, and every run ends with the bits it would have had alone."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from helpers import CPU_BITS, DEVICE, ON_CPU, at, close, normed, ready, same, same_record, toy
from safetensors.torch import load_file
from torch import nn

from fedkin import Method, methods
from fedkin.base.round import Round
from fedkin.base.state import State
from fedkin.engines import lockstep
from fedkin.engines.assembly import Assembly
from fedkin.engines.simulation import Diverged, Interrupted, Listener, Simulation
from fedkin.methods.fedavg import FedAvg
from fedkin.runs.checkpoint import Checkpoint
from fedkin.runs.config import resolve
from fedkin.runs.folder import Writer
from fedkin.studies.run import Run
from fedkin.training.optimisers import Local, Optimiser, Proximal

METHODS = tuple(methods.names()) if ON_CPU else ("fedamp", "scaffold", "apfl", "perfedavg", "pfedme", "panacea")
"""All of them; on a GPU, where the same is asked to rounding only, one for each way to train."""
RATES = (0.001, 0.004, 0.02)
EIGHT, GROUPS = (26, 22, 22, 19, 17, 13, 9, 9), (0, 1, 0, 1, 0, 1, 0, 1)
HARSH = {"sample": 0.7, "lost": 0.3, "dropped": 0.2}


def digits(method: str, **settings: Any) -> Assembly:
    from fedkin.engines.start import prepare

    local = settings.pop("local", {})
    data = {"name": "digits", "split": "relabelled"}
    settings |= {"device": DEVICE.type, **CPU_BITS}
    return prepare(method=method, rounds=3, data=data, local={"epochs": 2, **local}, **settings)


def with_values(assembly: Assembly, lr: float, **settings: Any) -> Assembly:
    """The same run, on the same data, with another learning rate and other settings of the method."""
    config = assembly.config
    raw = {**config.model_dump(mode="json"), "settings": {**config.settings, **settings}}
    config = resolve({**raw, "local": {**raw["local"], "lr": lr}})
    return replace(
        assembly, config=config, method=config.built_method(), cohort=replace(assembly.cohort, local=config.local)
    )


def begun(assembly: Assembly, path: Path, listener: Listener | None = None) -> Simulation:
    return Simulation(assembly, Writer.create(path, assembly.config), listener)


def same_runs(alone: Path, together: Path) -> None:
    """Scores, losses, states and models agree to the last bit; on a GPU to rounding."""
    first, second = Run(alone), Run(together)
    for a, b in zip(first.rounds, second.rounds, strict=True):
        assert same_record(a, b)
    states = [Checkpoint.load(run.path / "checkpoint" / "state.safetensors", run.resolved()) for run in (first, second)]
    for name, state in states[0].states.items():
        for (key, a), (_, b) in zip(state.items(), states[1].states[name].items(), strict=True):
            assert torch.equal(a.isnan(), b.isnan()) and same(a.nan_to_num(), b.nan_to_num()), f"{name}.{key}"
    files = [sorted(p.relative_to(run.path) for p in run.path.glob("models/*")) for run in (first, second)]
    assert files[0] == files[1] and files[0]
    for file in files[0]:
        if ON_CPU:
            assert (alone / file).read_bytes() == (together / file).read_bytes()
        elif file.suffix == ".safetensors":
            assert all(map(same, *(load_file(run.path / file).values() for run in (first, second))))


def both_ways(folder: Path, assemblies: list[Assembly], expected_calls: int | None = None) -> None:
    """Runs each alone and all together, and compares; `expected_calls`: of `train` when together."""
    for i, assembly in enumerate(assemblies):
        begun(assembly, folder / f"alone-{i}").run()
    calls = 0
    kind = type(assemblies[0].method)
    plain = kind.train

    def counted(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        return plain(*arguments)

    simulations = [begun(assembly, folder / f"together-{i}") for i, assembly in enumerate(assemblies)]
    kind.train = counted  # type: ignore[method-assign]
    try:
        assert lockstep.run_together(simulations, [None] * len(simulations)) == {}
    finally:
        kind.train = plain  # type: ignore[method-assign]
    if expected_calls is not None:
        assert calls == expected_calls
    for i in range(len(assemblies)):
        same_runs(folder / f"alone-{i}", folder / f"together-{i}")


# ---- the same bits ----


@pytest.mark.parametrize("method", METHODS)
def test_each_run_ends_with_the_bits_it_has_alone(tmp_path: Path, method: str) -> None:
    base = digits(method)
    assert base.execution.name == "stacked"
    both_ways(tmp_path, [with_values(base, lr) for lr in RATES], expected_calls=3)


@pytest.mark.parametrize("method", METHODS)
def test_chunks_lost_and_dropped_clients_and_newcomers_change_nothing_of_that(tmp_path: Path, method: str) -> None:
    base = digits(method, chunk=7, participation={**HARSH, "novel": 0.2, "novel_exchanges": 2})
    both_ways(tmp_path, [with_values(base, lr) for lr in RATES])


@pytest.mark.parametrize("method", METHODS)
def test_seeds_with_data_of_their_own_end_with_the_bits_they_have_alone(tmp_path: Path, method: str) -> None:
    seeds = [digits(method, seed=seed, participation={"lost": 0.3}) for seed in (3, 4, 5)]
    assert len({id(a.cohort.train.x) for a in seeds}) == 3
    both_ways(tmp_path, seeds, expected_calls=3)


def test_seeds_whose_clients_differ_in_size_train_apart(tmp_path: Path) -> None:
    sizes = (EIGHT, (26, 22, 22, 19, 17, 13, 9, 8))
    runs = [ready(toy(each, GROUPS), method="fedamp", seed=seed) for seed, each in enumerate(sizes)]
    both_ways(tmp_path, runs, expected_calls=2 * runs[0].config.rounds)


def test_seeds_with_class_weights_have_each_their_own(tmp_path: Path) -> None:
    runs = [digits("fedavg", seed=seed, local={"class_weights": "balanced"}) for seed in (0, 1)]
    both_ways(tmp_path, runs, expected_calls=3)


def test_seeds_with_weights_of_samples_have_each_their_own(tmp_path: Path) -> None:
    def weighted(seed: int) -> Assembly:
        clients = [
            replace(
                c, weight=torch.linspace(0.5, 1 + seed, c.samples), validation=c.validation or (c.test[0], c.test[1])
            )
            for c in toy(EIGHT, GROUPS).clients
        ]
        return ready(replace(toy(EIGHT, GROUPS), clients=tuple(clients)), method="fedavg", seed=seed)

    both_ways(tmp_path, [weighted(seed) for seed in (0, 1)], expected_calls=3)


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_an_optimiser_that_is_carried_on_is_each_runs_own(tmp_path: Path, optimiser: str) -> None:
    momentum = {"momentum": 0.9, "nesterov": True} if optimiser == "sgd" else {}
    local = {"persist_optimiser": True, "optimiser": optimiser, "schedule": "cosine", **momentum}
    base = digits("fedamp", participation=HARSH, local=local)
    both_ways(tmp_path, [with_values(base, lr) for lr in RATES], expected_calls=3)


def test_clients_with_class_weights_clipped_gradients_and_weight_decay(tmp_path: Path) -> None:
    local = {"class_weights": "balanced", "clip": 1.0, "weight_decay": 0.01}
    base = ready(toy(EIGHT, GROUPS), method="fedamp", local=local)
    both_ways(tmp_path, [with_values(base, lr) for lr in RATES], expected_calls=3)


def test_models_with_running_statistics_one_by_one(tmp_path: Path) -> None:
    base = ready(toy(EIGHT, GROUPS), model=normed, method="fedamp", execution="one-by-one")
    assert base.cohort.merge_single
    both_ways(tmp_path, [with_values(base, lr) for lr in RATES], expected_calls=3)


def test_models_with_running_statistics_stacked_agree_to_rounding(tmp_path: Path) -> None:
    """Under vmap torch sums batch statistics in an order that depends on how many there are."""
    base = ready(toy(EIGHT, GROUPS), model=normed, method="fedamp", participation=HARSH)
    alone, together = ([begun(with_values(base, lr), tmp_path / way / str(lr)) for lr in RATES] for way in "ab")
    for simulation in alone:
        simulation.run()
    lockstep.run_together(together, [None] * len(RATES))
    for a, b in zip(alone, together, strict=True):
        assert close(a.server.state.W, b.server.state.W) and close(a.site.memory.personal, b.site.memory.personal)
        assert not torch.equal(a.server.state.W, alone[0].server.state.W) or a is alone[0]


def test_layers_that_draw_random_numbers_draw_the_same(tmp_path: Path) -> None:
    def dropping(inputs: tuple[int, ...], outputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(*inputs, 5), nn.Dropout(0.5), nn.Linear(5, outputs))

    base = ready(toy(EIGHT, GROUPS), model=dropping, method="fedavg", execution="auto")
    assert base.cohort.random_layers
    both_ways(tmp_path, [with_values(base, lr) for lr in RATES], expected_calls=3)


def test_settings_that_training_ignores_share_the_stack(tmp_path: Path) -> None:
    base = digits("fedamp", chunk=8)  # 20 clients: three calls a round
    values = [{"sigma": "auto"}, {"sigma": 10}, {"sigma": 10, "top": 3}, {"similarity": "head"}]
    both_ways(tmp_path, [with_values(base, 0.002, **each) for each in values], expected_calls=9)


def test_clients_that_are_asked_for_their_trust_and_others_do_not(tmp_path: Path) -> None:
    base = digits("fedamp")
    values = [{}, {"sigma": 10}, {"weight_on_others": 0.5}, {"weight_on_others": "attention"}]
    both_ways(tmp_path, [with_values(base, 0.002, **each) for each in values], expected_calls=6)


def test_settings_that_training_looks_at_do_not(tmp_path: Path) -> None:
    base = digits("fedamp")
    values = [{"beta": 1e4}, {"beta": 1.0}, {"beta": 1.0, "sigma": 10}]
    both_ways(tmp_path, [with_values(base, 0.002, **each) for each in values], expected_calls=6)


def test_a_run_that_pretrains_waits_for_nobody(tmp_path: Path) -> None:
    base = digits("fedamp")
    values = [{"init": "common"}, {"init": "pretrained"}, {"init": "independent"}]
    both_ways(tmp_path, [with_values(base, 0.002, **each) for each in values], expected_calls=4)


def test_rates_row_by_row_are_bit_equal_to_one_rate() -> None:
    source = torch.Generator().manual_seed(0)
    kinds = [
        {"optimiser": "adam"},
        {"optimiser": "adam", "weight_decay": 0.1},
        {"optimiser": "sgd"},
        {"optimiser": "sgd", "momentum": 0.9},
        {"optimiser": "sgd", "momentum": 0.9, "nesterov": True, "clip": 0.5},
    ]
    for kind in kinds:
        for dtype in (torch.float32, torch.float64):
            local = Local(**kind)
            W = torch.randn(7, 131, generator=source, dtype=dtype).to(DEVICE)
            gradients = torch.randn(20, 7, 127, generator=source, dtype=dtype).to(DEVICE)
            rates = torch.tensor([0.1, 0.01, 0.003, 0.1, 1 / 3, 1e-4, 0.07], dtype=torch.float64)[:, None].to(DEVICE)
            anchor, beta = W.flip(0), torch.tensor([0.3, 0.1, 7.0, 1e-3, 0.07, 1e4, 0.01])[:, None].to(W)
            rows = W.clone()
            optimiser = Optimiser(local, rows, 127)
            for number, G in enumerate(gradients):
                optimiser.step(rows, G[: 7 - number // 7].clone(), rates, Proximal(anchor, beta))
            for i in range(7):
                row = W[i : i + 1].clone()
                alone = Optimiser(local, row, 127)
                for number, G in enumerate(gradients):
                    if i < 7 - number // 7:
                        own = Proximal(anchor[i : i + 1], beta[i : i + 1])
                        alone.step(row, G[i : i + 1].clone(), rates[i].item(), own)
                assert same(row[0], rows[i]), (kind, dtype, i)


def test_the_stack_has_a_row_for_each_client_and_value_and_copies_no_data() -> None:
    base = digits("fedavg")
    cohort = lockstep._cohort([with_values(base, lr).cohort for lr in RATES], lockstep.Pool())
    assert cohort.names == tuple(name for name in base.cohort.names for _ in RATES)
    assert cohort.rates == RATES * len(base.cohort)
    assert list(cohort.samples) == sorted(cohort.samples, reverse=True)
    assert cohort.train.x is base.cohort.train.x
    alone, together = next(base.cohort.batches(at(1))), next(cohort.batches(at(1)))
    assert torch.equal(together.x, alone.x.repeat_interleave(len(RATES), 0))


# ---- where runs are not in step ----


class Stop:
    """Asks a run to stop after some rounds."""

    def __init__(self, after: int) -> None:
        self.rounds, self.after = 0, after

    def __call__(self) -> bool:
        self.rounds += 1
        return self.rounds >= self.after


def test_runs_resumed_from_different_rounds_end_with_the_same_bits(tmp_path: Path) -> None:
    base = digits("fedamp", participation=HARSH)
    assemblies = [with_values(base, lr) for lr in RATES]
    for i, (assembly, after) in enumerate(zip(assemblies, (1, 2, 99), strict=True)):
        begun(assembly, tmp_path / f"alone-{i}").run()
        stopped = begun(assembly, tmp_path / f"together-{i}", Listener(stop=Stop(after)))
        if after < 99:
            with pytest.raises(Interrupted):
                stopped.run()
    checkpoints: list[Checkpoint | None] = []
    simulations = []
    for i, assembly in enumerate(assemblies):
        writer = Writer(tmp_path / f"together-{i}")
        checkpoint = Checkpoint.load(writer.checkpoint, assembly.config) if writer.checkpoint.exists() else None
        writer.cut_back(checkpoint.round if checkpoint else 0)
        checkpoints.append(checkpoint)
        simulations.append(Simulation(assembly, writer))
    assert [c and c.round for c in checkpoints] == [1, 2, None]
    assert lockstep.run_together(simulations, checkpoints) == {}
    for i in range(len(assemblies)):
        same_runs(tmp_path / f"alone-{i}", tmp_path / f"together-{i}")


def test_asked_to_stop_all_runs_save_their_round(tmp_path: Path) -> None:
    base = digits("fedavg")
    simulations = [begun(with_values(base, lr), tmp_path / str(lr), Listener(stop=lambda: True)) for lr in RATES]
    stopped = lockstep.run_together(simulations, [None] * len(simulations))
    assert {i: type(error) for i, error in stopped.items()} == dict.fromkeys(range(len(RATES)), Interrupted)
    for simulation in simulations:
        assert Checkpoint.load(simulation.writer.checkpoint, simulation.config).round == 1


def test_one_that_diverges_and_was_told_to_stop_then_leaves_the_others_alone(tmp_path: Path) -> None:
    base = digits("fedavg", on_divergence="stop", local={"optimiser": "sgd"})
    too_large = 1e30 if ON_CPU else 1e300  # for float32, and for the float64 that a GPU has here
    assemblies = [with_values(base, lr) for lr in (0.01, too_large, 0.02)]
    simulations = [begun(assembly, tmp_path / f"together-{i}") for i, assembly in enumerate(assemblies)]
    stopped = lockstep.run_together(simulations, [None] * 3)
    assert list(stopped) == [1] and isinstance(stopped[1], Diverged)
    for i in (0, 2):
        begun(assemblies[i], tmp_path / f"alone-{i}").run()
        same_runs(tmp_path / f"alone-{i}", tmp_path / f"together-{i}")


def test_the_seconds_of_all_runs_add_up_to_no_more_than_the_time_that_passed(tmp_path: Path) -> None:
    import time

    base = digits("fedamp")
    simulations = [begun(with_values(base, lr), tmp_path / str(lr)) for lr in RATES]
    began = time.perf_counter()
    lockstep.run_together(simulations, [None] * len(simulations))
    passed = time.perf_counter() - began
    seconds = [Run(s.writer.path).summary["seconds"] for s in simulations]
    assert 0.3 * passed < sum(seconds) <= passed


# ---- methods of others ----


class OwnSteps(FedAvg):
    """Asks for the learning rate itself, and knows of one only."""

    asked: ClassVar[list[int]] = []

    def train(self, cohort: Any, message: State, memory: State, round: Round) -> Any:
        self.asked.append(len(cohort))
        W, lr = message.w.clone(), cohort.lr(round)
        for batch in cohort.batches(round):
            W[: len(batch), : cohort.layout.parameters] -= lr * cohort.grad(W, batch)
        return State(W=W), State(finetuned=W)


class Unsplit(FedAvg):
    """Puts something into its upload that belongs to no client."""

    def train(self, cohort: Any, message: State, memory: State, round: Round) -> Any:
        W = cohort.fit(message.w, round)
        return State({"places": torch.arange(float(len(cohort)))}, W=W), State(finetuned=W)


class Inherited(FedAvg):
    """Looks at a setting of its own, and does not say so."""

    scale: float = 1.0

    def train(self, cohort: Any, message: State, memory: State, round: Round) -> Any:
        W = cohort.fit(message.w * self.scale, round)
        return State(W=W), State(finetuned=W)


class Noisy(FedAvg):
    """Draws where clients train, and where their models are made."""

    def train(self, cohort: Any, message: State, memory: State, round: Round) -> Any:
        W = cohort.fit(message.w + _noise(cohort, "start"), round)
        return State(W=W), State(finetuned=W)

    def models(self, cohort: Any, message: State, memory: State, round: Round) -> Any:
        return {"global": message.w + _noise(cohort, "end"), "finetuned": memory.finetuned}


def _noise(cohort: Any, purpose: str) -> torch.Tensor:
    rows = [torch.randn(cohort.layout.size, generator=own, dtype=torch.float64) for own in cohort.rng(purpose)]
    return 0.1 * torch.stack(rows).to(DEVICE)


def test_what_clients_draw_of_their_own_does_not_depend_on_the_seeds_beside(tmp_path: Path) -> None:
    both_ways(tmp_path, [ready(method=f"{__name__}:Noisy", seed=seed) for seed in (3, 4, 5)], expected_calls=3)


def test_a_method_that_knows_of_one_rate_only_is_trained_apart(tmp_path: Path) -> None:
    OwnSteps.asked.clear()
    base = ready(method=f"{__name__}:OwnSteps")
    both_ways(tmp_path, [with_values(base, lr) for lr in RATES])
    alone, together = OwnSteps.asked[:9], OwnSteps.asked[9:]
    assert alone == [4] * 9
    assert together == [12, *[4] * 9]  # tried once, never again


def test_a_method_whose_reply_cannot_be_taken_apart_is_trained_apart(tmp_path: Path) -> None:
    base = ready(method=f"{__name__}:Unsplit")
    both_ways(tmp_path, [with_values(base, lr) for lr in RATES], expected_calls=3 * 3 + 1)


def test_what_a_method_declares_does_not_hold_for_its_subclasses(tmp_path: Path) -> None:
    assert FedAvg.training == frozenset()
    base = ready(method=f"{__name__}:Inherited")
    assemblies = [with_values(base, lr, scale=scale) for lr in (0.01, 0.02) for scale in (1.0, 0.5)]
    both_ways(tmp_path, assemblies, expected_calls=3 * 2)


# ---- what methods declare ----

VARIANTS: dict[str, list[dict[str, Any]]] = {
    "fedamp": [
        {},
        {"init_from": "local"},
        {"beta": dict.fromkeys("abcd", 2.0)},
        {"mode": "theory", "sigma": 1.0},
        {"mode": "theory", "sigma": 1.0, "alpha": 0.1},
    ],
    "heurfedamp": [{}, {"init_from": "local"}],
    "scaffold": [{"option": "I"}, {"option": "II"}],
    "apfl": [{}, {"mix": "outputs"}, {"adaptive": False}],
    "perfedavg": [{}, {"adaptation": "batch"}],
}


def watched(method: Method) -> tuple[Method, set[str]]:
    """The method, and the names of its settings as they are looked at from now on."""
    kind, seen = type(method), set[str]()

    class Spy(kind):  # type: ignore[valid-type, misc]
        def __getattribute__(self, name: str) -> Any:
            if name in kind.model_fields:
                seen.add(name)
            return super().__getattribute__(name)

    spy = Spy.model_construct(**dict(method))
    seen.clear()
    return spy, seen


@pytest.mark.parametrize("name", METHODS)
def test_training_and_models_look_at_the_settings_that_are_declared_and_at_no_other(name: str, tmp_path: Path) -> None:
    seen: set[str] = set()
    for settings in VARIANTS.get(name, [{}]):
        assembly = ready(toy((13, 9, 6, 4), (0, 1, 0, 1)), method=name, settings=settings)
        simulation = begun(assembly, tmp_path / str(len(list(tmp_path.iterdir()))))
        for request in _requests(simulation):
            (method, looked), now = watched(request.method), request.round
            _, memory = method.train(copy.copy(request.cohort), request.message, request.memory, now)
            method.models(request.cohort, request.message, memory, now)
            seen |= looked
    declared = vars(methods.find(name))["training"]
    assert seen <= declared, "a stack of grid values would train all with the first value"
    # HeurFedAMP refuses theory mode, in which alone FedAMP's training looks at these.
    assert declared - seen <= ({"alpha", "strength"} if name == "heurfedamp" else set())


def _requests(simulation: Simulation) -> Iterator[Any]:
    rounds = simulation.rounds()
    request = next(rounds)
    while True:
        yield request
        try:
            request = rounds.send([request.answer()])
        except StopIteration:
            return
