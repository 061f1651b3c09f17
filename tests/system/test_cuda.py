"""On a GPU: the same numbers as on a CPU, and no TF32 where it would round the weights (trap T26)."""

from __future__ import annotations

import copy
import gc
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import at
from safetensors.torch import load_file
from torch import Tensor, nn

import fedkin
from fedkin.base.task import LOSSES
from fedkin.base.weights import Layout
from fedkin.data import traffic
from fedkin.data.roads import Roads
from fedkin.engines.assembly import Assembly
from fedkin.engines.start import prepare
from fedkin.gpu import pairs_of_rows
from fedkin.maths import collaboration
from fedkin.maths.collaboration import cosine_distances, mix, squared_distances
from fedkin.training.execution import Batch, Layered, OneByOne, Stacked

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")]


def older_switches() -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True


def newer_switches() -> None:
    torch.backends.cuda.matmul.fp32_precision = torch.backends.cudnn.conv.fp32_precision = "tf32"


@pytest.fixture(params=[older_switches, newer_switches])
def tf32(request: pytest.FixtureRequest) -> Iterator[None]:
    """TF32 allowed everywhere, as training on a GPU has it, by torch's older switches or by its newer ones."""
    switches = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)
    before = [switch.fp32_precision for switch in switches]
    request.param()
    yield
    if request.param is older_switches:
        torch.backends.cuda.matmul.allow_tf32 = False  # the older has a memory of its own
    for switch, precision in zip(switches, before, strict=True):
        switch.fp32_precision = precision


def test_cloud_models_of_clients_that_listen_to_nobody_are_their_own_bit_for_bit(tf32):
    W = torch.randn(64, 50_000, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    xi = torch.eye(64, dtype=torch.float64, device="cuda")
    assert not torch.equal(xi.float() @ W, W), "TF32 does not round here, so this test shows nothing"
    assert torch.equal(mix(xi, W), W)


def test_distances_of_models_that_almost_agree_are_those_of_the_cpu(tf32):
    base = torch.randn(200_000, generator=torch.Generator().manual_seed(2))
    W = base + 1e-6 * torch.randn(12, 200_000, generator=torch.Generator().manual_seed(3))
    for far in (lambda w: squared_distances(w)[0], cosine_distances):
        here, there = far(W), far(W.cuda()).cpu()
        torch.testing.assert_close(there, here, rtol=1e-6, atol=0)


def test_distances_are_those_of_float64_whatever_is_allowed(tf32):
    W = torch.randn(40, 30_000, generator=torch.Generator().manual_seed(4)).cuda()
    W[1:] = W[0] + 1e-3 * W[1:]
    exact = W.double().cpu()
    apart = (exact[:, None, :200] - exact[:, :200]).square().sum(2)
    torch.testing.assert_close(squared_distances(W[:, :200])[0].cpu(), apart, rtol=1e-9, atol=0)
    apart = torch.stack([(row - exact).square().sum(1) for row in exact])
    torch.testing.assert_close(squared_distances(W)[0].cpu(), apart, rtol=1e-9, atol=0)


@pytest.mark.parametrize(("m", "d"), [(100, 700_000), (20, 3_400_007), (300, 230_002)])
def test_large_matrices_keep_their_digits(m, d, tf32):
    """In one tile and in several, with rows that begin anywhere: kernels of their own beside float64 in blocks."""
    source = torch.Generator("cuda").manual_seed(5)
    W = torch.randn(1, d, device="cuda", generator=source) + 0.01 * torch.randn(m, d, device="cuda", generator=source)
    xi = torch.softmax(torch.randn(m, m, device="cuda", generator=source, dtype=torch.float64), 1)
    assert collaboration._by_kernel(W)
    found = squared_distances(W)[0], cosine_distances(W), mix(xi, W)[:, :9999].double()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collaboration, "LARGE", 1 << 60)
        exact = squared_distances(W)[0], cosine_distances(W), xi @ W[:, :9999].double()
    for a, b in zip(found, exact, strict=True):
        assert float((a - b).abs().max()) <= 5e-7 * float(b.abs().max())
    U = torch.empty_like(W)
    pairs_of_rows.mix(torch.eye(m, dtype=torch.float64, device="cuda"), W, U)
    assert torch.equal(U, W)


