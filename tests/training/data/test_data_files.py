"""Image files, shards and archives on disk: every mode, exact access, and one line for what cannot be read."""

import io
import os
import struct
import tarfile
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nnstretch.errors import FileError, NNStretchError, UsageError
from nnstretch.training.data import load_dataset
from nnstretch.training.data.image_files import decode
from nnstretch.training.data.preprocessing import photo_preprocessing
from nnstretch.training.data.sources.folder import FolderSplit, unlabelled
from nnstretch.training.data.sources.shards import index_shard
from nnstretch.training.data.split import UnreadableImageError
from nnstretch.training.data.unreadable import inputs_to_learn_from, without_unreadable

Member = tuple[str, bytes]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNSTRETCH_CACHE_DIR", str(tmp_path / "cache"))


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    target = io.BytesIO()
    image.save(target, kind, **options)
    return target.getvalue()


def colour(red: int, green: int, blue: int, size: tuple[int, int] = (6, 4)) -> Image.Image:
    return Image.new("RGB", size, (red, green, blue))


# ---- decoding


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("mode", ["1", "L", "LA", "RGB", "RGBA", "CMYK", "YCbCr", "I;16", "I"])
def test_every_mode_becomes_8_bits(mode: str, channels: int, tmp_path: Path) -> None:
    grey = Image.fromarray(np.full((4, 6), 128 if mode != "1" else 255, np.uint8))
    if mode.startswith("I"):
        image = Image.fromarray(np.full((4, 6), 128 << 8, np.uint16)).convert(mode)
    else:
        image = (grey.convert("RGB") if mode in {"CMYK", "YCbCr"} else grey).convert(mode)
    kind = "TIFF" if mode in {"CMYK", "YCbCr", "I"} else "PNG"
    path = tmp_path / f"image.{kind.lower()}"
    image.save(path, kind)
    pixels = decode(path, "image", channels)
    assert pixels.shape == (4, 6, channels)
    assert pixels.dtype == np.uint8
    assert np.abs(pixels.astype(int) - (255 if mode == "1" else 128)).max() <= 3
    assert np.array_equal(pixels, decode(path.read_bytes(), "image", channels))


def test_a_cmyk_jpeg_has_the_colours_that_viewers_show() -> None:
    """Files of Adobe's programs, and of Pillow, hold inverted values: 255 is no ink."""
    content = encoded(Image.new("CMYK", (16, 16), (255, 0, 0, 0)), "JPEG", quality=95)  # full cyan
    assert b"Adobe" in content
    with Image.open(io.BytesIO(content)) as opened:
        assert opened.mode == "CMYK"
    found = decode(content, "image", 3).reshape(-1, 3).mean(axis=0)
    assert np.abs(found - (0, 255, 255)).max() < 6


def test_a_colour_png_of_16_bits_keeps_its_upper_8() -> None:
    pixels = np.array([[[0x1234, 0x80FF, 0xFF00], [0x0000, 0x00FF, 0xFFFF]]], ">u2")
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 2, 1, 16, 2, 0, 0, 0)  # 2 x 1 pixels, 16 bits, colours
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b""))
    content = b"\x89PNG\r\n\x1a\n" + b"".join(parts)
    assert decode(content, "image", 3).tolist() == (pixels >> 8).tolist()


def test_transparent_parts_become_white() -> None:
    pixels = np.zeros((2, 2, 4), np.uint8)
    pixels[0, :, 3] = 255
    found = decode(encoded(Image.fromarray(pixels)), "image", 3)
    assert found[0].max() == 0
    assert found[1].min() == 255
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 200, 100, 50])
    palette.putpixel((1, 0), 1)
    found = decode(encoded(palette, transparency=0), "image", 3)
    assert found[0].tolist() == [[255, 255, 255], [200, 100, 50]]


def test_exif_turns_an_image_upright() -> None:
    image = colour(0, 0, 0, (6, 4))
    image.paste((255, 255, 255), (0, 0, 6, 1))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise
    found = decode(encoded(image, exif=exif), "image", 1)
    assert found.shape == (6, 4, 1)
    assert found[:, -1].min() == 255
    assert found[:, 0].max() == 0


