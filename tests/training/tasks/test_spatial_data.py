"""Masks and boxes from files, and on their way through augmentation: what moves pixels moves them, too."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from nnstretch.errors import FileError, NNStretchError, UsageError
from nnstretch.support.image_size import ImageSize
from nnstretch.training.data import load_dataset
from nnstretch.training.data.loader import Batch, TrainingBatches
from nnstretch.training.data.sources.unlabelled import unlabelled_images
from nnstretch.training.data.split import Dataset
from nnstretch.training.data.unreadable import without_unreadable
from nnstretch.training.recipe import Recipe
from nnstretch.training.tasks.segmentation import IGNORED
from tests.kits.kernels.shapes import SIDE, shapes, write_coco, write_masks

COUNTS = (("train", 12), ("val", 4), ("test", 4))
RECIPE = Recipe(batch_size=4, workers=0, threads=1)
MOVED = replace(RECIPE, scale=(0.5, 1.0), hflip=0.5, shift=0.1, rotation=10.0, zoom=0.1, color_jitter=0.1)


SIZES = pytest.mark.parametrize("size", [SIDE, (SIDE, SIDE + SIDE // 2)])


def whole(source: str, size: ImageSize = SIDE) -> Dataset:
    """A data set whose inputs are whole images, which squares are."""
    dataset = load_dataset(source, size)
    return dataset.preprocessed(replace(dataset.preprocessing, crop_pct=1.0))


@pytest.fixture(scope="module")
def masks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("masks")
    write_masks(root, COUNTS)
    (root / "classes.txt").write_text("nothing\nsquare\ndisc\n")
    return root


@pytest.fixture(scope="module")
def coco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("coco")
    write_coco(root, COUNTS)
    return root


def test_masks_are_read(masks: Path) -> None:
    dataset = whole(f"masks:{masks}")
    assert (dataset.class_names, dataset.task.name) == (("nothing", "square", "disc"), "segmentation")
    assert [len(split) for split in (dataset.train, dataset.validation, dataset.test)] == [12, 4, 4]
    numbers = sorted(range(12), key=lambda number: f"{number}.png")
    found = dataset.train.targets(np.arange(12))
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, [shapes(number)[1] for number in numbers])


def test_boxes_are_read(coco: Path) -> None:
    dataset = whole(f"coco:{coco}")
    assert (dataset.class_names, dataset.task.name) == (("square", "disc"), "detection")
    assert dataset.train.targets(np.arange(12)).tolist() == [shapes(number)[2] for number in range(12)]
    assert [len(split) for split in (dataset.train, dataset.validation, dataset.test)] == [12, 4, 4]


@pytest.mark.parametrize("layout", ["year", "beside", "alone"])
def test_boxes_are_found_in_other_layouts(tmp_path: Path, layout: str) -> None:
    write_coco(tmp_path, (("train", 20),))
    if layout == "year":
        (tmp_path / "annotations").mkdir()
        (tmp_path / "train.json").rename(tmp_path / "annotations" / "instances_train2017.json")
        (tmp_path / "train").rename(tmp_path / "train2017")
    elif layout == "beside":
        (tmp_path / "train.json").rename(tmp_path / "train" / "_annotations.coco.json")
    dataset = whole(f"coco:{tmp_path}")
    assert [len(split) for split in (dataset.train, dataset.validation, dataset.test)] == [16, 2, 2]
    assert dataset.train.targets(np.arange(16)).shape == (16, 2, 5)
    assert dataset.test.arrays(np.arange(2)).shape == (2, 3, SIDE, SIDE)


def test_masks_without_splits_and_names_are_divided(tmp_path: Path) -> None:
    write_masks(tmp_path, (("all", 20),))
    dataset = whole(f"masks:{tmp_path / 'all'}")
    assert [len(split) for split in (dataset.train, dataset.validation, dataset.test)] == [16, 2, 2]
    assert dataset.class_names == ("0", "1", "2")
    assert dataset.validation.targets(np.arange(2)).shape == (2, SIDE, SIDE)


def all_batches(dataset: Dataset, recipe: Recipe, **more: Any) -> list[Batch]:
    made = TrainingBatches(dataset, recipe, **more)
    found = list(made.epoch(0))
    made.close()
    return found


def color_of(image: torch.Tensor, dataset: Dataset) -> np.ndarray:
    """The pixels of one input."""
    pixels: np.ndarray = dataset.preprocessing.denormalised(image[None].numpy())[0].astype(int)
    return pixels


@SIZES
def test_masks_move_with_the_pixels(masks: Path, size: ImageSize) -> None:
    """Squares are red and discs are blue, wherever they are."""
    dataset = whole(f"masks:{masks}", size)
    moved = 0
    for batch in all_batches(dataset, MOVED):
        plain = dataset.train.targets(batch.indices.numpy())
        for image, mask, before in zip(batch.images, batch.targets.numpy(), plain, strict=True):
            pixels = color_of(image, dataset)
            redder = pixels[..., 0] - pixels[..., 2]
            assert np.median(redder[mask == 1]) > 60 if (mask == 1).sum() > 8 else True
            assert np.median(redder[mask == 2]) < -60 if (mask == 2).sum() > 8 else True
            assert abs(np.median(redder[mask == 0])) < 30
            moved += not np.array_equal(mask, before)
            assert set(np.unique(mask)) <= {0, 1, 2, IGNORED}
    assert moved == 12


@SIZES
def test_boxes_move_with_the_pixels(coco: Path, size: ImageSize) -> None:
    """A box holds its shape: its middle has the shape's colour, and it is not much larger than what has that colour."""
    dataset = whole(f"coco:{coco}", size)
    boxes = 0
    for batch in all_batches(dataset, replace(MOVED, rotation=0.0)):
        for image, rows in zip(batch.images, batch.targets.numpy(), strict=True):
            pixels = color_of(image, dataset)
            for left, top, right, bottom, label in rows[rows[:, 4] >= 0]:
                inside = pixels[round(top) : round(bottom), round(left) : round(right)]
                sign = 1 if label == 0 else -1
                assert (sign * (inside[..., 0] - inside[..., 2]) > 30).mean() > 0.6
                boxes += 1
    assert boxes >= 20


