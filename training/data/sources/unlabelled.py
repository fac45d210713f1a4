"""Images whose labels do not matter: for calibrations, and for trainings that learn from a teacher alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from nnstretch.training.data import SOURCES, load_dataset
from nnstretch.training.data.sources.folder import has_splits, unlabelled
from nnstretch.training.data.split import Dataset
from nnstretch.training.tasks.classification import CLASSIFICATION


def folder_of_images(source: str) -> Path | None:
    """The folder that a source names, if all images in it and in its folders are meant; None for a data set.

    Args:
        source: a data set, as :func:`~nnstretch.training.data.load_dataset` reads it, or a folder. One that is divided into
            splits is a data set, because some of its images are held out.

    Raises:
        FileError: the folder cannot be listed.
    """
    name, _, argument = source.partition(":")
    path = argument if name == "folder" else source
    if not path or (name in SOURCES and name != "folder"):
        return None
    folder = Path(path).expanduser()
    return folder if folder.is_dir() and not has_splits(folder) else None


def unlabelled_images(source: str, dataset: Dataset) -> Dataset:
    """Other training images in the place of a data set's own, preprocessed as those. Their labels mean nothing.

    Args:
        source: a data set, whose training images are taken, or a folder.
        dataset: the data set of the training.

    Raises:
        UsageError: it is neither.
        FileError: it cannot be read or has no images.
    """
    folder = folder_of_images(source)
    if folder is None:
        return load_dataset(source, preprocessing=dataset.preprocessing)
    images = unlabelled(folder, dataset.preprocessing)
    return replace(dataset, name=source, train=images, note="", task=CLASSIFICATION)