def weights(run: Path) -> dict[str, torch.Tensor]:
    """Every tensor that a run has saved: of its checkpoint, of the clients' models, newcomers' too, and outputs."""
    files = sorted(run.rglob("*.safetensors"))
    every = {f"{file.relative_to(run)} {name}": t for file in files for name, t in load_file(file).items()}
    return {name: t for name, t in every.items() if " at_once/" not in name}  # a device's own: how many at a time


def assert_same_on_both(
    folder: Path, settings: dict[str, Any], federation: fedkin.Federation | None = None, tolerance: float = 1e-9
) -> None:
    """A run in float64 ends with the same weights, but for rounding, on a GPU as on a CPU."""
    saved = []
    for device in ("cpu", "cuda"):
        run = fedkin.run(
            {**settings, "precision": "float64"}, federation=federation, device=device, out=folder / device
        )
        assert run.resolved().device == device
        saved.append(weights(run.path))
    assert_same_weights(*saved, tolerance)


def assert_same_weights(first: dict[str, Tensor], second: dict[str, Tensor], tolerance: float = 1e-9) -> None:
    assert first.keys() == second.keys()
    for name, here in first.items():
        there = second[name]
        if here.is_floating_point():
            assert torch.equal(here.isnan(), there.isnan()), name  # missing readings, and who has no score yet
            here, there = here.nan_to_num(), there.nan_to_num()
            rounding = tolerance if here.dtype == torch.float64 else max(tolerance, 1e-6)
            assert (here - there).norm() <= rounding * here.norm(), name
        else:
            assert torch.equal(here, there), name


METHODS: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("fedamp", "heurfedamp", "fedavg", "fedprox", "scaffold", "apfl", "groups", "separate")},
    "panacea": {"server_steps": 2},
    "panacea_gn": {"normalisation": "mean", "skip": True},
    "panacea, adam": {"server_optimiser": "adam", "server_lr": 1e-3, "balance": "grda", "generator": "shared"},
    "pfedhn": {},
    "pfedhn, personal classifier": {"personal_classifier": True, "server_clip": 0.1},
    "sfl": {},
    "sfl, learned": {"learned": True, "regulariser": "norm"},
    "perfedavg, first-order": {"hessian": "first-order"},
    "perfedavg, difference": {"hessian": "difference"},
    "perfedavg, exact": {"hessian": "exact", "adaptation": "batch"},
    "pfedme": {"weighted": True},
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("execution", ["stacked", "one-by-one"])
def test_a_run_on_a_gpu_is_the_run_on_a_cpu(name, execution, tmp_path):
    settings = {"method": name.split(",")[0], "settings": METHODS[name], "rounds": 3, "execution": execution}
    settings |= {"data": {"split": "relabelled"}, "participation": {"sample": 0.8, "lost": 0.2}}
    assert_same_on_both(tmp_path, settings)


@pytest.mark.parametrize("method", ["panacea", "pfedhn", "sfl", "perfedavg", "pfedme", "fedamp"])
def test_newcomers_are_served_on_a_gpu_as_on_a_cpu(method, tmp_path):
    settings = {"method": method, "rounds": 2, "data": {"split": "relabelled"}, "participation": {"novel": 0.25}}
    assert_same_on_both(tmp_path, settings)
    here, there = (fedkin.Run(tmp_path / device).summary["novel"] for device in ("cpu", "cuda"))
    assert here["clients"] == there["clients"] and len(here["clients"]) == 5


def test_a_graph_inferred_on_a_gpu_is_that_of_the_cpu(tmp_path):
    settings = {"method": "panacea", "rounds": 2, "data": {"split": "relabelled"}}
    assert_same_on_both(tmp_path, {**settings, "graph": {"source": "inferred", "infer_rounds": 2, "top": 3}})
    here, there = (fedkin.Run(tmp_path / device).graph for device in ("cpu", "cuda"))
    assert (here == there).all() and here.any()