@pytest.mark.parametrize("name", ["masks", "coco"])
def test_batches_are_the_same_for_any_workers_and_processes(name: str, request: pytest.FixtureRequest) -> None:
    dataset = whole(f"{name}:{request.getfixturevalue(name)}")
    one = all_batches(dataset, MOVED)
    parallel = all_batches(dataset, replace(MOVED, workers=2))
    for first, second in zip(one, parallel, strict=True):
        assert torch.equal(first.images, second.images)
        assert torch.equal(first.targets, second.targets)
    shares = [all_batches(dataset, MOVED, rank=rank, ranks=2) for rank in range(2)]
    places = {int(i): image for batch in one for i, image in zip(batch.indices, batch.images, strict=True)}
    for batch in [*shares[0], *shares[1]]:
        for index, image in zip(batch.indices, batch.images, strict=True):
            assert torch.equal(places.pop(int(index)), image)
    assert not places


def test_images_that_are_not_moved_are_those_of_evaluations(masks: Path) -> None:
    dataset = whole(f"masks:{masks}")
    (batch, *_) = all_batches(dataset, RECIPE)
    np.testing.assert_array_equal(batch.images, dataset.train.arrays(batch.indices.numpy()))
    np.testing.assert_array_equal(batch.targets, dataset.train.targets(batch.indices.numpy()))


def of_another_size(root: Path) -> None:
    Image.new("L", (8, 8)).save(root / "train" / "masks" / "3.png")


def of_many_classes(root: Path) -> None:
    Image.fromarray(np.full((SIDE, SIDE), 7, np.uint8)).save(root / "train" / "masks" / "3.png")


def without_mask(root: Path) -> None:
    (root / "train" / "masks" / "3.png").unlink()


def without_images(root: Path) -> None:
    (root / "train" / "images").rename(root / "train" / "pictures")


def of_colours(root: Path) -> None:
    for number in range(12):
        Image.new("RGB", (SIDE, SIDE)).save(root / "train" / "masks" / f"{number}.png")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (of_another_size, "the image has 32×32 pixels, its mask 8×8"),
        (of_many_classes, "3.png has the value 7; 0 to 2, and 255"),
        (
            without_mask,
            "1 of 12 images of .*train lack a mask: there is no .*3.png; every image wants a PNG file of its name",
        ),
        (
            without_images,
            "train/images has no images; wanted images in .*train/images .*, and a mask of each in .*train/masks",
        ),
        (of_colours, "12 of 12 training images cannot be decoded.*mode RGB|no image of class 0 can be decoded"),
    ],
)
def test_bad_masks_are_named(tmp_path: Path, spoil: Callable[[Path], None], said: str) -> None:
    write_masks(tmp_path, COUNTS)
    (tmp_path / "classes.txt").write_text("nothing\nsquare\ndisc\n")
    spoil(tmp_path)
    with pytest.raises(FileError, match=said) as caught:
        all_batches(whole(f"masks:{tmp_path}"), RECIPE)
    assert "\n" not in str(caught.value)