@pytest.mark.parametrize("exif", [b"II*\0", b"II+\0\x08\0\0\0", b"II"])
def test_an_image_with_damaged_exif_is_read_as_it_lies(exif: bytes) -> None:
    found = decode(encoded(colour(200, 100, 50, (6, 4)), exif=exif), "image", 3)
    assert found.shape == (4, 6, 3)
    assert found[0, 0].tolist() == [200, 100, 50]


@pytest.mark.parametrize("content", [b"", b"no image", encoded(colour(9, 9, 9))[:40], b"\xff\xd8\xff\xe0 no jpeg"])
def test_what_is_no_image_is_named_without_addresses(content: bytes) -> None:
    with pytest.raises(UnreadableImageError, match=r"^photo\.png \(") as caught:
        decode(content, "photo.png", 3)
    assert "0x" not in str(caught.value)
    assert "\n" not in str(caught.value)


# ---- folders


def make_folder(
    root: Path, classes: Iterable[str] = ("a", "b"), splits: Iterable[str] = ("train", "val"), count: int = 4
) -> None:
    for split in splits:
        for number, name in enumerate(classes):
            folder = root / split / name
            folder.mkdir(parents=True)
            for index in range(count):
                colour(index, 100 * number, 0).save(folder / f"{index}.png")


def test_a_folder_of_training_images_alone_is_divided_into_three(tmp_path: Path) -> None:
    make_folder(tmp_path, splits=("train",), count=20)
    dataset = load_dataset(f"folder:{tmp_path}", 16)
    assert [len(split) for split in (dataset.train, dataset.validation, dataset.test)] == [32, 4, 4]
    assert "4 of the training images are the validation split and 4 the test split" in dataset.note
    seen = [
        dataset_split.raw(index, 0).tobytes()  # every image has its own colour
        for dataset_split in (dataset.train, dataset.validation, dataset.test)
        for index in range(len(dataset_split))
    ]
    assert len(set(seen)) == len(seen) == 40


def test_names_of_folders_for_validation_and_hidden_files(tmp_path: Path) -> None:
    make_folder(tmp_path, splits=("train", "validation", "test"))
    (tmp_path / "train" / ".cache").mkdir()
    (tmp_path / "train" / "a" / "._0.png").write_bytes(b"left by a copy")
    dataset = load_dataset(f"folder:{tmp_path}", 16)
    assert [len(split) for split in (dataset.train, dataset.validation, dataset.test)] == [8, 8, 8]
    make_folder(tmp_path, splits=("val",))
    with pytest.raises(FileError, match="the folders val and validation; keep one"):
        load_dataset(f"folder:{tmp_path}", 16)


def test_a_class_of_one_image_is_for_training(tmp_path: Path) -> None:
    make_folder(tmp_path)
    (tmp_path / "train" / "c").mkdir()
    colour(1, 2, 3).save(tmp_path / "train" / "c" / "0.png")
    dataset = load_dataset(f"folder:{tmp_path}", 16)
    assert sorted(set(dataset.train.labels.tolist())) == [0, 1, 2]
    assert sorted(set(dataset.validation.labels.tolist())) == [0, 1]


def test_links_that_run_in_circles_are_unreadable_images_or_no_classes(tmp_path: Path) -> None:
    make_folder(tmp_path, splits=("train", "val", "test"))
    (tmp_path / "train" / "a" / "circle.png").symlink_to("circle.png")
    (tmp_path / "train" / "circle").symlink_to("circle")
    (tmp_path / "train" / "b" / "up").symlink_to(tmp_path / "train")
    dataset = load_dataset(f"folder:{tmp_path}", 16)
    assert dataset.class_names == ("a", "b")
    assert isinstance(dataset.train, FolderSplit)
    circles = np.flatnonzero(dataset.train.files == b"a/circle.png")
    assert len(circles) == 1
    with pytest.raises(FileError, match=r"circle\.png \(Too many levels of symbolic links\)"):
        dataset.train.arrays(circles)
    (tmp_path / "train" / "whole").symlink_to(tmp_path / "train")
    with pytest.raises(FileError, match="whole has no images"):
        load_dataset(f"folder:{tmp_path}", 16)


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read everything")
def test_a_folder_that_may_not_be_read_is_one_line(tmp_path: Path) -> None:
    make_folder(tmp_path)
    (tmp_path / "train" / "a").chmod(0)
    with pytest.raises(FileError, match=r"cannot list .*/train/a: Permission denied"):
        load_dataset(f"folder:{tmp_path}", 16)


