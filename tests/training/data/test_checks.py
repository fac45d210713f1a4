"""What is found before the first epoch: targets that do not fit, classes that evaluations lack."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from nnstretch.cli.main import main
from nnstretch.errors import FileError, UsageError
from nnstretch.training.data import checks, load_dataset
from nnstretch.training.data.checks import check_headers, checked
from nnstretch.training.data.image_files import decode, header_size
from nnstretch.training.data.sources.masks import MaskSplit
from nnstretch.training.tasks.segmentation import Mask
from tests.kits.kernels.shapes import SIDE, write_coco, write_masks

COUNTS = (("train", 12), ("val", 6), ("test", 4))


@pytest.fixture
def masks(tmp_path: Path) -> Path:
    write_masks(tmp_path, COUNTS)
    (tmp_path / "classes.txt").write_text("nothing\nsquare\ndisc\n")
    return tmp_path


@pytest.fixture
def coco(tmp_path: Path) -> Path:
    write_coco(tmp_path, COUNTS)
    return tmp_path


def write_mask(root: Path, split: str, value: int = 1, side: int = SIDE) -> None:
    """Another mask for an image of a split."""
    Image.fromarray(np.full((side, side), value, np.uint8)).save(min((root / split / "masks").iterdir()))


def small_mask(root: Path, split: str) -> None:
    write_mask(root, split, side=8)


def other_class(root: Path, split: str) -> None:
    write_mask(root, split, value=7)


def removed_mask(root: Path, split: str) -> None:
    min((root / split / "masks").iterdir()).unlink()


def other_annotations(root: Path, split: str) -> None:
    """The first image has another height than its annotations say."""
    file = root / f"{split}.json"
    content = json.loads(file.read_text())
    content["images"][0]["height"] += 8
    file.write_text(json.dumps(content))


FAULTS: list[tuple[str, Callable[[Path, str], Any], str]] = [
    ("masks", small_mask, r"{}/images/\d+.png: the image has 32×32 pixels, its mask 8×8"),
    ("masks", other_class, r"{}/masks/\d+.png has the value 7; 0 to 2, and 255"),
    ("masks", removed_mask, r"1 of \d+ images of .*/{} lack a mask: there is no .*.png; every"),
    ("coco", other_annotations, r"{}/\d+.png: the image has 32×32 pixels, its boxes are for 32×40"),
]


@pytest.mark.parametrize("split", ["train", "val", "test"])
@pytest.mark.parametrize(("data", "spoil", "said"), FAULTS)
def test_targets_that_do_not_fit_are_named(
    data: str, spoil: Callable[[Path, str], Any], said: str, split: str, request: pytest.FixtureRequest
) -> None:
    root: Path = request.getfixturevalue(data)
    assert checked(load_dataset(f"{data}:{root}", SIDE)).note == ""
    spoil(root, split)
    with pytest.raises(FileError, match=said.format(split)) as caught:
        checked(load_dataset(f"{data}:{root}", SIDE))
    assert "\n" not in str(caught.value)


def test_several_are_counted_and_the_first_named(masks: Path) -> None:
    for number in range(5):
        Image.new("L", (8, 8)).save(masks / "train" / "masks" / f"{number}.png")
    with pytest.raises(FileError, match=r"5 of 12 training images do not fit their targets: .*0.png.*; .* and 2 more"):
        checked(load_dataset(f"masks:{masks}", SIDE))


def test_masks_in_colours_are_too_many_unreadable_images(masks: Path) -> None:
    for number in range(3):
        Image.new("RGB", (SIDE, SIDE)).save(masks / "train" / "masks" / f"{number}.png")
    with pytest.raises(FileError, match=r"at least 3 of 12 training images cannot be decoded.*mode RGB"):
        checked(load_dataset(f"masks:{masks}", SIDE))


def test_of_many_masks_some_are_decoded_and_all_headers_read(masks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MOST_TARGETS", 4)
    decoded: list[int] = []
    whole = MaskSplit.target

    def target(self: MaskSplit, index: int, epoch: int) -> Mask:
        decoded.append(index)
        return whole(self, index, epoch)

    dataset, seen = load_dataset(f"masks:{masks}", SIDE), list[tuple[int, int]]()
    monkeypatch.setattr(MaskSplit, "target", target)
    checks._training_classes(dataset, 0, lambda done, total, _: seen.append((done, total)))
    assert len(decoded) == len(set(decoded)) == 4
    assert seen[-1] == (12, 12)
    left = next(index for index in range(12) if index not in decoded)
    path = masks / "train" / "masks" / Path(dataset.train.image_name(left)).name  # type: ignore[attr-defined]
    Image.new("L", (9, 8)).save(path)
    with pytest.raises(FileError, match="its mask 9×8"):
        checked(dataset)


def test_processes_find_what_this_one_finds(masks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_FEW", 2)
    monkeypatch.setattr(checks, "_PART", 5)
    dataset = load_dataset(f"masks:{masks}", SIDE)
    for number in (2, 9):
        Image.new("L", (8, 8)).save(masks / "train" / "masks" / f"{number}.png")
    said = []
    for workers in (0, 2):
        with pytest.raises(FileError) as caught:
            check_headers(dataset.train, 3, "training", workers)
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert said[0].startswith("2 of 12 training images")


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
@pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
def test_headers_state_the_size_of_upright_images(tmp_path: Path, suffix: str, orientation: int) -> None:
    image, path = Image.new("RGB", (12, 20)), tmp_path / f"a.{suffix}"
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.save(path, exif=exif)
    assert header_size(path, "a") == decode(path, "a", 3).shape[:2]


def make_folder(root: Path, split: str, classes: str, count: int = 2) -> None:
    for name in classes:
        (root / split / name).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (16, 16)).save(root / split / name / f"{number}.png")


def test_classes_that_evaluations_lack_are_named_and_counted(tmp_path: Path) -> None:
    make_folder(tmp_path, "train", "abcd")
    make_folder(tmp_path, "val", "ac")
    make_folder(tmp_path, "test", "bcd")
    note = checked(load_dataset(f"folder:{tmp_path}", 16)).note
    assert "the validation images have none of 2 of the 4 classes that the training images have: 'b', 'd'" in note
    assert "the test images have none of 1 of the 4 classes that the training images have: 'a'" in note


@pytest.mark.parametrize("split", ["val", "test"])
def test_more_than_half_of_the_classes_is_refused(tmp_path: Path, split: str) -> None:
    make_folder(tmp_path, "train", "abcde")
    make_folder(tmp_path, "val", "ab" if split == "val" else "abcde")
    make_folder(tmp_path, "test", "ab" if split == "test" else "abcde")
    title = {"val": "validation"}.get(split, split)
    with pytest.raises(
        UsageError, match=rf"the {title} images have none of 3 of the 5 classes.* 'c', 'd', 'e'; add images"
    ):
        checked(load_dataset(f"folder:{tmp_path}", 16))


def test_shares_of_the_training_images_may_lack_more(tmp_path: Path) -> None:
    """Of classes with one image, none is held out."""
    make_folder(tmp_path, "train", "abcde", 1)
    make_folder(tmp_path, "train", "f", 10)
    assert (
        "the validation images have none of 5 of the 6 classes" in checked(load_dataset(f"folder:{tmp_path}", 16)).note
    )


def test_classes_of_masks_and_boxes_are_compared(tmp_path: Path) -> None:
    write_masks(tmp_path / "masks", COUNTS)
    (tmp_path / "masks" / "classes.txt").write_text("nothing\nsquare\ndisc\n")
    for path in (tmp_path / "masks" / "val" / "masks").iterdir():
        Image.fromarray(np.array(Image.open(path)) % 2).save(path)
    assert (
        "the validation images have none of 1 of the 3 classes"
        in checked(load_dataset(f"masks:{tmp_path}/masks", SIDE)).note
    )
    write_coco(tmp_path / "coco", COUNTS)
    file = tmp_path / "coco" / "val.json"
    content = json.loads(file.read_text())
    content["annotations"] = [one for one in content["annotations"] if one["category_id"] == 9]
    file.write_text(json.dumps(content))
    note = checked(load_dataset(f"coco:{tmp_path}/coco", SIDE)).note
    assert "the validation images have none of 1 of the 2 classes that the training images have: 'square'" in note


def test_commands_refuse_before_they_begin(
    masks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text("from tests.kits.kernels.shapes import segmenter\n")
    data = ["nets.py:segmenter", "--data", f"masks:{masks}"]
    write_mask(masks, "test", side=16)
    assert main(["evaluate", *data, "--engine", "torch"]) == 2
    assert "its mask 16×16" in capsys.readouterr().err
    assert main(["train", *data, "--recipe", "dense", "--workers", "0", "-o", "w.safetensors"]) == 2
    assert "its mask 16×16" in capsys.readouterr().err
    assert not Path("w.run").exists()


def test_a_split_without_targets_of_its_own_has_none_to_check() -> None:
    dataset = load_dataset("digits", 16)
    check_headers(dataset.test, 10, "test")
    assert checked(dataset).note == dataset.note