def sensors(teacher: bool) -> fedkin.Federation:
    """Four sensors on a road, with gaps in their readings."""
    lot = np.random.default_rng(1)
    steps, names = 160, ("a", "b", "c", "d")
    speed = 50 + 10 * np.sin(np.arange(steps)[:, None] / 9 + np.arange(4)) + lot.normal(size=(steps, 4))
    speed[lot.random(speed.shape) < 0.1] = 0
    road = np.diag(np.ones(3, dtype=np.float32), 1)
    made = Roads("road", names, speed, np.arange(steps) / steps, road + road.T)
    return traffic.federate(made, "chronological", traffic.Settings(teacher_forcing=teacher), seed=0, clients=None)


@pytest.mark.parametrize("method", ["panacea", "fedavg"])
@pytest.mark.parametrize("execution", ["stacked", "one-by-one"])
@pytest.mark.parametrize("teacher", [False, True], ids=["free-running", "with a teacher"])
def test_a_recurrent_network_forecasts_on_a_gpu_as_on_a_cpu_whatever_is_missing(method, execution, teacher, tmp_path):
    settings = {"method": method, "rounds": 2, "execution": execution, "local": {"steps": 3, "batch_size": 16}}
    settings |= {"model": {"name": "gru", "settings": {"hidden": 5, "teacher": teacher}}}
    assert_same_on_both(tmp_path, settings, sensors(teacher))


def noise(shape: tuple[int, ...], sizes: tuple[int, ...] = (20, 21, 22)) -> fedkin.Federation:
    """Silos with images of nothing."""
    images = {}
    for i, n in enumerate(sizes):
        g = torch.Generator().manual_seed(i)
        x = torch.rand(n, *shape, generator=g, dtype=torch.float64)
        images[f"silo-{i}"] = (x.numpy(), torch.randint(4, (n,), generator=g).numpy())
    return fedkin.Federation.from_arrays(images, fedkin.Task.classification(shape, 4), name="noise")


@pytest.mark.parametrize("model", [{"name": "cnn"}, {"name": "resnet18"}, {"name": "mlp"}])
def test_models_train_stacked_on_a_gpu(model, tmp_path):
    federation = noise((1, 28, 28))
    settings = {"model": model, "local": {"epochs": 1, "batch_size": 8}, "execution": "stacked", "rounds": 2}
    run = fedkin.run(settings, federation=federation, method="fedamp", device="cuda", out=tmp_path / "run")
    assert run.summary["execution"]["way"] == "stacked"
    assert run.summary["models"]["cloud"]["last"] is not None


def test_augmented_images_are_those_of_the_cpu_and_so_is_what_is_learnt_from_them(tmp_path):
    federation = noise((3, 12, 12))
    settings = {"model": "mlp", "local": {"epochs": 2, "batch_size": 8}, "rounds": 2, "precision": "float64"}
    settings |= {"data": {"augment": True}}
    states = []
    for device in ("cpu", "cuda"):
        fedkin.run(settings, federation=federation, device=device, out=tmp_path / device)
        states.append(load_file(tmp_path / device / "checkpoint" / "state.safetensors"))
    here, there = (state["server/W"] for state in states)
    assert (here - there).norm() <= 1e-9 * here.norm()
    plain = fedkin.run({**settings, "data": {"augment": False}}, federation=federation, out=tmp_path / "plain")
    other = load_file(plain.path / "checkpoint" / "state.safetensors")["server/W"]
    assert (here - other).norm() > 1e-3 * here.norm(), "it makes a difference at all"


def test_a_grid_trained_in_one_stack_on_a_gpu_is_that_of_the_cpu(tmp_path):
    settings = {"rounds": 2, "precision": "float64", "data": {"split": "relabelled", "clients": 10}}
    chosen = []
    for device in ("cpu", "cuda"):
        tuned = fedkin.tune(settings, grid={"local.lr": [1e-3, 1e-2]}, device=device, out=tmp_path / device)
        chosen.append([load_file(t.run.path / "checkpoint" / "state.safetensors") for t in tuned.trials])
    for here, there in zip(*chosen, strict=True):
        assert (here["server/W"] - there["server/W"]).norm() <= 1e-9 * here["server/W"].norm()


