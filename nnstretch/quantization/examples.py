"""Examples of a data set or of a file, by which a network is calibrated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import onnx_ir as ir

from nnstretch.errors import ModelError
from nnstretch.quantization.feeds import Feeds, read_feeds

if TYPE_CHECKING:
    from nnstretch.training.data.calibration import CalibrationImages


def examples_of(model: ir.Model, data: str, count: int) -> tuple[Iterator[Feeds], CalibrationImages | None]:
    """Batches of examples, of the model's batch size, and the images that they are, if they are of a data set.

    Args:
        model: with static shapes.
        data: a data set, as `--data` of the commands names it, or a .npz file with an array for every input.
        count: examples at most.

    Raises:
        ModelError: a data set of images, and the network does not read square images alone.
        NNStretchError: there are none, or they do not fit.
    """
    if data.endswith(".npz"):
        return read_feeds(data, model, count), None
    shapes = {str(v.name): tuple(v.shape.numpy()) if v.shape is not None else () for v in model.graph.inputs}
    name, shape = next(iter(shapes.items()))
    if len(shapes) != 1 or len(shape) != 4 or shape[2] != shape[3]:
        wanted = ", ".join(f"{n} {list(s)}" for n, s in shapes.items())
        raise ModelError(
            f"the model's inputs are {wanted}; calibrate with a .npz file, since images need one input of shape N,C,S,S"
        )
    from nnstretch.training.data import load_dataset
    from nnstretch.training.data.calibration import CalibrationImages
    from nnstretch.training.data.preprocessing import stated_preprocessing

    preprocessing = stated_preprocessing(model.metadata_props, "the model")
    split = load_dataset(data, shape[2], shape[1], preprocessing=preprocessing).train
    calibration = CalibrationImages(split, count, shape[0])
    return ({name: images} for images in calibration), calibration
