"""Splits of labelled images, and data sets.

Inputs are float32 ``N x C x H x W`` arrays, normalised (`training.data.preprocessing`). Nothing here needs torch, but the
images as tensors do: ONNX models are calibrated and evaluated without it.
"""

from nnstretch.training.data.split.arrays import ArraySplit
from nnstretch.training.data.split.base import (
    Indices,
    Split,
    TensorImages,
    UnreadableImageError,
    UnreadableImagesError,
    batches,
    image_names,
    names,
)
from nnstretch.training.data.split.dataset import Dataset, dataset_of
from nnstretch.training.data.split.held_out import held_out, stratified_split
from nnstretch.training.data.split.raw import ImagesInMemory, RawImages, SpatialImages, SubsetSplit

__all__ = [
    "ArraySplit",
    "Dataset",
    "ImagesInMemory",
    "Indices",
    "RawImages",
    "SpatialImages",
    "Split",
    "SubsetSplit",
    "TensorImages",
    "UnreadableImageError",
    "UnreadableImagesError",
    "batches",
    "dataset_of",
    "held_out",
    "image_names",
    "names",
    "stratified_split",
]
