"""The networks of a job (`transform_and_train`) in int8: calibrated, or trained through quantisation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.cli.job.networks import JobNetworks
from nnstretch.cli.job.trainings import Trainings
from nnstretch.cli.models.networks import Network

if TYPE_CHECKING:
    import onnx_ir as ir
    from torch import nn

    from nnstretch.quantization import Quantized
    from nnstretch.training.recipe import Recipe

CALIBRATION_IMAGES = 100


def calibrated(networks: JobNetworks, made: Mapping[str, Network], folder: Path) -> list[dict[str, Any]]:
    """Calibrates networks, given by name, and writes them in int8; returns files, numbers of int8 layers and scores."""
    return [_calibrate(networks, name, network.export(), folder) for name, network in made.items()]


def _calibrate(networks: JobNetworks, name: str, graph: ir.Model, folder: Path) -> dict[str, Any]:
    from nnstretch.quantization import quantize
    from nnstretch.training.data.calibration import CalibrationImages

    file = folder / f"{name}-int8.onnx"
    (read,) = (str(value.name) for value in graph.graph.inputs)
    calibration = CalibrationImages(networks.dataset.train, CALIBRATION_IMAGES)
    counts = quantize(graph, ({read: images} for images in calibration), file)
    networks.report.note(calibration.note)
    return _answer(networks, name, file, counts)


def trained(
    networks: JobNetworks,
    trainings: Trainings,
    recipe: Recipe,
    made: Mapping[str, Network],
    teacher: nn.Module,
    folder: Path,
) -> list[dict[str, Any]]:
    """As `calibrated`, with networks that are trained through quantisation first; their weights are written, too."""
    return [_train(networks, trainings, recipe, name, network, teacher, folder) for name, network in made.items()]


def _train(
    networks: JobNetworks,
    trainings: Trainings,
    recipe: Recipe,
    name: str,
    network: Network,
    teacher: nn.Module,
    folder: Path,
) -> dict[str, Any]:
    from nnstretch.cli.training import quantised
    from nnstretch.quantization import write_trained
    from nnstretch.training.weights import save_weights

    with networks.report.progress("Calibrating") as advance:
        network = quantised(network, networks.dataset, recipe, advance)
    teaches = networks.dataset.task.has_logits or recipe.kd_feature_weight > 0
    trainings.train(network, recipe, teacher if teaches else None, folder / name)
    file = folder / f"{name}-int8.onnx"
    counts = write_trained(network.export(), file)
    save_weights(network.module, folder / f"{name}.safetensors", network.metadata(**networks.about))
    return _answer(networks, name, file, counts)


def _answer(networks: JobNetworks, name: str, file: Path, counts: Quantized) -> dict[str, Any]:
    score = {networks.measure.key: onnx_score(networks, file)}
    return {"name": name, "file": file.name, "int8_layers": counts.int8, "kept": len(counts.kept), **score}


def onnx_score(networks: JobNetworks, file: Path) -> float:
    """The measure on the test images in percent, as ONNX Runtime computes a network for one image."""
    import onnxruntime

    from nnstretch.cli.models.classifiers import as_of_network
    from nnstretch.training.evaluation.accuracy import scored

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (read,) = (value.name for value in session.get_inputs())

    def outputs(images: Any) -> Any:
        return as_of_network(session.run(None, {read: images}))

    return scored(outputs, networks.dataset.test, networks.dataset, batch=1).percent
