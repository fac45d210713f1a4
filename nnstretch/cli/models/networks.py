"""Networks that can be changed or trained, from a zoo name, `module.py:factory` or a file, with weights and a branching.

Weights that `nnstretch train` wrote know which network they are for: its number of classes, stem and image size are in the
file's metadata.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.errors import FileError, ModelError, UsageError
from nnstretch.support.image_size import ImageSize, as_image_size, sides, size_of
from nnstretch.support.words import counted

if TYPE_CHECKING:
    import onnx_ir as ir
    from torch import Tensor, nn

    from nnstretch.branching.design.design import Design
    from nnstretch.frontends.resolve import MadeModule
    from nnstretch.frontends.torch_from_onnx.convert import Interface
    from nnstretch.training.data.preprocessing import Preprocessing
    from nnstretch.training.quantization import QuantizedNetwork
    from nnstretch.zoo.registry import ZooEntry

log = logging.getLogger(__name__)
METADATA_KEY = "nnstretch.network"
_QUANTIZATION = "quantization"
_SMALL = 96
"""Side in pixels up to which a zoo network gets the stem for small images, unless the options say otherwise."""


@dataclass(frozen=True)
class NetworkOptions:
    """How a network is built; None leaves it to the weights' metadata, then to the design, and then to the network.

    Attributes:
        num_classes, small_images, in_channels: of a zoo network.
        image_size: of the input.
        seed: of weights that are not filled in from a file.
    """

    num_classes: int | None = None
    small_images: bool | None = None
    in_channels: int | None = None
    image_size: ImageSize | None = None
    seed: int = 0

    def filled(self, other: NetworkOptions) -> NetworkOptions:
        """These options, with those of `other` where there are none. The seed is kept."""
        missing = {f.name: getattr(other, f.name) for f in fields(self) if getattr(self, f.name) is None}
        return replace(self, **missing)


@dataclass(frozen=True, eq=False)
class Network:
    """A torch module with what was needed to build it.

    Attributes:
        spec: a zoo name, `module.py:factory`, or an ONNX or TFLite file.
        options: with which it was built.
        module: in evaluation mode.
        example_input: one image, N,C,H,W.
        design: of a branched network.
        about: metadata of the weights that were filled in.
        interface: names and metadata of the file that it comes from; None for other networks.
        size_is_assumed: whether nobody said the size of its images.
    """

    spec: str
    options: NetworkOptions
    module: nn.Module
    example_input: Tensor
    design: Design | None = None
    about: dict[str, Any] = field(default_factory=dict)
    interface: Interface | None = None
    size_is_assumed: bool = False

    @property
    def inherits(self) -> bool:
        """Whether it is another network than the original, and its weights are not its own."""
        return self.design is not None and not self.design.is_original and not self.about.get("design")

    @property
    def macs(self) -> int:
        """Multiply-accumulates for one image."""
        from nnstretch.branching.design.accounting import count_macs

        return count_macs(self.module, self.example_input)

    @property
    def parameters(self) -> int:
        """Learnable scalars."""
        from nnstretch.branching.design.accounting import count_parameters

        return count_parameters(self.module)

    @property
    def preprocessing(self) -> Preprocessing | None:
        """How images become inputs, for images of the size that the network takes, as weights or file say; None: neither does.

        Raises:
            FileError: what they say cannot be understood.
        """
        from nnstretch.training.data.preprocessing import stated_preprocessing

        found = known_preprocessing(self.about, f"the weights of {self.spec}")
        if found is None and self.interface is not None:
            found = stated_preprocessing(self.interface.metadata, self.spec)
        return replace(found, image_size=size_of(*self.example_input.shape[2:])) if found else None

    @property
    def class_names(self) -> dict[int, str]:
        """Names of its classes by index, as weights or file say; empty if neither does."""
        from nnstretch.vision.classes import CLASS_NAMES_KEY, stated_names

        of_weights = stated_names({CLASS_NAMES_KEY: self.about.get("classes")})
        return of_weights or (stated_names(self.interface.metadata) if self.interface else {})

    def metadata(self, **more: Any) -> dict[str, str]:
        """What a weights file says of this network."""
        about = {"model": self.spec, **asdict(self.options), "design": self.design.id if self.design else ""}
        if self._quantised is not None:
            about[_QUANTIZATION] = self._quantised.settings
        about |= {name: self.about[name] for name in ("preprocessing", "classes") if name in self.about}
        return {METADATA_KEY: json.dumps({**about, **more})}

    @property
    def _quantised(self) -> QuantizedNetwork | None:
        """The module, if it rounds as an int8 file does."""
        from nnstretch.training.quantization import QuantizedNetwork

        return self.module if isinstance(self.module, QuantizedNetwork) else None

    def with_batch(self, batch: int | None) -> Network:
        """The network for a batch of images per run; itself if `batch` is None.

        Raises:
            UsageError: it takes no single tensor, or is in int8.
        """
        from nnstretch.frontends.resolve import batched

        if batch not in (None, 1) and self._quantised is not None:
            raise UsageError(f"the int8 network of these weights is for one image per run; leave out --batch {batch}")
        return replace(self, example_input=batched(self.example_input, batch, self.spec))

    def export(self) -> ir.Model:
        """The graph, not fused, with its preprocessing and the names of its classes.

        Layers of a branched network know their processors.
        The graph of a network from a file has the file's names of inputs and outputs, and its metadata. That of a network from
        quantisation-aware training is in int8.
        """
        from nnstretch.frontends.resolve import SIZE_IS_ASSUMED
        from nnstretch.training.data.preprocessing import PREPROCESSING_KEY
        from nnstretch.vision.classes import CLASS_NAMES_KEY

        graph = self._export()
        graph.meta[SIZE_IS_ASSUMED] = self.size_is_assumed
        if self.preprocessing is not None:
            graph.metadata_props[PREPROCESSING_KEY] = self.preprocessing.to_json()
        if names := self.about.get("classes"):
            graph.metadata_props[CLASS_NAMES_KEY] = json.dumps(names)
        return graph if self.interface is None else self.interface.applied(graph)

    def _export(self) -> ir.Model:
        if self._quantised is not None:
            return self._quantised.int8_graph()
        if self.design is not None:
            from nnstretch.branching.transform.network import BranchedNetwork, export_branched

            assert isinstance(self.module, BranchedNetwork)
            return export_branched(self.module, self.example_input)
        from nnstretch.frontends.torch_module import export

        return export(self.module, self.example_input)


def is_of_zoo(spec: str) -> bool:
    """Whether a network is meant by its name in the zoo."""
    from nnstretch.frontends.resolve import is_model_file

    return not (is_model_file(spec) or ".py" in spec)


def build_network(
    spec: str, options: NetworkOptions, weights: Path | None = None, design: Path | None = None
) -> Network:
    """The network that `spec` names, with weights filled in, then branched.

    Args:
        spec: a zoo name, `module.py:factory`, or an ONNX or TFLite file.
        options: how to build it.
        weights: of the network as it is or of the branched one; the file says which.
        design: a branching of it.

    Raises:
        NNStretchError: something is not found, cannot be read, or does not fit the rest.
    """
    about = read_about(weights) if weights else {}
    options = options.filled(known_options(about, design))
    made, interface = _build(spec, options)
    network = Network(
        spec,
        options,
        made.module,
        made.example,
        about=about,
        interface=interface,
        size_is_assumed=made.size_is_assumed and options.image_size is None,
    )
    of_branched, quantization = bool(about.get("design")), about.get(_QUANTIZATION)
    if of_branched and design is None:
        raise UsageError(
            f"{weights} are weights of the branching {about['design']}; give them with its file (--design), or those of the "
            "original"
        )
    if quantization and design is not None and not of_branched:
        raise UsageError(f"{weights} are weights in int8, which no branching inherits; give those in float32")
    if weights and not of_branched and not quantization:
        _fill(network, weights)
    if design is not None:
        network = branch(network, design)
        if weights and of_branched:
            _check_design(network, weights)
            if not quantization:
                _fill(network, weights)
    if weights and quantization:
        network = _rounded(network, quantization, weights)
        _fill(network, weights)
    return network


def _rounded(network: Network, settings: Any, weights: Path) -> Network:
    """The network for weights from quantisation-aware training, not filled in.

    Raises:
        FileError: the weights do not say how it rounds.
    """
    from nnstretch.training.quantization.network import structure

    try:
        return replace(network, module=structure(network.export(), settings))
    except (KeyError, TypeError) as error:
        raise FileError(f"{weights} does not say how its network rounds; train it again with `--recipe qat`") from error


def _check_design(network: Network, weights: Path) -> None:
    """Checks that weights are for the design of a branched network: others may have the same shapes.

    Raises:
        UsageError: they are for another one.
    """
    assert network.design is not None
    if network.about["design"] != network.design.id:
        raise UsageError(
            f"{weights} are weights of the branching {network.about['design']}, and --design is {network.design.id}; "
            "give the two that belong together"
        )


def known_options(about: Mapping[str, Any], design: Path | None) -> NetworkOptions:
    """What weights say of the network that they are for, and then what a design says; None where neither does.

    Args:
        about: of the weights (`read_about`); empty without weights.
        design: a file, or None; a published one says nothing that counts here.

    Raises:
        FileError, DesignError: the design cannot be read.
    """
    from nnstretch.branching.design.design import load_design

    of_weights: dict[str, Any] = {f.name: about.get(f.name) for f in fields(NetworkOptions) if f.name != "seed"}
    of_design = NetworkOptions()
    if design is not None and not _is_published(design):
        of_design = NetworkOptions(image_size=load_design(design).image_size)
    return NetworkOptions(**of_weights).filled(of_design)


def known_preprocessing(about: Mapping[str, Any], source: str) -> Preprocessing | None:
    """What weights say of the images that they are for; None where they do not say.

    Args:
        about: of the weights (`read_about`).
        source: the weights, for messages.

    Raises:
        FileError: it cannot be understood.
    """
    from nnstretch.training.data.preprocessing import preprocessing_from_json

    stated = about.get("preprocessing")
    return None if stated is None else preprocessing_from_json(json.dumps(stated), source)


def preprocessing_of_file(spec: str) -> Preprocessing | None:
    """What an ONNX file says of the images that its network is for; None for other networks, and where it does not say.

    Raises:
        ModelError, FileError: the file cannot be read, or what it says cannot be understood.
    """
    from nnstretch.frontends.onnx_message import read_message
    from nnstretch.frontends.resolve import is_model_file
    from nnstretch.training.data.preprocessing import stated_preprocessing

    if not is_model_file(spec) or Path(spec).suffix.lower() == ".tflite":
        return None
    metadata = {entry.key: entry.value for entry in read_message(Path(spec)).proto.metadata_props}
    return stated_preprocessing(metadata, spec)


def branch(network: Network, design: Path) -> Network:
    """The branched network of a design file, or of a YAML file of NN-Stretch's authors, with weights inherited.

    Raises:
        FileError, DesignError: it cannot be read, or is for another network.
    """
    from nnstretch.branching.design.design import load_design
    from nnstretch.branching.pycls.files import read_published
    from nnstretch.branching.stretch import published, rebuild

    if _is_published(design):
        result = published(network.module, network.example_input, read_published(design))
        for note in result.notes:
            log.warning("%s: %s", design, note)
        return replace(network, module=result.module.eval(), design=result.design)
    made = load_design(design)
    module = rebuild(network.module, network.example_input, made)
    return replace(network, module=module.eval(), design=made)


def _is_published(design: Path) -> bool:
    """Whether a design is in the format of NN-Stretch's authors."""
    return design.suffix.lower() in (".yaml", ".yml")


