"""From a trained network in float32 to one for quantisation-aware training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import onnx_ir as ir
import torch
from torch import nn

from nnstretch.frontends.resolve import load_any
from nnstretch.quantization.feeds import Feeds
from nnstretch.quantization.keep_float import KeepFloat
from nnstretch.quantization.pipeline import QuantizationOptions, calibrate
from nnstretch.support.progress import Progress, silent
from nnstretch.training.data.calibration import CalibrationImages
from nnstretch.training.data.split import Dataset
from nnstretch.training.quantization.network import FloatGraph, QuantizedNetwork
from nnstretch.training.recipe import Recipe


def quantization_aware(
    model: nn.Module | ir.Model,
    data: Dataset | Iterable[Feeds],
    recipe: Recipe | None = None,
    example_input: Any = None,
    *,
    progress: Progress | None = None,
) -> QuantizedNetwork:
    """A network that computes as the int8 file of a trained one does, and can be trained.

    It has the roundings and the ranges that `nnstretch.quantize` gives the model. `training.loop.trainer.train` trains it,
    `nnstretch.quantize(network, None, path)` writes the int8 file with exactly its scales, and `nnstretch.compile` takes it.

    Args:
        model: trained, in float32: a torch module, also a branched one, or an onnx_ir model with a batch of 1.
        data: calibration data: a data set, whose training images are read, or inputs by name, one mapping per run.
        recipe: its `qat_…` fields say how ranges are chosen and trained; None: those of the preset `qat`.
        example_input: a tensor of one image (torch modules).
        progress: called for every run of the calibration.

    Returns:
        The network, in evaluation mode. It shares no weights with the model.

    Raises:
        ModelError: the model cannot be exported or quantised, or an operator has no counterpart in torch; names it.
        UsageError: there is no example input, or the data do not fit.
    """
    from nnstretch.training.recipe_files import load_recipe

    recipe = recipe or load_recipe("qat")
    if isinstance(model, nn.Module) and example_input is None and isinstance(data, Dataset):
        example_input = data.train.images(torch.arange(1))
    graph = load_any(model, example_input)
    name = str(graph.graph.inputs[0].name)
    feeds: Iterable[Feeds] = (
        data
        if not isinstance(data, Dataset)
        else ({name: images} for images in CalibrationImages(data.train, recipe.qat_images))
    )
    kept = KeepFloat.parse([text.strip() for text in recipe.qat_keep_float.split(",")])
    options = QuantizationOptions(method=recipe.qat_method, keep_float=kept)  # type: ignore[arg-type]
    found = calibrate(graph, feeds, options, progress or silent)
    network = QuantizedNetwork(FloatGraph(found.network, found.ranges, found.kept), recipe.qat_ranges)
    network.check(found.example)
    return network
