"""Augmented training images: crop and flip of each are drawn from its client's own stream and from nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from helpers import DEVICE, at, close, ready, same_record, simulate, watched
from torch import Tensor

import fedkin
from fedkin.base import streams
from fedkin.base.settings import ConfigError
from fedkin.base.task import Task
from fedkin.data.federation import Client, Federation
from fedkin.data.preprocessing import Pixels
from fedkin.engines.assembly import Assembly
from fedkin.engines.simulation import Interrupted
from fedkin.training.augment import Augmentation
from fedkin.training.evaluation import evaluate

SHAPE = (2, 6, 5)
"""Two channels, and higher than wide: what mixes up sides or channels shows."""
FILL = (-7.5, 8.25)
ALL = {"data": {"augment": True}}


def moved(image: Tensor, row: int, column: int, mirrored: int, pad: int) -> Tensor:
    """One image (C, H, W), channel by channel, with torch's own padding, a slice and a flip."""
    _, height, width = image.shape
    padded = torch.stack([F.pad(c, (pad,) * 4, value=v) for c, v in zip(image, FILL, strict=True)])
    piece = padded[:, row : row + height, column : column + width]
    return piece.flip(-1) if mirrored else piece


def pictures(sizes: tuple[int, ...] = (13, 9, 6, 4), preprocessing: Pixels | None = None) -> Federation:
    """Clients a, b, c, ... with images whose every pixel is another number, none of them zero."""
    members = []
    for i, n in enumerate(sizes):
        name = chr(ord("a") + i)
        x = 1 + torch.rand(n + 5, *SHAPE, generator=streams.generator("picture", name), dtype=torch.float64)
        y = torch.arange(n + 5) % 3
        members.append(Client(name, (x[:n], y[:n]), (x[n:], y[n:]), preprocessing=preprocessing))
    return Federation("pictures", tuple(members), Task.classification(SHAPE, 3))


def seen(assembly: Assembly, clients: list[int], round: int = 1, **settings: object) -> dict[str, list[Tensor]]:
    """The images that each of some clients trains with in a round, batch by batch."""
    cohort, found = assembly.cohort.take(clients), {assembly.cohort.names[i]: [] for i in clients}
    for batch in cohort.batches(at(round), **settings):  # type: ignore[arg-type]
        for name, x, count in zip(cohort.names, batch.x, batch.counts, strict=False):
            found[name].append(x[:count].clone())
    return found


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(map(torch.equal, a, b))


# ---- one image ----


@pytest.mark.parametrize("pad", [0, 1, 4, 7])
def test_every_place_and_both_ways_round_equal_padding_and_cutting_one_image_at_a_time(pad):
    augmentation = Augmentation(pad, True, FILL)
    places = range(2 * pad + 1)
    moves = torch.tensor([[(r, c, f) for c in places for f in (0, 1)] for r in places], dtype=torch.uint8)
    x, moves = torch.randn(*moves.shape[:2], *SHAPE).to(DEVICE), moves.to(DEVICE)
    expected = [[moved(i, *m.tolist(), pad) for i, m in zip(*pair, strict=True)] for pair in zip(x, moves, strict=True)]
    assert torch.equal(augmentation(x, moves), torch.stack([torch.stack(row) for row in expected]))


def test_cut_out_where_it_lay_and_not_mirrored_an_image_stays_as_it_was():
    x = torch.randn(3, 7, *SHAPE).to(DEVICE)
    still = torch.tensor([4, 4, 0], dtype=torch.uint8, device=DEVICE).expand(3, 7, 3)
    assert torch.equal(Augmentation(4, True, FILL)(x, still), x)


def test_places_are_uniform_and_half_of_the_images_are_mirrored():
    draws = Augmentation(4, True, FILL).draw((400, 100), streams.generator(0)).reshape(-1, 3).long()
    expected = len(draws) / 162
    counts = torch.bincount(draws[:, 0] * 18 + draws[:, 1] * 2 + draws[:, 2], minlength=162)
    assert len(counts) == 162, "rows and columns 0 to 8, mirrored or not"
    assert (counts - expected).square().sum() / expected < 250, "chi squared of 161 degrees: 250 is 5 deviations off"


def test_without_flips_nothing_is_mirrored_and_every_place_is_drawn():
    draws = Augmentation(4, False, FILL).draw((50, 100), streams.generator(0)).reshape(-1, 3)
    assert not draws[:, 2].any()
    assert len(draws.unique(dim=0)) == 81


# ---- whose numbers ----


def test_a_batch_holds_the_clients_images_moved_as_its_own_stream_says():
    plain, augmented = ready(pictures()), ready(pictures(), **ALL)
    stock, found = seen(plain, [0, 1, 2, 3]), seen(augmented, [0, 1, 2, 3])
    pad = augmented.cohort.augmentation.pad
    for name, n in zip("abcd", (13, 9, 6, 4), strict=True):
        source = streams.generator(augmented.cohort.seed, name, 1, "augmentation/train")
        moves = augmented.cohort.augmentation.draw((len(stock[name]), min(4, n)), source)
        for batch, images, drawn in zip(found[name], stock[name], moves, strict=True):
            for got, image, m in zip(batch, images, drawn, strict=False):
                row, column, mirrored = m.tolist()
                padded = F.pad(image, (pad,) * 4)  # no preprocessing: black is zero
                piece = padded[:, row : row + 6, column : column + 5]
                assert torch.equal(got, piece.flip(-1) if mirrored else piece)