def test_a_damaged_mask_of_an_evaluation_is_left_out_with_its_image(tmp_path: Path) -> None:
    write_masks(tmp_path, (("train", 12), ("val", 30), ("test", 4)))
    (tmp_path / "val" / "masks" / "15.png").write_bytes(b"no image")
    dataset = whole(f"masks:{tmp_path}") if (tmp_path / "classes.txt").write_text("a\nb\nc\n") else None
    assert dataset is not None
    with pytest.raises(FileError, match=r"15\.png"):
        dataset.validation.targets(np.arange(30))
    kept = without_unreadable(dataset)
    assert len(kept.validation) == 29
    assert kept.validation.targets(np.arange(29)).shape == (29, SIDE, SIDE)


def changed(root: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads((root / "train.json").read_text())
    change(content)
    (root / "train.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda content: content.pop("images"), "is no COCO annotation .KeyError: 'images'"),
        (lambda content: content["annotations"][0].update(category_id=7), "unknown image or category"),
        (lambda content: content["annotations"][0].update(bbox=[1, 2]), "no bbox inside its image"),
        (
            lambda content: content["annotations"][0].update(bbox=[float("nan"), 5, 4, 4]),
            "no bbox inside.*nan, 5, 4, 4",
        ),
        (lambda content: content["annotations"][0].update(bbox=[5, 5, -4, 4]), "no bbox inside"),
        (lambda content: content["annotations"][0].update(bbox=[500, 5, 4, 4]), "no bbox inside.* of 32×32 pixels"),
        (lambda content: content["annotations"].clear(), "no boxes to learn from"),
        (lambda content: content["categories"][0].update(id=5), "two categories with the id 5"),
        (
            lambda content: content["categories"][0].update(name="disk"),
            r"val.json: category 9 is disc, and is disk in .*train",
        ),
        (lambda content: content["categories"].pop(0) and content["annotations"].clear(), "and is not in .*train.json"),
        (lambda content: content["images"].clear(), "names no images"),
        (lambda content: content["images"][1].pop("height"), "image 1 is damaged .KeyError: 'height'"),
        (lambda content: content["images"][0].update(width=None), "image 0 is damaged"),
        (lambda content: content["images"].insert(0, 7), "image 0 is damaged"),
        (lambda content: content["categories"][0].pop("name"), "category 0 is damaged"),
        (lambda content: [i.update(height=50) for i in content["images"]], r"\.png: .*its boxes are for 32×50"),
    ],
)
def test_bad_annotations_are_named(tmp_path: Path, change: Callable[[dict[str, Any]], None], said: str) -> None:
    write_coco(tmp_path, COUNTS)
    changed(tmp_path, change)
    with pytest.raises(FileError, match=said) as caught:
        all_batches(whole(f"coco:{tmp_path}"), RECIPE)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("names", "said"), [(b"a\n\nc\n", "an empty line"), (b" \n", "an empty line"), (b"Stra\xdfe\n", "UTF-8")]
)
def test_names_of_classes_that_cannot_be_read(masks: Path, tmp_path: Path, names: bytes, said: str) -> None:
    shutil.copytree(masks, tmp_path / "masks")
    (tmp_path / "masks" / "classes.txt").write_bytes(names)
    with pytest.raises(FileError, match=said):
        load_dataset(f"masks:{tmp_path / 'masks'}", SIDE)


def test_images_without_labels_of_a_task_with_masks(masks: Path, tmp_path: Path) -> None:
    """As a block-wise start of a dense network reads them."""
    Image.new("RGB", (20, 30)).save(tmp_path / "a.png")
    Image.new("RGB", (9, 9)).save(tmp_path / "b.png")
    (batch,) = TrainingBatches(
        unlabelled_images(str(tmp_path), whole(f"masks:{masks}")), replace(RECIPE, batch_size=2)
    ).epoch(0)
    assert batch.images.shape == (2, 3, SIDE, SIDE)


@pytest.mark.parametrize("source", ["masks:", "coco:", "masks:nowhere", "coco:nowhere", "masks:.", "coco:."])
def test_folders_of_another_form_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NNStretchError) as caught:
        load_dataset(source, SIDE)
    assert isinstance(caught.value, FileError | UsageError)
    assert "wanted" in str(caught.value) or "write" in str(caught.value)