def test_a_listing_that_fails_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder(tmp_path)

    def refuse(path: Path) -> list[str]:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(FileError, match=r"cannot list .*/train/a: Permission denied"):
        load_dataset(f"folder:{tmp_path}", 16)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match=r"cannot list .*/file: Not a directory"):
        load_dataset(f"folder:{tmp_path / 'file'}", 16)


def test_images_without_labels_come_from_all_folders(tmp_path: Path) -> None:
    make_folder(tmp_path)
    split = unlabelled(tmp_path, photo_preprocessing(16, 3))
    assert len(split) == 16
    assert split.arrays(np.arange(16)).shape == (16, 3, 16, 16)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match="has no images"):
        unlabelled(tmp_path / "empty", photo_preprocessing(16, 3))
    with pytest.raises(FileError, match="No such file"):
        unlabelled(tmp_path / "absent", photo_preprocessing(16, 3))


# ---- shards


def samples(count: int, first: int = 0, classes: int = 3) -> list[Member]:
    return [
        member
        for index in range(first, first + count)
        for member in (
            (f"{index:04}.png", encoded(colour(index, 0, 0))),
            (f"{index:04}.cls", str(index % classes).encode()),
            (f"{index:04}.json", b"{}"),
        )
    ]


def write_tar(path: Path, members: Iterable[Member]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


@pytest.mark.parametrize("pattern", ["x-train-{000..002}.tar", "x-train-*.tar", "x-train-00?.tar"])
def test_shards_give_every_image_in_any_order(tmp_path: Path, pattern: str) -> None:
    for number in range(3):
        write_tar(tmp_path / f"x-train-{number:03}.tar", samples(20, 20 * number))
    dataset = load_dataset(f"shards:{tmp_path / pattern}", 16)
    assert dataset.num_classes == 3
    assert len(dataset.train) + len(dataset.validation) + len(dataset.test) == 60
    seen = set()
    for split in (dataset.train, dataset.validation, dataset.test):
        for index in reversed(range(len(split))):
            red = int(split.raw(index, 0)[0, 0, 0])
            assert red % 3 == split.labels[index]
            seen.add(red)
    assert seen == set(range(60))


def test_shards_for_validation_and_testing_are_known_by_their_names(tmp_path: Path) -> None:
    write_tar(tmp_path / "train" / "0.tar", samples(9))
    write_tar(tmp_path / "set-val-0.tar", samples(6))
    write_tar(tmp_path / "test" / "contest.tar", samples(3))
    write_tar(tmp_path / "contest" / "1.tar", samples(3))  # `test` is only a part of this name
    dataset = load_dataset(f"shards:{tmp_path}/*/*.tar", 16)
    assert [len(split) for split in (dataset.train, dataset.validation, dataset.test)] == [9, 3, 3]
    dataset = load_dataset(f"shards:{tmp_path}/train/0.tar", 16)
    assert dataset.note
    with pytest.raises(FileError, match=r"all shards .* are for validation or testing"):
        load_dataset(f"shards:{tmp_path}/set-val-0.tar", 16)


def test_an_index_is_kept_until_its_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "train.tar"
    write_tar(path, samples(9))
    first = load_dataset(f"shards:{path}", 16)
    with monkeypatch.context() as patch:
        patch.setattr(tarfile, "open", None)
        again = load_dataset(f"shards:{path}", 16)
    assert np.array_equal(first.train.labels, again.train.labels)
    (cached,) = (tmp_path / "cache" / "shards").iterdir()
    cached.write_bytes(cached.read_bytes()[:100])
    assert len(load_dataset(f"shards:{path}", 16).train) == len(first.train)
    write_tar(path, samples(18))
    assert len(load_dataset(f"shards:{path}", 16).train) > len(first.train)


def test_a_shard_that_changes_while_it_is_read_is_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "train.tar"
    write_tar(path, samples(9))
    split = load_dataset(f"shards:{path}", 16).train
    with path.open("r+b") as file:
        file.truncate(2000)
    with pytest.raises(UnreadableImageError, match="the file became shorter"):
        split.raw(len(split) - 1, 0)
    path.unlink()
    with pytest.raises(UnreadableImageError, match=r"train\.tar:0\d\d\d \(No such file"):
        split.raw(0, 0)


def test_names_with_folders_and_dots_are_keys(tmp_path: Path) -> None:
    image = encoded(colour(1, 2, 3))
    members = [
        ("a/0.seg.png", b"another image"),
        ("a/0.JPG", image),
        ("a/0.cls", b" 1\n"),
        ("b/0.webp", image),
        ("b/0.cls", b"0"),
    ]
    write_tar(tmp_path / "train.tar", members)
    index = index_shard(tmp_path / "train.tar")
    assert index.keys.tolist() == ["a/0", "b/0"]
    assert index.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([("0.png", b"x")], r"lacks 0\.cls"),
        ([("0.cls", b"0"), ("1.png", b"x"), ("1.cls", b"0")], r"lacks an image beside 0\.cls"),
        ([("0.png", b"x"), ("0.cls", b"cat")], r"0\.cls is b'cat'; the number of a class"),
        ([("0.png", b"x"), ("0.cls", b"-1")], r"0\.cls is b'-1'"),
        ([("0.png", b"x"), ("0.cls", b"900")], "1 different labels up to 900 for 1 images"),
        ([("0.txt", b"x")], "has no images"),
    ],
)
def test_samples_that_are_not_whole_are_one_line(tmp_path: Path, members: list[Member], words: str) -> None:
    write_tar(tmp_path / "train.tar", members)
    with pytest.raises(FileError, match=words) as caught:
        load_dataset(f"shards:{tmp_path / 'train.tar'}", 16)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kept", [0, 300, 1000, 5000])
