"""Batches of training images: the same from any number of workers and processes, and from any step on."""

import os
import random
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from nnstretch.errors import FileError, UsageError
from nnstretch.training.cores import usable_cores
from nnstretch.training.data import load_dataset
from nnstretch.training.data.loader import Batch, TrainingBatches
from nnstretch.training.recipe import Recipe
from tests.kits.networks.unreadable_images import made

SIDE = 16
PLAIN = Recipe(batch_size=8, seed=5, workers=0)
CHANGES: list[dict[str, Any]] = [
    {},
    {"shift": 0.1, "rotation": 10.0, "zoom": 0.1, "hflip": 0.5, "color_pca": 0.1, "smoothing": 0.1},
    {"scale": (0.1, 1.0), "aa": "rand-m7-mstd0.5-inc1", "reprob": 0.5, "hflip": 0.5, "mixup": 0.8, "cutmix": 1.0},
    {"color_jitter": 0.4, "scale": (0.5, 1.0)},
    {"aa": "augmix-m3-w2"},
    {"aa": "original", "cutmix": 1.0},
]


def recipe(**changes: Any) -> Recipe:
    return replace(PLAIN, **changes)


def assert_equal(found: list[Batch], wanted: list[Batch]) -> None:
    assert len(found) == len(wanted) > 0
    for one, other in zip(found, wanted, strict=True):
        for name in ("images", "targets", "labels", "indices"):
            assert torch.equal(getattr(one, name), getattr(other, name)), name


@pytest.mark.parametrize("changes", CHANGES)
def test_workers_change_nothing(changes: dict[str, Any]) -> None:
    dataset = made()
    wanted = [list(TrainingBatches(dataset, recipe(**changes)).epoch(epoch)) for epoch in (0, 3)]
    for workers in (1, 2):
        batches = TrainingBatches(dataset, recipe(**changes, workers=workers))
        assert batches.workers == workers
        for epoch, batch in zip((0, 3), wanted, strict=True):
            assert_equal(list(batches.epoch(epoch)), batch)
        batches.close()


@pytest.mark.parametrize("changes", CHANGES)
def test_processes_share_the_same_batches(changes: dict[str, Any]) -> None:
    dataset = made()
    whole = list(TrainingBatches(dataset, recipe(**changes)).epoch(2))
    parts = [list(TrainingBatches(dataset, recipe(**changes), rank=rank, ranks=2).epoch(2)) for rank in range(2)]
    for one, *shares in zip(whole, *parts, strict=True):
        order = one.indices.argsort()
        together = torch.cat([share.indices for share in shares]).argsort()
        for name in ("images", "targets", "labels", "indices"):
            joined = torch.cat([getattr(share, name) for share in shares])
            assert torch.equal(joined[together], getattr(one, name)[order]), name


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_begins_at_any_step(workers: int) -> None:
    dataset, settings = made(), recipe(**CHANGES[2], workers=workers)
    batches = TrainingBatches(dataset, settings)
    assert batches.steps_per_epoch == 5
    wanted = list(batches.epoch(1))
    for _ in batches.epoch(4):  # one that is left in the middle
        break
    assert_equal(list(batches.epoch(1, 3)), wanted[3:])
    assert_equal(list(TrainingBatches(dataset, settings).epoch(1, 4)), wanted[4:])
    assert list(batches.epoch(1, 5)) == []
    batches.close()


def test_epochs_have_other_orders_images_and_changes() -> None:
    batches = TrainingBatches(made(), recipe(shift=0.1))
    first, second = list(batches.epoch(0)), list(batches.epoch(1))
    orders = [torch.cat([batch.indices for batch in epoch]).tolist() for epoch in (first, second)]
    assert len(set(orders[0])) == 40  # an incomplete batch is left out
    assert orders[0] != orders[1]
    other = list(TrainingBatches(made(), recipe(shift=0.1, seed=6)).epoch(0))
    assert not torch.equal(other[0].indices, first[0].indices)


def test_without_changes_images_are_those_of_an_evaluation() -> None:
    dataset = made()
    for batch in TrainingBatches(dataset, recipe()).epoch(0):
        assert np.array_equal(batch.images.numpy(), dataset.train.arrays(batch.indices.numpy()))
        assert torch.equal(batch.targets, batch.labels)
        assert batch.labels.tolist() == dataset.train.labels[batch.indices.numpy()].tolist()