# ---- all clients at once ----


class Residual(nn.Module):
    """A user's own: an MLP that adds what a normalised layer says."""

    def __init__(self, inputs: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.enter, self.norm = nn.Linear(math.prod(inputs), 16), nn.LayerNorm(16)
        self.inner, self.head = nn.Linear(16, 16), nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x.flatten(1))
        return self.head(h + self.inner(self.norm(h).relu()))


NETWORKS: dict[str, tuple[Any, Callable[[], fedkin.Federation]]] = {
    "mlp": ({"name": "mlp"}, lambda: noise((1, 8, 8))),
    "cnn": ({"name": "cnn"}, lambda: noise((1, 16, 16))),
    "resnet18": ({"name": "resnet18"}, lambda: noise((1, 16, 16))),
    "gru": ({"name": "gru", "settings": {"hidden": 5}}, lambda: sensors(False)),
    "a user's own": (Residual, lambda: noise((1, 8, 8))),
}


def ready(name: str, **settings: Any) -> Assembly:
    """An assembly on the GPU, stacked unless told otherwise."""
    model, federation = NETWORKS[name]
    table = {"device": "cuda", "execution": "stacked", "local": {"epochs": 2, "batch_size": 8}, **settings}
    if isinstance(model, dict):
        return prepare({**table, "model": model}, federation=federation())
    return prepare(table, federation=federation(), model=model)


