"""Networks of any form as functions from images to logits, for `nnstretch evaluate`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.api.options import CompileOptions
from nnstretch.errors import ModelError, UsageError
from nnstretch.support.image_size import ImageSize, sides, size_text
from nnstretch.support.progress import Progress

if TYPE_CHECKING:
    import numpy as np
    import onnx_ir as ir
    from torch import nn

    from nnstretch.package.standalone_session import StandaloneSession
    from nnstretch.scheduler.runtime.base_session import Session
    from nnstretch.training.data.preprocessing import Preprocessing
    from nnstretch.training.data.split import Dataset

ENGINES = ("nnstretch", "onnxruntime", "torch")
ENGINE_ALIASES: Mapping[str, str] = {"ort": "onnxruntime"}
"""Short names of engines, as `bench --against` takes them."""


@dataclass(frozen=True)
class ClassifierSource:
    """A network that is to be evaluated, as the user named it.

    Attributes:
        model: an ONNX file, a package, a standalone model, a zoo name or `module.py:factory`.
        weights, design: of a network that torch builds.
        image_size: of the images; None: that of the weights, the design or the network.
        device: on which torch computes; None: CUDA's first one if there is one, else the CPU.
    """

    model: str
    weights: Path | None = None
    design: Path | None = None
    image_size: ImageSize | None = None
    device: str | None = None

    @property
    def is_standalone(self) -> bool:
        """Whether the model is meant as a standalone model."""
        from nnstretch.package.standalone_head import is_standalone

        return is_standalone(Path(self.model))

    @property
    def has_own_weights(self) -> bool:
        """Whether it is a network of the zoo or of a function, with the weights that these make."""
        path = Path(self.model)
        return self.weights is None and not path.exists() and not self.is_standalone


@dataclass(frozen=True, eq=False)
class Classifier:
    """A network that can be evaluated.

    Attributes:
        network: makes it a torch module, or a function from images to logits; compiles what is not compiled yet.
        shape: of a batch of images: N,C,H,W.
        preprocessing: how images become inputs; None where the file does not say.
        outputs: shapes of the outputs, by which data for other classes are refused before the network is compiled; None where
            they are not known before the first run.
        class_names: names of its classes by index, as file or weights state them; empty where they do not.
    """

    network: Callable[[], nn.Module | Callable[[np.ndarray], Any]]
    shape: tuple[int, ...]
    preprocessing: Preprocessing | None = None
    outputs: tuple[tuple[int, ...], ...] | None = None
    class_names: Mapping[int, str] = field(default_factory=dict)

    def check_outputs(self, dataset: Dataset) -> None:
        """Checks that the outputs fit the classes of the data, as far as that is known before the network is compiled.

        Raises:
            ModelError: they do not.
        """
        import numpy as np

        if self.outputs is not None:
            outputs = as_of_network([np.broadcast_to(np.float32(0), shape) for shape in self.outputs])
            dataset.task.check_outputs(outputs, self.shape[0], dataset.num_classes)


def compared_source(text: str, design: Path | None, first: ClassifierSource) -> ClassifierSource:
    """The other network of a comparison: MODEL, or MODEL:WEIGHTS with weights in a `.safetensors` file.

    Args:
        text: the network.
        design: of it.
        first: the network that it is compared to, whose image size and device it has.
    """
    model, colon, weights = text.rpartition(":")
    if colon and weights.endswith(".safetensors"):
        return replace(first, model=model, weights=Path(weights), design=design)
    return replace(first, model=text, weights=None, design=design)


@contextmanager
def open_classifier(
    source: ClassifierSource, engine: str, options: CompileOptions, progress: Progress
) -> Iterator[Classifier]:
    """The network, until the block ends.

    Args:
        source: the network.
        engine: one of `ENGINES`. A standalone model runs by its own library, which is that of `nnstretch`.
        options: how it is compiled.
        progress: called while it is compiled, which `Classifier.network` does.

    Raises:
        UsageError: the engine cannot run it, or it has another image size.
        ModelError: it does not read batches of images.
        NNStretchError: it is not found, cannot be read or does not run.
    """
    opened = _opened_standalone if source.is_standalone else {"torch": _opened_module}.get(engine, _opened_graph)
    with opened(source, engine, options, progress) as classifier:
        shape = classifier.shape
        if len(shape) != 4:
            raise ModelError(f"the input of {source.model} has the shape {list(shape)}; images N,C,H,W are wanted")
        if source.image_size is not None and shape[2:] != sides(source.image_size):
            raise UsageError(
                f"{source.model} is for images of {shape[2]}×{shape[3]} pixels, --image-size is "
                f"{size_text(source.image_size)}; leave it out, or give the network that the file was made from"
            )
        yield classifier


@contextmanager
def _opened_module(
    source: ClassifierSource, engine: str, options: CompileOptions, progress: Progress
) -> Iterator[Classifier]:
    from nnstretch.cli.models.networks import NetworkOptions, build_network
    from nnstretch.cli.models.sources import Source
    from nnstretch.training.loop.torch_settings import find_device

    del progress
    device = find_device(source.device)
    if Source(source.model, options).is_package:
        raise UsageError(f"{source.model} is a package, which {engine} cannot run; use --engine nnstretch")
    network = build_network(source.model, NetworkOptions(image_size=source.image_size), source.weights, source.design)
    module = network.module.to(device)
    shape = tuple(network.example_input.shape)
    yield Classifier(lambda: module, shape, network.preprocessing, class_names=network.class_names)


@contextmanager
def _opened_standalone(
    source: ClassifierSource, engine: str, options: CompileOptions, progress: Progress
) -> Iterator[Classifier]:
    from nnstretch.package.standalone_session import StandaloneSession
    from nnstretch.training.data.preprocessing import preprocessing_beside

    del progress
    if engine != "nnstretch":
        raise UsageError(f"{source.model} is a standalone model, which {engine} cannot run; use --engine nnstretch")
    options.check_package(source.model, [name for name in ("weights", "design") if getattr(source, name)])
    with StandaloneSession(Path(source.model)) as session:
        (only, *others) = session.get_inputs()
        if others:
            raise ModelError(f"{source.model} has {1 + len(others)} inputs; one, for images, is wanted")
        stated = preprocessing_beside(Path(source.model))
        yield Classifier(lambda: _running(session), only.shape, stated)


@contextmanager
def _opened_graph(
    source: ClassifierSource, engine: str, options: CompileOptions, progress: Progress
) -> Iterator[Classifier]:
    from nnstretch.cli.models.sources import Source
    from nnstretch.vision.classes import stated_names

    model = Source(source.model, options, source.weights, source.design, source.image_size)
    if model.image_size is not None and model.has_own_size:
        model = replace(model, image_size=None)  # `open_classifier` compares it
    if model.is_package:
        if engine != "nnstretch":
            raise UsageError(f"{source.model} is a package, which {engine} cannot run; use --engine nnstretch")
        with model.open(progress) as session:
            size, names = session.get_inputs()[0].shape, stated_names(model.metadata)
            yield Classifier(lambda: _running(session), size, model.preprocessing, class_names=names)
        return
    graph = model.load()
    shape = _shape_of(graph.graph.inputs[0])
    if shape is None:
        raise ModelError(
            f"the input of {source.model} has the shape {graph.graph.inputs[0].shape}; fix it with --shape"
        )
    known = [found for found in map(_shape_of, graph.graph.outputs) if found is not None]
    outputs = tuple(known) if len(known) == len(graph.graph.outputs) else None
    with ExitStack() as stack:

        def network() -> Callable[[np.ndarray], Any]:
            if engine == "nnstretch":
                return _running(stack.enter_context(model.open(progress)))
            return _onnxruntime(graph, options.threads)

        yield Classifier(network, shape, model.preprocessing, outputs, stated_names(model.metadata))


def _shape_of(value: ir.Value) -> tuple[int, ...] | None:
    """The shape of an input or output of a graph; None if a dimension is not known."""
    shape = value.shape
    return tuple(shape.numpy()) if shape is not None and shape.is_static() else None


def _running(session: Session | StandaloneSession) -> Callable[[np.ndarray], Any]:
    """A session as a function from images to outputs."""
    name = session.get_inputs()[0].name
    return lambda images: as_of_network(session.run(None, {name: images}))


def as_of_network(found: Sequence[Any]) -> Any:
    """The outputs of a session as a network's: a single one, or a tuple of them."""
    return found[0] if len(found) == 1 else tuple(found)


def _onnxruntime(graph: ir.Model, threads: int | None) -> Callable[[np.ndarray], Any]:
    from nnstretch.bench.comparison.subject import open_reference

    session = open_reference(graph, threads or 0)
    name = session.get_inputs()[0].name
    return lambda images: as_of_network(session.run(None, {name: images}))
