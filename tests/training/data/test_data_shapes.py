"""Generated scenes: boxes and masks of the same objects, fixed where they are compared, endless where they are learned from."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnstretch.errors import UsageError
from nnstretch.training.data import load_dataset, names_dense_data
from nnstretch.training.data.loader import TrainingBatches
from nnstretch.training.data.sources import shapes
from nnstretch.training.data.sources.shapes import OUTLINES, Thing, painted, scene
from nnstretch.training.recipe import Recipe

SPLITS = ("train", "validation", "test")
AREAS = {
    "disc": math.pi,
    "square": (2 * 0.84) ** 2,
    "triangle": 3 * math.sqrt(3) * 0.55**2,
    "ring": math.pi * (1 - 0.52**2),
    "cross": 4 * 0.32 * (2 - 0.32),
    "half disc": math.pi / 2,
}
"""Areas of the outlines by formulas, for a radius of 1."""


def pair(size: Any = 48) -> tuple[Any, Any]:
    return load_dataset("shapes:boxes", size), load_dataset("shapes:masks", size)


def test_boxes_and_masks_are_of_the_same_images_in_disjoint_splits() -> None:
    boxes, masks = pair()
    assert boxes.class_names == tuple(OUTLINES)
    assert masks.class_names == ("background", *OUTLINES)
    assert [len(getattr(boxes, name)) for name in SPLITS] == [20_000, 2_000, 4_000]
    seen = set()
    for name in SPLITS:
        images = [getattr(boxes, name).raw(index, 0).tobytes() for index in range(20)]
        assert images == [getattr(masks, name).raw(index, 0).tobytes() for index in range(20)]
        seen |= set(images)
    assert len(seen) == 60


def test_training_scenes_are_those_of_their_epoch_and_others_are_fixed() -> None:
    for dataset in pair():
        for name in SPLITS:
            split = getattr(dataset, name)
            images = [split.raw(7, epoch).tobytes() for epoch in (0, 3)]
            targets = [[np.asarray(split.target(number, epoch)[0]).tolist() for number in range(9)] for epoch in (0, 3)]
            assert (images[0] != images[1]) == (targets[0] != targets[1]) == (name == "train")


@given(st.integers(0, 2**40), st.integers(0, 50), st.sampled_from([8, 33, 64, 150]))
def test_boxes_are_around_what_the_mask_shows(number: int, epoch: int, size: int) -> None:
    """Every pixel of a class lies in a box of it, and every box has its class at all four sides."""
    boxes, masks = pair(size)
    rows, mask = boxes.train.target(number, epoch).rows.astype(int), masks.train.target(number, epoch)
    assert len(rows) <= 4
    covered = np.zeros((7, size, size), bool)
    for left, top, right, bottom, label in rows:
        part = mask[top:bottom, left:right] == label + 1
        assert all(side.any() for side in (part[0], part[-1], part[:, 0], part[:, -1]))
        covered[label + 1, top:bottom, left:right] = True
    stray = sum((mask == label) & ~covered[label] for label in range(1, 7))
    assert np.sum(stray) < shapes._LEAST_PIXELS * 4  # objects of a few pixels have no box
    if size >= 33:
        assert len(rows) >= 1
        assert not np.any(stray)


@pytest.mark.parametrize("name", OUTLINES)
@pytest.mark.parametrize("angle", [0.0, 1.0])
def test_an_outline_has_its_area_wherever_and_however_it_lies(name: str, angle: float) -> None:
    thing = Thing(tuple(OUTLINES).index(name), 0.03, -0.07, 0.3, angle, 0.1)
    assert float(thing.cover(400).sum()) / (0.3 * 400) ** 2 == pytest.approx(AREAS[name], rel=0.01)


@given(st.integers(0, 2**62), st.integers(0, 1000))
def test_no_scene_takes_more_numbers_than_there_are(number: int, epoch: int) -> None:
    numbers = shapes._SceneNumbers(1, epoch, number)
    painted(scene(numbers), 16, numbers)
    assert numbers.taken <= 160 < numbers.COUNT


def test_colours_of_a_place_do_not_tell_its_class() -> None:
    """A nearest mean colour finds no outlines: the masks are a matter of form."""
    split = load_dataset("shapes:masks", 32).train
    images, masks = split.arrays(np.arange(300)), split.targets(np.arange(300))
    pixels, labels = images.transpose(0, 2, 3, 1).reshape(-1, 3), masks.reshape(-1)
    pixels, labels = pixels[labels > 0], labels[labels > 0]
    half = len(labels) // 2
    means = np.stack([pixels[:half][labels[:half] == label].mean(axis=0) for label in range(1, 7)])
    answers = 1 + ((pixels[half:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
    assert (answers == labels[half:]).mean() < 0.3


def test_inputs_that_are_no_squares_have_targets_in_them() -> None:
    for dataset in pair((24, 48)):
        images, targets = dataset.test.arrays(np.arange(8)), dataset.test.targets(np.arange(8))
        assert images.shape == (8, 3, 24, 48)
        if targets.ndim == 3 and targets.shape[2] == 5:
            rows = targets[targets[..., 4] >= 0]
            assert len(rows)
            assert (rows[:, :4] >= 0).all()
            assert (rows[:, [1, 3]] <= 24).all()
        else:
            assert targets.shape == (8, 24, 48)
            assert targets.any()


def test_a_batch_without_augmentation_is_the_scenes_and_needs_no_wrapping(monkeypatch: pytest.MonkeyPatch) -> None:
    for dataset in pair(32):
        monkeypatch.setattr(type(dataset.task), "wrapped", None)
        batch = next(TrainingBatches(dataset, Recipe(batch_size=4, workers=0)).epoch(0))
        indices = batch.indices.numpy()
        np.testing.assert_array_equal(batch.images.numpy(), dataset.train.arrays(indices))
        np.testing.assert_array_equal(batch.targets.numpy(), dataset.train.targets(indices))


@pytest.mark.parametrize("text", ["shapes", "shapes:", "shapes:points"])
def test_other_targets_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="write shapes:boxes or shapes:masks"):
        load_dataset(text)


def test_commands_take_the_recipe_for_dense_data() -> None:
    assert names_dense_data("shapes:boxes")
    assert not names_dense_data("textures")
