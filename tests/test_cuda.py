"""On a GPU: the same numbers as on a CPU, and no TF32 where it would round the weights (trap T26)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fedkin
from fedkin.collaboration import cosine_distances, mix, squared_distances
from fedkin.data import traffic
from fedkin.data.roads import Roads

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")]


@pytest.fixture
def tf32():
    """TF32 allowed everywhere, as training on a GPU has it."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    yield
    torch.backends.cuda.matmul.fp32_precision = before


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


def weights(run: Path) -> dict[str, torch.Tensor]:
    """Every tensor that a run has saved: of its checkpoint, of the clients' models, newcomers' too, and outputs."""
    files = sorted(run.rglob("*.safetensors"))
    return {f"{file.relative_to(run)} {name}": t for file in files for name, t in load_file(file).items()}


def assert_same_on_both(folder: Path, settings: dict[str, Any], federation: fedkin.Federation | None = None) -> None:
    """A run in float64 ends with the same weights, but for rounding, on a GPU as on a CPU."""
    saved = []
    for device in ("cpu", "cuda"):
        run = fedkin.run(
            {**settings, "precision": "float64"}, federation=federation, device=device, out=folder / device
        )
        assert run.resolved().device == device
        saved.append(weights(run.path))
    assert saved[0].keys() == saved[1].keys()
    for name, here in saved[0].items():
        there = saved[1][name]
        if here.is_floating_point():
            assert torch.equal(here.isnan(), there.isnan()), name  # missing readings, and who has no score yet
            here, there = here.nan_to_num(), there.nan_to_num()
            rounding = 1e-9 if here.dtype == torch.float64 else 1e-6
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


@pytest.mark.parametrize("model", [{"name": "cnn"}, {"name": "resnet18"}, {"name": "mlp"}])
def test_models_train_stacked_on_a_gpu(model, tmp_path):
    images = {}
    for i in range(3):
        g = torch.Generator().manual_seed(i)
        x = torch.randn(20 + i, 1, 28, 28, generator=g)
        images[f"silo-{i}"] = (x.numpy(), torch.randint(4, (20 + i,), generator=g).numpy())
    federation = fedkin.Federation.from_arrays(images, fedkin.Task.classification((1, 28, 28), 4), name="noise")
    settings = {"model": model, "local": {"epochs": 1, "batch_size": 8}, "execution": "stacked", "rounds": 2}
    run = fedkin.run(settings, federation=federation, method="fedamp", device="cuda", out=tmp_path / "run")
    assert run.summary["execution"]["way"] == "stacked"
    assert run.summary["models"]["cloud"]["last"] is not None


def test_augmented_images_are_those_of_the_cpu_and_so_is_what_is_learnt_from_them(tmp_path):
    images = {}
    for i in range(3):
        g = torch.Generator().manual_seed(i)
        x = torch.rand(20 + i, 3, 12, 12, generator=g, dtype=torch.float64)
        images[f"silo-{i}"] = (x.numpy(), torch.randint(4, (20 + i,), generator=g).numpy())
    federation = fedkin.Federation.from_arrays(images, fedkin.Task.classification((3, 12, 12), 4), name="noise")
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
        chosen.append([load_file(t.point.path / "checkpoint" / "state.safetensors") for t in tuned.trials])
    for here, there in zip(*chosen, strict=True):
        assert (here["server/W"] - there["server/W"]).norm() <= 1e-9 * here["server/W"].norm()
