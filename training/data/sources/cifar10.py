"""``cifar10:PATH``: 60,000 small photographs in 10 classes."""

from __future__ import annotations

from functools import partial

from nnstretch.training.data.sources.cifar import Archive, load_archive

ARCHIVE = Archive(
    name="cifar10",
    download="cifar-10-binary.tar.gz",
    train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    test="test_batch.bin",
    class_file="batches.meta.txt",
    classes=10,
    label_bytes=1,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
)

load = partial(load_archive, ARCHIVE)
