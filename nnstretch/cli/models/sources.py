"""MODEL with all that a command line says about it, and the graph or session that it stands for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.api.options import CompileOptions
from nnstretch.errors import FileError, UsageError
from nnstretch.support.foreign_files import is_image
from nnstretch.support.image_size import ImageSize, as_image_size, json_size
from nnstretch.support.progress import Progress

if TYPE_CHECKING:
    import numpy as np
    import onnx_ir as ir

    from nnstretch.scheduler.runtime.base_session import Session
    from nnstretch.training.data.preprocessing import Preprocessing


@dataclass(frozen=True)
class Source:
    """A model as the user named it.

    Attributes:
        model: an ONNX or TFLite file, a package, a zoo name or `module.py:factory`.
        options: its shapes and batch, and how it is compiled.
        weights, design: of a network that torch builds.
        image_size: of that network's images; None: that of the weights, the design or the network.
    """

    model: str
    options: CompileOptions
    weights: Path | None = None
    design: Path | None = None
    image_size: ImageSize | None = None

    @property
    def is_package(self) -> bool:
        """Whether the model is meant as a package."""
        from nnstretch.package.format import is_package

        path = Path(self.model)
        return path.suffix == ".nns" or (path.is_file() and is_package(path))

    @property
    def has_own_size(self) -> bool:
        """Whether the model is a file for images of its own size, which it does not leave open.

        Raises:
            NNStretchError: the file is not found or cannot be read.
        """
        from nnstretch.frontends.resolve import file_input_shape

        if not self._is_file:
            return self.is_package
        shape = file_input_shape(self.model)
        return len(shape) != 4 or any(shape[2:])

    @property
    def _is_file(self) -> bool:
        """Whether the model is an ONNX or TFLite file that is read as it is, without torch."""
        from nnstretch.frontends.resolve import is_model_file

        return not self.is_package and self.weights is None and self.design is None and is_model_file(self.model)

    def check_image_size(self) -> None:
        """Refuses an image size for a file that has its own.

        Raises:
            UsageError: there is one.
        """
        if self.image_size is not None and self.has_own_size:
            raise UsageError(
                f"--image-size is for networks that torch builds and files that leave height and width open; {self.model} is "
                "for images of its own size: leave the option out, or give --shape where it leaves dimensions open"
            )

    def check_exists(self) -> None:
        """Refuses a name that no model has.

        Raises:
            NNStretchError: there is no such model; the message names similar ones.
        """
        from nnstretch.bench.comparison.subject import check_exists

        check_exists(self.model)

    @property
    def preprocessing(self) -> Preprocessing | None:
        """How images become inputs, as the model's file or weights say; None where they do not say.

        Raises:
            NNStretchError: the model is not found or cannot be read.
        """
        from nnstretch.training.data.preprocessing import stated_preprocessing

        return stated_preprocessing(self.metadata, self.model)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the model's file says of itself.

        Raises:
            NNStretchError: the model is not found or cannot be read.
        """
        from nnstretch.package import read_package

        return read_package(Path(self.model)).metadata if self.is_package else self._graph.metadata_props

    def package_metadata(self, macs: int) -> dict[str, Any]:
        """What a package of this model says of it, beside what it says of its plans.

        Args:
            macs: of the model.
        """
        from nnstretch.training.data.preprocessing import PREPROCESSING_KEY
        from nnstretch.vision.classes import CLASS_NAMES_KEY, stated_names

        about: dict[str, Any] = {"source": self.to_json(), "tuned": self.options.tune, "macs": macs}
        if self.preprocessing is not None:
            about[PREPROCESSING_KEY] = self.preprocessing.to_json()
        if names := stated_names(self.metadata):
            about[CLASS_NAMES_KEY] = {str(number): name for number, name in names.items()}
        return about if self.options.plans else {**about, "processors": self.options.processors}

    def to_json(self) -> dict[str, Any]:
        """What a package remembers of where it came from."""
        return {
            "model": self.model,
            "shapes": {name: list(shape) for name, shape in (self.options.shapes or {}).items()},
            "weights": str(self.weights) if self.weights else None,
            "design": str(self.design) if self.design else None,
            "batch": self.options.batch,
            "image_size": json_size(self.image_size),
        }

    def load(self) -> ir.Model:
        """A copy of the graph, not fused.

        Raises:
            NNStretchError: it is a package, is not found, or cannot be read or exported.
        """
        return self._graph.clone()

    @property
    def note(self) -> str:
        """Lines on weights that are random or not retrained, and on what was assumed; else empty. It must have been loaded."""
        from nnstretch import zoo

        if self.weights is None and self.model in zoo.names():
            return f"the weights of {self.model} are random; give trained ones with --weights"
        if self.is_package or self.weights is None or self.design is None or not self._made[1]:
            return self.assumptions
        inherited = (
            f"{self.weights} are weights of the original; the branched network inherits them and needs those that `nnstretch "
            f"train {self.model} --design {self.design}` writes to be as accurate"
        )
        return "\n".join(filter(None, (inherited, self.assumptions)))

    @property
    def assumptions(self) -> str:
        """Lines on what a `module.py:factory`, which must have been loaded, leaves open.

        Empty for other models.
        """
        from nnstretch.frontends.resolve import SIZE_IS_ASSUMED

        if not self.is_factory:
            return ""
        size = ""
        if self._graph.meta.get(SIZE_IS_ASSUMED):
            option = "--shape or --image-size" if self.weights is None and self.design is None else "--image-size"
            size = f"{self.inputs_text} is assumed, as {self.model} returns no example input; {option} names another"
        return "\n".join(filter(None, (self.note_of_weights, size)))

    @property
    def note_of_weights(self) -> str:
        """A line if the weights are those that a `module.py:factory` makes; else empty."""
        if not self.is_factory or self.weights is not None:
            return ""
        return (
            f"the weights are those that {self.model} makes, random ones unless it loads others; --weights takes a file"
        )

    @property
    def is_factory(self) -> bool:
        """Whether the model is meant as `module.py:factory`."""
        from nnstretch.frontends.resolve import is_model_file

        return ".py:" in self.model and not is_model_file(self.model)

    @property
    def inputs_text(self) -> str:
        """The shapes that the model is for, as in `input 1×3×224×224`.

        Raises:
            NNStretchError: as `load` says.
        """
        shapes = ["×".join(map(str, value.shape or ())) for value in self._graph.graph.inputs]
        return f"input{'s' * (len(shapes) != 1)} {', '.join(shapes)}"

    @property
    def _graph(self) -> ir.Model:
        return self._made[0]

    @cached_property
    def _made(self) -> tuple[ir.Model, bool]:
        """The graph, made once (a factory that draws its weights gives others each time), and whether its network inherits."""
        options = self.options
        if self.is_package:
            raise UsageError(f"{self.model} is a package with fixed plans; give the model that it was made from")
        self.check_image_size()
        if options.shapes and (self.weights or self.design or self.image_size):
            raise UsageError(
                "--shape does not go with --weights, --design or --image-size, which say for which images they are"
            )
        if self._is_file or (self.weights is None and self.design is None and self.image_size is None):
            from nnstretch.frontends.resolve import load_model

            return load_model(self.model, dict(options.shapes or {}), options.batch, self.image_size), False
        from nnstretch.cli.models.networks import NetworkOptions, build_network

        network = build_network(self.model, NetworkOptions(image_size=self.image_size), self.weights, self.design)
        return network.with_batch(options.batch).export(), network.inherits

    def open(self, progress: Progress) -> Session:
        """A session for the model; a package runs as it was compiled, and changes between its plans if it has several.

        Raises:
            NNStretchError: what was found, what was wanted and what to do.
        """
        from nnstretch.api.compile import compile_graph, open_package
        from nnstretch.compiler.saved_plan import check_plan
        from nnstretch.package import read_package

        options = replace(self.options, progress=progress)
        if not self.is_package:
            if options.plan is not None:
                check_plan(options)  # before a graph is made, which may take long
            return compile_graph(self.load(), options)
        given = [name for name in ("weights", "design", "image_size") if getattr(self, name) is not None]
        options.check_package(self.model, given)
        if options.policy is None and options.streams is None and len(read_package(Path(self.model)).plans) > 1:
            options = replace(options, policy="adaptive")
        return open_package(Path(self.model), options)