@pytest.mark.parametrize("width", [SIDE, 2 * SIDE])
def test_digits_are_augmented_with_and_without_whole_images(width: int) -> None:
    dataset = load_dataset("digits", (SIDE, width))
    plain = next(TrainingBatches(dataset, recipe()).epoch(0))
    assert np.array_equal(plain.images.numpy(), dataset.train.arrays(plain.indices.numpy()))
    assert TrainingBatches(dataset, recipe(workers=None)).workers == 0
    cropped = next(TrainingBatches(dataset, recipe(scale=(0.9, 1.0))).epoch(0))
    assert cropped.images.shape == (8, 1, SIDE, width)
    assert torch.corrcoef(torch.stack((plain.images.flatten(), cropped.images.flatten())))[0, 1] > 0.8


def test_images_in_memory_get_workers_beside_an_accelerator_and_stay_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nnstretch.training.data.loader.usable_cores", lambda: 3)
    dataset, settings = load_dataset("digits", SIDE), recipe(batch_size=400, shift=0.1, rotation=10.0, workers=None)
    alone = TrainingBatches(dataset, settings, device=torch.device("cpu"))
    batches = TrainingBatches(dataset, settings, device=torch.device("cuda"))
    assert (alone.workers, batches.workers) == (0, 2)
    assert TrainingBatches(dataset, settings, ranks=2, device=torch.device("cuda")).workers == 1
    assert_equal(list(batches.epoch(1)), list(alone.epoch(1)))
    batches.close()


def test_systems_that_do_not_say_which_cores_are_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert usable_cores() == len(os.sched_getaffinity(0))
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert usable_cores() == 6
    assert TrainingBatches(made(), recipe(workers=None)).workers == 5


def test_grey_images_take_policies_of_colours() -> None:
    batch = next(TrainingBatches(made(channels=1), recipe(aa="rand-m9-inc1", color_jitter=0.4)).epoch(0))
    assert batch.images.shape == (8, 1, SIDE, SIDE)


def test_the_generators_of_libraries_are_left_alone() -> None:
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    torch.manual_seed(3)
    wanted = random.random(), float(np.random.random()), float(torch.rand(()))  # noqa: NPY002
    for workers in (0, 1):
        random.seed(3)
        np.random.seed(3)  # noqa: NPY002
        torch.manual_seed(3)
        batches = TrainingBatches(made(), recipe(**CHANGES[2], workers=workers))
        assert len(list(batches.epoch(0))) == 5
        batches.close()
        assert (random.random(), float(np.random.random()), float(torch.rand(()))) == wanted  # noqa: NPY002


def test_targets_are_those_of_smoothing_and_mixing() -> None:
    smooth = next(TrainingBatches(made(), recipe(smoothing=0.2)).epoch(0))
    expected = torch.nn.functional.one_hot(smooth.labels, 4) * 0.8 + 0.05
    torch.testing.assert_close(smooth.targets, expected)
    mixes = TrainingBatches(made(), recipe(mixup=0.8, mixup_off_epoch=3))
    mixed, plain = next(mixes.epoch(2)), next(mixes.epoch(3))
    torch.testing.assert_close(mixed.targets.sum(dim=1), torch.ones(8))
    assert plain.targets.dtype == torch.int64
    unmixed = next(TrainingBatches(made(), recipe()).epoch(2))
    share = float(mixed.targets[0].max())
    blends = [s * unmixed.images + (1 - s) * unmixed.images.flip(0) for s in (share, 1 - share)]
    assert any(torch.allclose(mixed.images, blend, atol=1e-5) for blend in blends)


