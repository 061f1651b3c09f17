"""On a GPU: the same numbers as on a CPU, and no TF32 where it would round the weights (trap T26)."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

import fedkin
from fedkin.collaboration import cosine_distances, mix, squared_distances

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


@pytest.mark.parametrize(
    "method", ["fedamp", "heurfedamp", "fedavg", "fedprox", "scaffold", "apfl", "groups", "separate"]
)
@pytest.mark.parametrize("execution", ["stacked", "one-by-one"])
def test_a_run_on_a_gpu_is_the_run_on_a_cpu(method, execution, tmp_path):
    settings = {"method": method, "rounds": 3, "precision": "float64", "execution": execution}
    settings |= {"data": {"split": "relabelled"}, "participation": {"sample": 0.8, "lost": 0.2}}
    states = []
    for device in ("cpu", "cuda"):
        fedkin.run(settings, device=device, out=tmp_path / device)
        states.append(load_file(tmp_path / device / "checkpoint" / "state.safetensors"))
    for name, here in states[0].items():
        there = states[1][name]
        if here.is_floating_point():
            assert (here - there).norm() <= 1e-9 * here.norm(), name
        else:
            assert torch.equal(here, there), name


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