@dataclass(frozen=True)
class GraphSource(Source):
    """A graph that is at hand; `model` is what it is called.

    Attributes:
        graph: not fused.
    """

    graph: ir.Model | None = None

    def check_exists(self) -> None:
        """It exists."""

    @property
    def is_factory(self) -> bool:
        """It is none, whatever it is called."""
        return False

    @cached_property
    def _made(self) -> tuple[ir.Model, bool]:
        assert self.graph is not None
        return self.graph, False


def source_of_package(path: Path) -> Source:
    """What a package was made from, if it is still at hand.

    Raises:
        UsageError: it is not.
        FileError, PackageError: the package cannot be read.
    """
    from nnstretch import zoo
    from nnstretch.package import read_package

    about = read_package(path).metadata.get("source")
    if not isinstance(about, dict) or not isinstance(about.get("model"), str):
        raise UsageError(f"{path} does not say what it was made from, so there is nothing to check against")
    files = [about[key] for key in ("weights", "design") if about.get(key)]
    if about["model"] not in zoo.names():
        files.append(about["model"].partition(".py:")[0] + (".py" if ".py:" in about["model"] else ""))
    for file in files:
        if not Path(file).is_file():
            raise UsageError(f"{path} was made from {file}, which is not there to check against; run it where that is")
    shapes = {str(name): tuple(map(int, shape)) for name, shape in about.get("shapes", {}).items()}
    weights, design = (Path(about[key]) if about.get(key) else None for key in ("weights", "design"))
    options = CompileOptions(shapes=shapes, batch=about.get("batch"))
    size = about.get("image_size")
    return Source(about["model"], options, weights, design, None if size is None else as_image_size(size))


def read_feeds(files: Mapping[str, str], inputs: Sequence[str]) -> dict[str, np.ndarray]:
    """The arrays of .npy files for the inputs of a model.

    Args:
        files: by the names of inputs; one without a name is for the only input.
        inputs: names of the model's inputs.

    Raises:
        UsageError: a file has no name, and the model has several inputs, or they are not known.
        FileError: a file cannot be read or is no .npy file.
    """
    if "" in files and len(inputs) != 1:
        known = f"the model has {', '.join(inputs)}; " if inputs else ""
        raise UsageError(f"--input {files['']} does not say for which input it is; {known}write NAME={files['']}")
    return {name or inputs[0]: read_array(Path(file)) for name, file in files.items()}


def read_array(path: Path) -> np.ndarray:
    """The array of a .npy file, in the byte order of this machine; objects are refused.

    Raises:
        FileError: it cannot be read or is no .npy file.
    """
    import numpy as np

    try:
        loaded = np.load(path, allow_pickle=False)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, EOFError) as error:
        wish = "give an image by --image" if is_image(path) else "write it with numpy.save"
        raise FileError(f"{path} is not a .npy file with numbers; {wish}") from error
    if not isinstance(loaded, np.ndarray):
        raise FileError(f"{path} holds several arrays; give one .npy file per input")
    return loaded.astype(loaded.dtype.newbyteorder("="), copy=False)