@pytest.mark.parametrize("clients", [[0], [1], [3], [0, 2], [1, 3], [1, 2, 3]])
@pytest.mark.parametrize("settings", [{}, {"stream": "finetune"}, {"size": 5}, {"steps": 6}])
@pytest.mark.parametrize("merged", [False, True])
def test_what_a_client_sees_does_not_depend_on_who_trains_beside_it(clients, settings, merged):
    assembly = ready(pictures(), **ALL)
    if merged:  # as for models with BatchNorm: a last batch of one joins the one before
        assembly = replace(assembly, cohort=replace(assembly.cohort, merge_single=True))
    together, apart = seen(assembly, [0, 1, 2, 3], **settings), seen(assembly, clients, **settings)
    assert all(same(together[name], apart[name]) for name in apart)


def test_nor_on_the_order_in_which_clients_were_given():
    federation = pictures((6, 6, 6))
    turned = replace(federation, clients=federation.clients[::-1])
    a, b = (seen(ready(f, **ALL), [0, 1, 2]) for f in (federation, turned))
    assert all(same(a[name], b[name]) for name in "abc")


def test_more_steps_begin_with_the_same_ones():
    assembly = ready(pictures(), **ALL)
    few, many = seen(assembly, [0, 1], steps=3), seen(assembly, [0, 1], steps=11)
    assert all(same(few[name], many[name][:3]) for name in "ab")


def test_rounds_streams_clients_and_seeds_move_the_same_images_differently():
    federation = pictures((40, 40))
    twin = replace(federation.clients[0], name="b")
    federation = replace(federation, clients=(federation.clients[0], twin))
    assembly = ready(federation, **ALL, local={"batch_size": 40, "epochs": 1})
    other = ready(federation, **ALL, local={"batch_size": 40, "epochs": 1}, training_seed=5)

    def pixels(assembly: Assembly, client: int, round: int, stream: str) -> Tensor:
        (batch,) = seen(assembly, [client], round, stream=stream).values()
        return batch[0]

    base = pixels(assembly, 0, 1, "train")
    others = [
        (assembly, 0, 2, "train"),
        (assembly, 0, 1, "finetune"),
        (assembly, 1, 1, "train"),
        (other, 0, 1, "train"),
    ]
    for which in others:
        assert not torch.equal(pixels(*which).sort(0).values, base.sort(0).values), "not even in another order"
    assert torch.equal(pixels(assembly, 0, 1, "train"), base)


def test_two_passes_over_the_data_move_an_image_differently():
    assembly = ready(pictures((40,)), **ALL, local={"batch_size": 40, "epochs": 2})
    first, second = seen(assembly, [0])["a"]
    assert not torch.equal(first.sort(0).values, second.sort(0).values)


# ---- where it applies ----


def test_full_gradients_and_scores_are_of_the_images_as_they_are():
    plain, augmented = ready(pictures()), ready(pictures(), **ALL)
    a, b = (seen(x, [0, 1, 2, 3], stream="full", epochs=1) for x in (plain, augmented))
    assert all(same(a[name], b[name]) for name in "abcd")
    rows = plain.problem.initial.repeat(4, 1)
    for part in (plain.test, plain.cohort.train):
        scores = [evaluate(x.execution, part, rows, x.problem.task.metric) for x in (plain, augmented)]
        assert torch.equal(*scores)
    assert torch.equal(augmented.test.x.cpu(), torch.cat([c.test[0] for c in augmented.federation.clients]))
    assert torch.equal(augmented.cohort.train.x.cpu(), torch.cat([c.train[0] for c in augmented.federation.clients]))


def test_the_border_is_black_as_the_preprocessing_makes_it():
    pixels = Pixels(SHAPE, 255, (0.2, 0.6), (0.5, 0.25))
    black = pixels.module()(torch.zeros(1, *SHAPE, dtype=torch.uint8))[0, :, 0, 0]
    assembly = ready(pictures(preprocessing=pixels), **ALL)
    assert torch.equal(torch.tensor(assembly.cohort.augmentation.fill), black)
    images = torch.cat(seen(assembly, [0])["a"])
    for channel, value in enumerate(black.double()):
        outside = images[:, channel] < 1  # the pictures' own pixels are 1 to 2
        assert outside.any()
        assert (images[:, channel][outside] == value).all()


def test_data_that_are_no_images_cannot_be_cropped():
    with pytest.raises(ConfigError, match=r"data.augment = true crops and flips images .* has shape \(4,\)"):
        ready(**ALL)


def test_it_is_off_unless_asked_for():
    assert ready(pictures()).cohort.augmentation is None


# ---- whole runs ----


def final(run: object) -> Tensor:
    return run.servers[max(run.servers)].W  # type: ignore[attr-defined]


def test_stacked_one_by_one_and_in_chunks_clients_learn_the_same(tmp_path):
    runs = [
        simulate(tmp_path, pictures(), **ALL, **way)
        for way in ({"execution": "stacked"}, {"execution": "one-by-one"}, {"chunk": 1}, {"chunk": 3})
    ]
    assert all(close(final(run), final(runs[0])) for run in runs[1:])
    assert not close(final(simulate(tmp_path, pictures())), final(runs[0]), 1e-3), (
        "augmentation changes what is learned"
    )


def test_an_interrupted_run_goes_on_as_if_nothing_had_been(tmp_path):
    whole = simulate(tmp_path, pictures(), **ALL)
    part = watched(tmp_path, pictures(), **ALL)
    part.listener.stop = lambda: len(part.lines) == 2
    with pytest.raises(Interrupted):
        part.run()
    done = fedkin.resume(part.writer.path, federation=pictures())
    for line, expected in zip(done.rounds, whole.lines.values(), strict=True):
        assert same_record(line, expected)
    plain = simulate(tmp_path, pictures())
    assert plain.lines[2]["train_loss"] != whole.lines[2]["train_loss"]