def start(a: Assembly) -> Tensor:
    """(m, D) a row for each client, each another."""
    row = a.problem.initial
    lot = torch.rand(len(a.cohort), len(row), generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    return row * (1 + 0.1 * lot.to(row))


@pytest.mark.parametrize("name", NETWORKS)
def test_clients_trained_at_once_are_those_trained_one_by_one(name):
    """For three rounds, in the later ones of which what the first did is played again."""
    ends = []
    for way in ("stacked", "one-by-one"):
        local = {"epochs": 2, "batch_size": 8, "optimiser": "sgd", "lr": 0.01, "momentum": 0.9}
        a = ready(name, execution=way, precision="float64", local=local)
        assert a.execution.name == way
        W = first = start(a)
        for round in (1, 2, 3):
            W = a.cohort.fit(W, at(round))
        assert (W - first).norm(dim=1).min() > 1e-3
        ends.append(W)
    d = a.problem.layout.parameters
    for part in (slice(0, d), slice(d, None)):  # large weights must not hide wrong statistics
        here, there = ends[0][:, part], ends[1][:, part]
        assert ((here - there).norm(dim=1) <= 1e-8 * there.norm(dim=1)).all(), (here - there).norm(dim=1)


class Exact(nn.Module):
    """Two layers side by side whose forward passes TF32 cannot round: of whole numbers, by 64ths between -1 and 1."""

    def __init__(self, inputs: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.conv, self.flat = nn.Conv2d(1, 16, 3), nn.Linear(math.prod(inputs), 64)
        with torch.no_grad():
            for weight in self.parameters():
                weight.copy_(torch.randint(-64, 65, weight.shape) / 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.flat(x.flatten(1)) / 16 + self.conv(x).mean((2, 3)).repeat(1, 4)


@pytest.mark.parametrize("way", ["layer by layer", "vmap", "one-by-one"])
def test_float32_is_tf32_in_the_backward_pass_and_strict_is_not(way):
    """The forward pass is exact either way, so what differs is the backward pass; in float64 there is no TF32."""
    lot = torch.Generator().manual_seed(3)
    x = torch.randint(-4, 5, (4, 128, 1, 16, 16), generator=lot).float()
    y = torch.randint(64, (4, 128), generator=lot)
    torch.manual_seed(0)
    module, device = Exact((1, 16, 16), 64), torch.device("cuda")
    layout = Layout.of(module)
    kind = {"layer by layer": Layered, "vmap": Stacked, "one-by-one": OneByOne}[way]
    switches = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)
    before = [switch.fp32_precision for switch in switches]
    gradients, losses = {}, {}
    for products in ("float64", "float32-strict", "float32"):
        dtype = torch.float64 if products == "float64" else torch.float32
        run = kind(copy.deepcopy(module).to(dtype), layout, LOSSES["cross_entropy"], device)
        run.products = products
        W = layout.row(module, dtype).cuda().repeat(4, 1)
        G, loss, _ = run.grad(W, Batch(x.cuda().to(dtype), y.cuda(), [128] * 4))
        assert [switch.fp32_precision for switch in switches] == before
        gradients[products], losses[products] = layout.trained(G.double()), loss
    torch.testing.assert_close(losses["float32"], losses["float32-strict"], rtol=1e-6, atol=0)
    exact = gradients["float64"]["flat.weight"]
    errors = {p: float((G["flat.weight"] - exact).norm() / exact.norm()) for p, G in gradients.items()}
    assert errors["float32-strict"] < 3e-6 and 1e-5 < errors["float32"] < 2e-3, errors  # TF32 has ten bits
    if way == "layer by layer":  # by kernels of our own, which keep more digits in a gradient of weights
        convolved = [gradients[products]["conv.weight"] for products in ("float32-strict", "float32")]
        assert not torch.equal(*convolved)
        torch.testing.assert_close(*convolved, rtol=1e-3, atol=1e-3 * float(convolved[0].abs().max()))


def test_ten_rounds_of_fedamp_stay_with_those_of_a_cpu(tmp_path):
    settings = {"method": "fedamp", "rounds": 10, "data": {"split": "relabelled"}, "execution": "stacked"}
    assert_same_on_both(tmp_path, settings, tolerance=1e-7)


def test_clients_in_chunks_are_those_trained_at_once(tmp_path):
    settings = {"method": "fedamp", "rounds": 3, "data": {"split": "relabelled"}, "precision": "float64"}
    runs = [fedkin.run(settings, device="cuda", chunk=chunk, out=tmp_path / str(chunk)) for chunk in (0, 3)]
    saved = [{name: t for name, t in weights(run.path).items() if "at_once" not in name} for run in runs]
    assert_same_weights(*saved)


def test_the_memory_of_a_run_is_its_own_and_not_that_of_a_larger_one_before(tmp_path):
    peaks = []
    for width in (16384, 16):
        gc.collect()  # what the run before still holds counts as used
        settings = {"rounds": 2, "model": {"name": "mlp", "settings": {"hidden": [width]}}}
        run = fedkin.run(settings, device="cuda", out=tmp_path / str(width))
        peaks.append(run.summary["peak_bytes"])
        assert all(0 < line["peak_bytes"] <= peaks[-1] for line in run.rounds if "peak_bytes" in line)
    assert 0 < peaks[1] < peaks[0] / 3  # there is room for the GPU's libraries in both


def test_kernels_are_compiled_side_by_side_before_they_are_needed(monkeypatch):
    needed = []

    def compiled(*, fn: Any, is_manual_warmup: bool, **_: Any) -> None:
        if not is_manual_warmup:
            needed.append(fn.name)

    monkeypatch.setattr(pytest.importorskip("triton").knobs.runtime, "jit_post_compile_hook", compiled)
    a = ready("cnn")
    a.cohort.fit(start(a), at(1))
    assert isinstance(a.execution, Layered) and a.execution.trouble is None
    assert sum(rehearsal.compiled for rehearsal in a.execution.rehearsals) > 5
    assert not [name for name in needed if "convolve" in name], "a start was not the one that was rehearsed"


@pytest.fixture
def no_synchronisation() -> Iterator[Callable[[], None]]:
    """From its call on, whatever waits for the GPU, or copies from the host and waits for that, is an error."""
    yield lambda: torch.cuda.set_sync_debug_mode("error")
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_a_round_of_training_waits_for_nothing(name, precision, no_synchronisation):
    a = ready(name, precision=precision)
    W = start(a)
    for round in (1, 2):  # every shape is seen, and then recorded
        W = a.cohort.fit(W, at(round))
    torch.cuda.synchronize()
    no_synchronisation()
    a.cohort.fit(W, at(3))
