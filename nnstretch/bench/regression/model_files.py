"""Files that the processes of both commits read and write: the model, its inputs and its outputs."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from nnstretch.bench.comparison.subject import subject
from nnstretch.bench.regression.commits import FOLDER_PREFIX, LETTERS
from nnstretch.graph.reference import largest_error


class ModelFiles(NamedTuple):
    """Files of one model.

    Attributes:
        model: the model as ONNX.
        small: a model of one layer as ONNX.
        feeds: the model's inputs as .npz.
        inputs: their names.
    """

    model: Path
    small: Path
    feeds: Path
    inputs: tuple[str, ...]

    def outputs(self, letter: str) -> Path:
        """Where the commit of a letter writes its outputs, as .npz."""
        return self.feeds.with_name(f"outputs-{letter}.npz")

    def largest_difference(self) -> float:
        """The largest difference between both commits' outputs, as a share of the output's range; infinite for other shapes."""
        first, second = (self.outputs(letter) for letter in LETTERS)
        with np.load(first) as a, np.load(second) as b:
            outputs, expected = dict(b), dict(a)
        if [y.shape for y in outputs.values()] != [y.shape for y in expected.values()]:
            return math.inf
        return largest_error(outputs, expected)


@contextmanager
def exported(model: str) -> Iterator[ModelFiles]:
    """The files of a model, until the block ends.

    Raises:
        NNStretchError: the model cannot be exported.
    """
    with subject(model, {}, seed=0) as made, tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX) as name:
        folder = Path(name).resolve()
        files = ModelFiles(Path(made.onnx), folder / "small.onnx", folder / "feeds.npz", tuple(made.feeds))
        onnx.save(_small_model(), files.small)
        np.savez(files.feeds, *made.feeds.values())
        yield files


def _small_model() -> onnx.ModelProto:
    """One convolution."""
    image = (1, 16, 8, 8)
    weight = numpy_helper.from_array(np.full((16, 16, 1, 1), 0.1, np.float32), "w")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, image) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Conv", ["x", "w"], ["y"])], "small", ends[:1], ends[1:], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
