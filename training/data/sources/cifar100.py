"""``cifar100:PATH``: 60,000 small photographs in 100 classes."""

from __future__ import annotations

from functools import partial

from nnstretch.training.data.sources.cifar import Archive, load_archive

ARCHIVE = Archive(
    name="cifar100",
    download="cifar-100-binary.tar.gz",
    train=("train.bin",),
    test="test.bin",
    class_file="fine_label_names.txt",
    classes=100,
    label_bytes=2,
    mean=(0.5071, 0.4866, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
)

load = partial(load_archive, ARCHIVE)