def test_an_unreadable_image_is_replaced_by_the_next_of_its_class_and_named() -> None:
    for workers in (0, 2):
        batches = TrainingBatches(made(bad=frozenset({8, 12})), recipe(workers=workers))
        assert batches.note == ""
        found = {
            int(index): image
            for batch in batches.epoch(0)
            for index, image in zip(batch.indices, batch.images, strict=True)
        }
        wanted = made().train.arrays(np.array([16, 16, 20]))
        for index, image in zip((8, 12, 20), wanted, strict=True):
            if index in found:
                assert np.array_equal(found[index].numpy(), image)
        assert set(batches.unreadable) == {8, 12}
        assert batches.note == (
            "2 of 44 training images cannot be decoded, and others of their classes took their place: "
            "8.jpg (truncated), 12.jpg (truncated)"
        )
        batches.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_many_unreadable_images_end_the_training(workers: int) -> None:
    batches = TrainingBatches(made(bad=frozenset(range(0, 44, 3))), recipe(workers=workers))
    with pytest.raises(
        FileError, match=r"of 44 training images cannot be decoded, more than 5%: .* and \d+ more"
    ) as caught:
        list(batches.epoch(0))
    assert "\n" not in str(caught.value)
    batches = TrainingBatches(made(bad=frozenset({3, 7, 11, 15, 19, 23, 27, 31, 35, 39, 43})), recipe(workers=workers))
    with pytest.raises(FileError, match=r"no image of class 3 can be decoded: ") as caught:
        list(batches.epoch(0))
    assert "\n" not in str(caught.value)


def test_batches_that_cannot_be_divided_are_refused() -> None:
    with pytest.raises(UsageError, match="batch_size is 9; a multiple of 2 is wanted for several processes"):
        TrainingBatches(made(), recipe(batch_size=9), ranks=2)
    with pytest.raises(UsageError, match="a multiple of 4 is wanted for several processes and mixing pairs of images"):
        TrainingBatches(made(), recipe(batch_size=10, mixup=0.1), ranks=2)
    with pytest.raises(UsageError, match="1 training images; 2 or more"):
        TrainingBatches(made(1), recipe(), ranks=2)
    assert TrainingBatches(made(5), recipe(batch_size=64, mixup=0.1)).batch == 4
    assert TrainingBatches(made(), recipe(batch_size=6), ranks=2).steps_per_epoch == 7
    parts = [next(TrainingBatches(made(), recipe(batch_size=6), rank=rank, ranks=2).epoch(0)) for rank in range(2)]
    whole = next(TrainingBatches(made(), recipe(batch_size=6)).epoch(0))
    assert torch.equal(torch.cat([part.indices for part in parts]), whole.indices)


@pytest.mark.parametrize("policy", ["rand-x9", "nonsense"])
def test_an_unknown_policy_is_one_line(policy: str) -> None:
    with pytest.raises(UsageError, match=f"aa is '{policy}', which timm does not know") as caught:
        TrainingBatches(made(), recipe(aa=policy))
    assert "\n" not in str(caught.value)


def test_a_killed_worker_is_one_line() -> None:
    """In a process of its own: torch raises its error in whatever code runs when the worker ends."""
    code = """
from nnstretch.errors import UsageError
from nnstretch.training.data import load_dataset
from nnstretch.training.data.loader import TrainingBatches, lost_workers_named
from nnstretch.training.recipe import Recipe

try:
    with lost_workers_named():
        batches = TrainingBatches(load_dataset("textures", 16), Recipe(batch_size=8, workers=1))
        loaded = batches.epoch(0)
        next(loaded)
        (worker,) = batches._source._iterator._workers
        worker.kill()
        list(loaded)
except UsageError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=240)
    (line,) = done.stdout.splitlines()
    assert line.startswith("a process that loads images ended (")
    assert line.endswith("it may have lacked memory: lower workers or batch_size")


def test_workers_outlive_a_signal_to_the_process_group() -> None:
    """As `timeout` and batch systems send it: the main process, which it asks to stop, still reads what workers load."""
    code = """
import os, signal

from nnstretch.training.data import load_dataset
from nnstretch.training.data.loader import TrainingBatches
from nnstretch.training.recipe import Recipe

signal.signal(signal.SIGTERM, lambda number, frame: print("asked"))
batches = TrainingBatches(load_dataset("textures", 16), Recipe(batch_size=512, workers=1))
loaded = batches.epoch(0)
next(loaded)
os.killpg(0, signal.SIGTERM)
print(1 + len(list(loaded)) == batches.steps_per_epoch)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=240, start_new_session=True
    )
    assert done.stdout.splitlines() == ["asked", "True"]
