"""Quantisation of designs: to int8, calibrated by training images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx_ir as ir
from torch import Tensor

from nnstretch.branching.transform.network import BranchedNetwork
from nnstretch.compiler.compile import compile_model
from nnstretch.compiler.processors import build_processors
from nnstretch.frontends.onnx_file import load
from nnstretch.frontends.torch_module import export
from nnstretch.quantization import Feeds, quantize
from nnstretch.training.data.calibration import CalibrationImages
from nnstretch.training.data.preprocessing import Images
from nnstretch.training.data.split import Dataset
from nnstretch.training.evaluation.accuracy import top1

IMAGES = 64
"""Training images that a design is calibrated by."""


@dataclass(frozen=True)
class Quantizer:
    """Quantises designs of a network to int8 after their training.

    Attributes:
        dataset: training images calibrate, validation images say what a quantised design reaches; test images are never read.
    """

    dataset: Dataset

    def quantized(self, model: ir.Model) -> ir.Model:
        """A network in int8.

        Args:
            model: float32, not fused; its input is a batch of one image.

        Raises:
            ModelError: it cannot be quantised.
        """
        with TemporaryDirectory(prefix="nnstretch-sweep-") as folder:
            path = Path(folder, "design.onnx")
            self.write(model, path)
            return load(path)

    def write(self, model: ir.Model, path: Path) -> None:
        """Writes a network in int8 as an ONNX file.

        Args:
            model: as `quantized` takes it.
            path: of the file.

        Raises:
            ModelError: it cannot be quantised.
            FileError: the file cannot be written.
        """
        quantize(model, self._feeds(str(model.graph.inputs[0].name)), path)

    def accuracy(self, network: BranchedNetwork, example_input: Tensor) -> float:
        """Top-1 of a trained design in int8 on the validation images, in percent.

        Args:
            network: in float32, on the CPU.
            example_input: one image.
        """
        model = self.quantized(export(network, example_input))  # all branches run on one processor here
        name = str(model.graph.inputs[0].name)
        with compile_model(model, build_processors("cpu"), tune=False) as session:
            return top1(
                lambda images: session.run(None, {name: images})[0],
                self.dataset.validation,
                self.dataset.num_classes,
                batch=1,
            )

    def _feeds(self, name: str) -> Iterator[Feeds]:
        return ({name: images} for images in self._images)

    @cached_property
    def _images(self) -> list[Images]:
        """Drawn once: all designs are calibrated by the same images."""
        return list(CalibrationImages(self.dataset.train, IMAGES))