def test_a_truncated_shard_is_one_line(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "train.tar"
    write_tar(path, samples(9))
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(FileError, match=r"train\.tar is no whole, uncompressed tar file|train\.tar lacks") as caught:
        load_dataset(f"shards:{path}", 16)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "error", "words"),
    [
        ("", UsageError, "needs a pattern"),
        ("x-{000..009}.tar", FileError, r"10 of 10 files are missing: .*x-000\.tar, .* and 7 more"),
        ("x-*.tar", FileError, "no file matches"),
        ("x-{009..000}.tar", UsageError, "holds no files, or too many"),
        ("x-{0..999999999}.tar", UsageError, "holds no files, or too many"),
        ("s3://bucket/x-{000..009}.tar", UsageError, "is no local path"),
    ],
)
def test_patterns_without_files_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, error: type[NNStretchError], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=words) as caught:
        load_dataset(f"shards:{pattern}", 16)
    assert "\n" not in str(caught.value)


def test_a_compressed_shard_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "train.tar", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("0.cls"))
    with pytest.raises(FileError, match="no whole, uncompressed tar file"):
        load_dataset(f"shards:{tmp_path / 'train.tar'}", 16)


# ---- CIFAR


def records(count: int, labels: int, classes: int) -> bytes:
    parts = []
    for index in range(count):
        planes = np.repeat(np.array([index % 256, 50, 200], np.uint8), 1024)
        parts.append(bytes([7] * (labels - 1) + [index % classes]) + planes.tobytes())
    return b"".join(parts)


def write_cifar10(folder: Path) -> None:
    folder.mkdir(parents=True)
    for number in range(1, 6):
        (folder / f"data_batch_{number}.bin").write_bytes(records(40, 1, 10))
    (folder / "test_batch.bin").write_bytes(records(20, 1, 10))
    (folder / "batches.meta.txt").write_text("\n".join("abcdefghij") + "\n\n")