def read_about(weights: Path) -> dict[str, Any]:
    """What a weights file says of the network that it is for; empty if it says nothing.

    Raises:
        FileError: it cannot be read or is damaged.
    """
    from nnstretch.training.weights import read_tensors

    _, metadata = read_tensors(weights)
    try:
        about = json.loads(metadata.get(METADATA_KEY, "{}"))
    except ValueError:
        return {}
    if not isinstance(about, dict):
        return {}
    if about.get("image_size") is not None:
        try:
            about["image_size"] = as_image_size(about["image_size"])
        except UsageError as error:
            raise FileError(f"{weights}: {error}; train again, or remove it from the metadata") from error
    return about


def _build(spec: str, options: NetworkOptions) -> tuple[MadeModule, Interface | None]:
    """A module with its example input, and what a file calls its inputs and outputs."""
    from nnstretch import zoo
    from nnstretch.frontends.modes import check_reads_images, run_once
    from nnstretch.frontends.resolve import MadeModule, is_model_file, load_network

    interface = None
    if not is_of_zoo(spec):
        if options.small_images:
            raise UsageError(f"--small-images is for zoo networks; {spec} is none")
        if is_model_file(spec):
            converted = load_network(spec, options.image_size)
            made, interface = MadeModule(converted.module, converted.image), converted.interface
        else:
            made = _made(spec, options.seed)
            check_reads_images(made.module, made.example, spec)
        example = _resized(made.example, options)
        try:
            run_once(made.module, example)  # a network of the caller's may want other images than data and options have
        except ModelError as error:
            raise ModelError(_refusal(error, spec, options, made.example.shape)) from error
        return made._replace(module=made.module.eval(), example=example), interface
    entry = zoo.entry(spec)
    _check_anchors(entry, options.image_size)
    side = max(sides(options.image_size or entry.input_size))
    module = zoo.build(
        spec,
        num_classes=options.num_classes,
        small_images=side <= _SMALL if options.small_images is None else options.small_images,
        pretrained_seed=options.seed,
        in_channels=options.in_channels or 3,
    )
    example = zoo.example_input(spec, in_channels=options.in_channels or 3)
    return MadeModule(module, _resized(example, options)), None


