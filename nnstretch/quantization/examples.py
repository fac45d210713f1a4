"""Examples of a data set or of a file, by which a network is calibrated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx_ir as ir

from nnstretch.errors import ModelError
from nnstretch.quantization.feeds import Feeds, read_feeds

if TYPE_CHECKING:
    from nnstretch.training.data.calibration import CalibrationImages
    from nnstretch.training.data.preprocessing import Preprocessing


@dataclass(frozen=True)
class Examples:
    """Examples for a calibration.

    Attributes:
        feeds: batches of the model's batch size.
        images: what the batches are made of, if they are of a data set.
        preprocessing: how these images became inputs; None without images.
        is_stated: whether the model states it; otherwise it is the data set's own.
    """

    feeds: Iterator[Feeds]
    images: CalibrationImages | None = None
    preprocessing: Preprocessing | None = None
    is_stated: bool = False


def examples_of(model: ir.Model, data: str, count: int) -> Examples:
    """Examples of a data set or of a file.

    Args:
        model: with static shapes.
        data: a data set, as `--data` of the commands names it, a folder of images without labels, or a .npz file with an
            array for every input.
        count: examples at most.

    Raises:
        ModelError: a data set of images, and the network does not read images alone.
        NNStretchError: there are none, or they do not fit.
    """
    if data.endswith(".npz"):
        return Examples(read_feeds(data, model, count))
    shapes = {str(v.name): tuple(v.shape.numpy()) if v.shape is not None else () for v in model.graph.inputs}
    name, shape = next(iter(shapes.items()))
    if len(shapes) != 1 or len(shape) != 4:
        wanted = ", ".join(f"{n} {list(s)}" for n, s in shapes.items())
        raise ModelError(
            f"the model's inputs are {wanted}; calibrate with a .npz file, since images need one input of shape N,C,H,W"
        )
    from nnstretch.training.data.calibration import CalibrationImages, images_to_calibrate
    from nnstretch.training.data.preprocessing import stated_preprocessing

    stated = stated_preprocessing(model.metadata_props, "the model")
    split, preprocessing = images_to_calibrate(data, (shape[2], shape[3]), shape[1], stated)
    calibration = CalibrationImages(split, count, shape[0])
    feeds = ({name: images} for images in calibration)
    return Examples(feeds, calibration, preprocessing, is_stated=stated is not None)