def test_cifar10_is_read_from_a_folder_and_from_its_archive(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "cifar-10-batches-bin")
    archive = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(archive, "w:gz") as opened:
        opened.add(tmp_path / "cifar-10-batches-bin", "cifar-10-batches-bin")
    for path in (tmp_path / "cifar-10-batches-bin", tmp_path, archive):
        dataset = load_dataset(f"cifar10:{path}", 32)
        assert [len(split) for split in (dataset.train, dataset.validation, dataset.test)] == [180, 20, 20]
        assert dataset.class_names == tuple("abcdefghij")
        assert dataset.note == ""
        assert dataset.test.raw(13, 0)[31, 5].tolist() == [13, 50, 200]
        assert dataset.test.labels[13] == 3
        images = dataset.test.arrays(np.arange(20))
        assert images.shape == (20, 3, 32, 32)
        np.testing.assert_allclose(images[13, 2], (200 / 255 - 0.4465) / 0.2616, rtol=1e-5)
    assert load_dataset(f"cifar10:{tmp_path}", 48, 1).test.arrays(np.arange(2)).shape == (2, 1, 48, 48)


def test_cifar100_has_fine_labels(tmp_path: Path) -> None:
    (tmp_path / "train.bin").write_bytes(records(400, 2, 100))
    (tmp_path / "test.bin").write_bytes(records(100, 2, 100))
    dataset = load_dataset(f"cifar100:{tmp_path}", 32)
    assert dataset.test.labels.tolist() == list(range(100))
    assert dataset.class_names[:2] == ("0", "1")


def test_archives_that_are_not_the_binary_version_are_one_line(tmp_path: Path) -> None:
    for source, words in (
        ("cifar10:", "needs a path"),
        (f"cifar10:{tmp_path / 'absent'}", "No such file"),
        (f"cifar10:{tmp_path}", r"has no data_batch_1\.bin; the binary version .* is wanted"),
    ):
        with pytest.raises(NNStretchError, match=words):
            load_dataset(source, 32)
    (tmp_path / "archive.tar.gz").write_bytes(b"\x1f\x8b no archive")
    with pytest.raises(FileError, match=r"cannot read .*archive\.tar\.gz") as caught:
        load_dataset(f"cifar10:{tmp_path / 'archive.tar.gz'}", 32)
    assert "\n" not in str(caught.value)
    write_cifar10(tmp_path / "files")
    (tmp_path / "files" / "test_batch.bin").write_bytes(records(3, 1, 10)[:-1])
    with pytest.raises(FileError, match="truncated"):
        load_dataset(f"cifar10:{tmp_path / 'files'}", 32)
    (tmp_path / "files" / "test_batch.bin").write_bytes(records(12, 1, 12))
    with pytest.raises(FileError, match="the label 11; 0 to 9"):
        load_dataset(f"cifar10:{tmp_path / 'files'}", 32)


# ---- images that cannot be decoded


def test_held_out_images_that_cannot_be_decoded_are_left_out_and_named(tmp_path: Path) -> None:
    make_folder(tmp_path, splits=("train", "val", "test"), count=20)
    dataset = load_dataset(f"folder:{tmp_path}", 16)
    assert without_unreadable(dataset) is dataset
    for name in ("val/a/3.png", "val/b/0.png", "test/a/7.png"):
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:50])
    checked = without_unreadable(dataset)
    assert [len(split) for split in (checked.train, checked.validation, checked.test)] == [40, 38, 39]
    assert "2 of 40 validation images cannot be decoded and are left out: " in checked.note
    assert "a/3.png (" in checked.note
    assert "; 1 of 40 test images cannot be decoded" in checked.note
    assert "\n" not in checked.note
    for split in (checked.validation, checked.test):
        assert len(split.arrays(np.arange(len(split)))) == len(split.labels)
    for index in range(5):
        (tmp_path / "val" / "b" / f"{index}.png").write_bytes(b"")
    with pytest.raises(FileError, match="6 of 40 validation images cannot be decoded, more than 5%"):
        without_unreadable(dataset)


def test_statistics_and_examples_are_taken_from_images_that_can_be_decoded(tmp_path: Path) -> None:
    make_folder(tmp_path)
    (tmp_path / "train" / "a" / "0.png").write_bytes(b"")
    train = load_dataset(f"folder:{tmp_path}", 16).train
    everything = np.arange(len(train))
    images = inputs_to_learn_from(train, everything)
    assert images.shape == (len(train), 3, 16, 16)
    for name in ("1", "2", "3"):
        (tmp_path / "train" / "a" / f"{name}.png").write_bytes(b"")
    with pytest.raises(FileError, match="no image of class 'a' can be decoded"):
        inputs_to_learn_from(train, everything)
