"""Networks of any form as functions from images to logits, for `nnstretch evaluate`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.api.options import CompileOptions
from nnstretch.errors import ModelError, UsageError
from nnstretch.support.progress import Progress

if TYPE_CHECKING:
    import numpy as np
    import onnx_ir as ir
    from torch import nn

    from nnstretch.training.data.preprocessing import Preprocessing

ENGINES = ("nnstretch", "onnxruntime", "torch")


@dataclass(frozen=True)
class ClassifierSource:
    """A network that is to be evaluated, as the user named it.

    Attributes:
        model: an ONNX file, a package, a standalone model, a zoo name or `module.py:factory`.
        weights, design: of a network that torch builds.
        image_size: side of the images in pixels; None: that of the weights, the design or the network.
        device: on which torch computes; None: CUDA's first one if there is one, else the CPU.
    """

    model: str
    weights: Path | None = None
    design: Path | None = None
    image_size: int | None = None
    device: str | None = None

    @property
    def is_standalone(self) -> bool:
        """Whether the model is meant as a standalone model."""
        from nnstretch.package.standalone_session import is_standalone

        return is_standalone(Path(self.model))

    @property
    def has_own_weights(self) -> bool:
        """Whether it is a network of the zoo or of a function, with the weights that these make."""
        path = Path(self.model)
        return self.weights is None and not path.exists() and not self.is_standalone


@dataclass(frozen=True, eq=False)
class Classifier:
    """A network that is ready to be evaluated.

    Attributes:
        network: a torch module, or a function from images to logits.
        shape: of a batch of images: N,C,S,S.
        preprocessing: how images become inputs; None where the file does not say.
    """

    network: nn.Module | Callable[[np.ndarray], Any]
    shape: tuple[int, ...]
    preprocessing: Preprocessing | None = None

    @property
    def image_size(self) -> int:
        """Side of the images in pixels."""
        return self.shape[-1]


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
        progress: called while it is compiled.

    Raises:
        UsageError: the engine cannot run it, or it has another image size.
        ModelError: it does not read batches of square images.
        NNStretchError: it is not found, cannot be read or does not run.
    """
    opened = _opened_standalone if source.is_standalone else {"torch": _opened_module}.get(engine, _opened_graph)
    with opened(source, engine, options, progress) as classifier:
        shape = classifier.shape
        if len(shape) != 4 or shape[2] != shape[3]:
            raise ModelError(
                f"the input of {source.model} has the shape {list(shape)}; square images N,C,S,S are wanted"
            )
        if source.image_size not in (None, shape[2]):
            raise UsageError(
                f"{source.model} is for images of {shape[2]} pixels, --image-size is {source.image_size}; leave it out, or "
                "give the network that the file was made from"
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
    yield Classifier(network.module.to(device), tuple(network.example_input.shape), network.preprocessing)


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
        yield Classifier(lambda images: _outputs(session.run(None, {only.name: images})), only.shape, stated)


@contextmanager
def _opened_graph(
    source: ClassifierSource, engine: str, options: CompileOptions, progress: Progress
) -> Iterator[Classifier]:
    from nnstretch.cli.models.sources import Source

    model = Source(source.model, options, source.weights, source.design, source.image_size)
    if engine == "nnstretch":
        with model.open(progress) as session:
            only = session.get_inputs()[0]
            yield Classifier(
                lambda images: _outputs(session.run(None, {only.name: images})), only.shape, model.preprocessing
            )
        return
    if model.is_package:
        raise UsageError(f"{source.model} is a package, which {engine} cannot run; use --engine nnstretch")
    graph = model.load()
    shape = graph.graph.inputs[0].shape
    if shape is None or not shape.is_static():
        raise ModelError(f"the input of {source.model} has the shape {shape}; fix it with --shape")
    yield Classifier(_onnxruntime(graph, options.threads), tuple(shape.numpy()), model.preprocessing)


def _outputs(found: Sequence[Any]) -> Any:
    """The outputs of a session as a network's: a single one, or a tuple of them."""
    return found[0] if len(found) == 1 else tuple(found)


def _onnxruntime(graph: ir.Model, threads: int | None) -> Callable[[np.ndarray], Any]:
    from nnstretch.bench.comparison.subject import open_reference

    session = open_reference(graph, threads or 0)
    name = session.get_inputs()[0].name
    return lambda images: _outputs(session.run(None, {name: images}))