def _check_anchors(entry: ZooEntry, size: ImageSize | None) -> None:
    """Refuses images of another size than the anchors of a detector of the zoo.

    Raises:
        UsageError: the network is a detector, and has no anchors for this size.
    """
    from nnstretch.zoo.ssd import IMAGE_SIZES

    if entry.family == "ssd" and size is not None and size not in IMAGE_SIZES:
        raise UsageError(f"{entry.name} has anchors for images of {entry.input_size} pixels; leave --image-size out")


def _made(spec: str, seed: int) -> MadeModule:
    """The module of a factory, which draws its weights from global generators, and its example input.

    Raises:
        ModelError: the factory is not found or fails.
    """
    from nnstretch.frontends.resolve import make_module
    from nnstretch.training.randomness import preserved_generators, seed_generators

    with preserved_generators():
        seed_generators(seed)
        return make_module(spec)


def _refusal(error: ModelError, spec: str, options: NetworkOptions, own: Sequence[int]) -> str:
    """The message for a network that does not run on an input with the size and channels of the options.

    Args:
        error: why it does not.
        spec: of the network.
        options: of the network.
        own: shape of the input that comes with it.
    """
    from nnstretch.frontends.resolve import file_input_shape, is_model_file

    if is_model_file(spec):
        own_shape = "×".join(str(n or "?") for n in file_input_shape(spec)[1:])
        return f"{error}: {spec} is for images of {own_shape}, which --image-size or the data contradict"
    wanted = options.in_channels
    if wanted is not None and wanted != own[1]:
        return (
            f"{spec} wants images of {counted(own[1], 'channel')}, and those of the data or weights have {wanted}; "
            "return (module, example input) from it, and they are converted to the channels of that input"
        )
    return f"{error}, with --image-size or from {spec} as (module, example input)"


def _resized(example: Tensor, options: NetworkOptions) -> Tensor:
    """The example input with the size and channels of the options."""
    from nnstretch.frontends.noise import noise

    if options.image_size is None and options.in_channels is None:
        return example
    if example.ndim != 4:
        raise ModelError(f"the network takes an input of {example.ndim} axes; images have 4: N,C,H,W")
    size = example.shape[2:] if options.image_size is None else sides(options.image_size)
    shape = (example.shape[0], options.in_channels or example.shape[1], *size)
    return noise(shape, options.seed)


def _fill(network: Network, weights: Path) -> None:
    from nnstretch.training.weights import load_weights

    load_weights(network.module, weights)
    network.module.eval()
