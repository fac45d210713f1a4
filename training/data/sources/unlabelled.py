"""Training images without labels, for parts of a training that learn from a teacher alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from nnstretch.errors import UsageError
from nnstretch.training.data import SOURCES, load_dataset, usage
from nnstretch.training.data.sources.folder import unlabelled
from nnstretch.training.data.split import Dataset


def unlabelled_images(source: str, dataset: Dataset) -> Dataset:
    """Other training images in the place of a data set's own, preprocessed as those. Their labels mean nothing.

    Args:
        source: a data set, whose training images are taken; or a folder of image files, in any folders inside it.
        dataset: the data set of the training.

    Raises:
        UsageError: it is neither.
        FileError: it cannot be read or has no images.
    """
    if source.partition(":")[0] in SOURCES or ".py:" in source:
        return load_dataset(source, preprocessing=dataset.preprocessing)
    folder = Path(source).expanduser()
    if not folder.is_dir():
        raise UsageError(f"there is no folder {source}, and no data set of this name; there are {usage()}")
    return replace(dataset, name=source, train=unlabelled(folder, dataset.preprocessing), note="")
