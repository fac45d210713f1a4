"""Models as users write them: a file, a name of the zoo, `module.py:factory`, a torch module or a graph."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MethodType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import onnx
import onnx_ir as ir
from google.protobuf.message import EncodeError  # type: ignore[import-untyped]

from nnstretch.errors import FileError, ModelError, NNStretchError, UsageError, first_line, place_in
from nnstretch.frontends.half_precision import compute_in_float32
from nnstretch.frontends.noise import noise
from nnstretch.frontends.onnx_file import load
from nnstretch.frontends.onnx_message import read_message
from nnstretch.support.image_size import ImageSize, size_of
from nnstretch.support.settings import atomic_write

if TYPE_CHECKING:
    from torch import Tensor, nn

    from nnstretch.frontends.torch_from_onnx.convert import ConvertedNetwork

    Model: TypeAlias = str | Path | bytes | onnx.ModelProto | ir.Model | nn.Module

_USUAL_SIZE = 224
"""Side in pixels of images where nothing says another one."""

SIZE_IS_ASSUMED = "nnstretch.size_is_assumed"
"""Key of `meta` of a graph that was made for images of the usual size because nobody said another one."""


def load_any(
    model: Any, example_input: Any = None, shapes: dict[str, tuple[int, ...]] | None = None, batch: int | None = None
) -> ir.Model:
    """The unoptimised graph of a model; nodes of a branched network, as a module or in a file, name their processors.

    Args:
        model: a path, a zoo name, `module.py:factory`, a torch module, an onnx_ir model, an `onnx.ModelProto` or the bytes
            of an ONNX file. A module of quantisation-aware training knows its graph.
        example_input: a tensor of the shape to compile for, or a tuple of them (torch modules).
        shapes: input name -> shape, for models with dynamic shapes.
        batch: images per run, for models by name, files and their contents.

    Raises:
        UsageError: a torch module has no example input, or a batch is given for a model with fixed shapes.
        NNStretchError: the model cannot be read or exported.
    """
    if isinstance(model, str | Path):
        return load_model(str(model), shapes, batch)
    if isinstance(model, bytes | onnx.ModelProto):
        return _load_content(model, shapes, batch)
    if batch is not None:
        raise UsageError("batch is for models by name and files; give a module an example_input of that many images")
    if isinstance(model, ir.Model):
        return model
    _check_is_module(model)
    if isinstance(graph := getattr(model, "int8_graph", None), MethodType):
        made: ir.Model = graph()
        return made
    if example_input is None:
        raise UsageError("a torch module needs example_input, a tensor of the shape to compile for")
    _check_is_input(example_input)
    return _exported(model, example_input)


def _load_content(
    model: bytes | onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]] | None, batch: int | None
) -> ir.Model:
    """The graph of an ONNX model in memory, read as from a file of its own.

    Raises:
        ModelError: it is larger than a file can be, or its weights are in other files.
    """
    try:
        content = model if isinstance(model, bytes) else model.SerializeToString()
    except (EncodeError, ValueError) as error:
        raise ModelError("the model is larger than 2 GiB; save it with external data, and give the path") from error
    with TemporaryDirectory(prefix="nnstretch-") as folder:
        file = Path(folder) / "model.onnx"
        with atomic_write(file) as opened:
            opened.write(content)
        try:
            return load(file, shapes, batch, called="the model")
        except FileError as error:
            raise ModelError("the model keeps weights in other files; give the path of its file") from error
        except ModelError as error:  # nobody knows the file that it names
            raise ModelError(str(error).replace(str(file), "the model")) from error


def _exported(module: nn.Module, example_input: Tensor | tuple[Tensor, ...]) -> ir.Model:
    """The graph of a module, in float32."""
    from nnstretch.branching.transform.network import export_module

    return compute_in_float32(export_module(module, example_input))


def _check_is_module(model: Any) -> None:
    torch = sys.modules.get("torch")  # whoever has a module has loaded it
    if torch is None or not isinstance(model, torch.nn.Module):
        raise UsageError(
            f"the model is of type {type(model).__name__}; give a path, the name of a zoo network, FILE.py:FACTORY, "
            "a torch module, an onnx_ir model, an onnx.ModelProto or the bytes of an ONNX file"
        )


def _check_is_input(example: Any) -> None:
    torch = sys.modules["torch"]
    parts = example if isinstance(example, tuple) else (example,)
    if not parts or not all(isinstance(part, torch.Tensor) for part in parts):
        kinds = ", ".join(type(part).__name__ for part in parts)
        raise UsageError(f"example_input is of type {kinds or 'tuple'}; give a torch Tensor, or a tuple of them")


def load_model(
    spec: str,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    batch: int | None = None,
    image_size: ImageSize | None = None,
) -> ir.Model:
    """The graph, not fused, of what `spec` names.

    Args:
        spec: path of an ONNX or TFLite file, name of a zoo network, or `file.py:factory`.
        shapes: input name (or "" for the only input) -> shape. A torch module is exported for that shape.
        batch: images per run: the first dimension of a module's input, and of an ONNX file's inputs where that is dynamic.
        image_size: of a file's images, where height and width are dynamic.

    Raises:
        UsageError: a batch below 1, or one that no input can have.
        ModelError, FileError: nothing is found or it cannot be read; near names are listed.
    """
    if batch is not None and batch < 1:
        raise UsageError(f"a batch of {batch} images holds nothing; give 1 or more")
    if is_model_file(spec):
        return load_file(spec, shapes, batch, image_size)
    made = make_module(spec)
    graph = _exported(made.module, batched(_reshaped(made.example, shapes or {}, spec), batch, spec))
    graph.meta[SIZE_IS_ASSUMED] = made.size_is_assumed and not shapes
    return graph


def load_file(
    path: str,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    batch: int | None = None,
    image_size: ImageSize | None = None,
) -> ir.Model:
    """The graph in an ONNX or TFLite file, not fused, with static shapes.

    Args:
        path: of the file; one that ends in `.tflite` is a TFLite file.
        shapes: input name (or "" for the only input) -> shape, for inputs with dynamic dimensions.
        batch: images per run, for inputs whose batch is dynamic.
        image_size: of one image, for inputs whose height and width are dynamic.

    Raises:
        UsageError, ModelError, FileError: as `onnx_file.load` and `tflite_file.load_tflite` say.
    """
    if Path(path).suffix.lower() == ".tflite":
        from nnstretch.frontends.tflite_file import load_tflite

        return load_tflite(path, shapes, batch)
    return load(path, shapes, batch, image_size)


def load_network(spec: str, image_size: ImageSize | None = None) -> ConvertedNetwork:
    """The network in an ONNX or TFLite file as a torch module with the file's weights, and what the file calls its ends.

    Args:
        spec: the file.
        image_size: of the images where the file leaves it open; None: 224×224 pixels. A dynamic batch becomes 1.

    Raises:
        ModelError, FileError: the file cannot be read, or has operators that torch does not have.
    """
    from nnstretch.frontends.torch_from_onnx.convert import to_torch

    return to_torch(load_file(spec, image_size=image_size or _USUAL_SIZE), spec)


class MadeModule(NamedTuple):
    """A torch module with an input for it.

    Attributes:
        module: as its author left it.
        example: the input.
        size_is_assumed: whether the author said nothing of the input's size.
    """

    module: nn.Module
    example: Tensor
    size_is_assumed: bool = False


def load_module(spec: str) -> tuple[nn.Module, Tensor]:
    """The torch module that `spec` names, and an input for it; as `make_module`, without what was assumed."""
    made = make_module(spec)
    return made.module, made.example


def make_module(spec: str) -> MadeModule:
    """The torch module that `spec` names, and an input for it.

    Args:
        spec: a zoo name, `file.py:factory`, or an ONNX or TFLite file, which becomes a module with its weights. A factory
            takes no arguments and returns a module, or a module and its example input, which is else one image of
            224 x 224 with the channels that the module's convolutions say.

    Raises:
        UsageError: a file's network has several inputs.
        ModelError, FileError: nothing is found, the factory fails, or a file's network cannot become a module.
    """
    if is_model_file(spec):
        network = load_network(spec)
        return MadeModule(network.module, network.image)
    file, colon, factory = spec.rpartition(":")
    if colon and file.endswith(".py"):
        return _from_factory(Path(file), factory)
    from nnstretch import zoo

    if spec.endswith(".py"):
        raise ModelError(f"{spec} does not say which function makes the module; write {spec}:FACTORY")
    return MadeModule(zoo.build(spec), zoo.example_input(spec))


def stated_input_shape(spec: str) -> tuple[int, ...]:
    """Shape of a file's first input, 0 for dimensions that it leaves open, or of the example input that a factory returns.

    Returns:
        Empty for a zoo name, a file without inputs and a factory without an example input.

    Raises:
        ModelError, FileError: the file cannot be read; the factory is not found or fails.
    """
    if is_model_file(spec):
        return file_input_shape(spec)
    file, colon, factory = spec.rpartition(":")
    if not colon or not file.endswith(".py"):
        return ()
    _, example = _call_factory(Path(file), factory)
    return tuple(getattr(example, "shape", ()))


def stated_image_size(shape: tuple[int, ...]) -> ImageSize | None:
    """The size of the images of a stated input shape; None if it has none, or leaves a side open."""
    return size_of(int(shape[2]), int(shape[3])) if len(shape) == 4 and all(shape[2:]) else None


def file_input_shape(path: str) -> tuple[int, ...]:
    """Shape of a file's first input, 0 for dimensions that it leaves open; empty if it has none.

    Raises:
        ModelError, FileError: the file cannot be read.
    """
    if Path(path).suffix.lower() == ".tflite":
        inputs = load_file(path).graph.inputs
        return tuple(inputs[0].shape.numpy()) if inputs and inputs[0].shape is not None else ()
    graph = read_message(Path(path)).proto.graph
    weights = {tensor.name for tensor in graph.initializer}
    first = next((value for value in graph.input if value.name not in weights), None)
    return () if first is None else tuple(n.dim_value for n in first.type.tensor_type.shape.dim)


def is_model_file(spec: str) -> bool:
    """Whether `spec` is meant as an ONNX or TFLite file: by its ending, or as a path that is not of Python."""
    path = Path(spec)
    if path.suffix.lower() in (".onnx", ".tflite"):
        return True
    return path.suffix != ".py" and ".py:" not in spec and (path.is_file() or len(path.parts) > 1)


def _reshaped(example: Any, shapes: Mapping[str, tuple[int, ...]], spec: str) -> Any:
    """The example input in the shape that was asked for."""
    if not shapes:
        return example
    import torch

    if len(shapes) > 1 or not isinstance(example, torch.Tensor):
        raise ModelError(f"{spec} is a torch module; shapes can be given for one with a single input only")
    ((_, shape),) = shapes.items()
    if len(shape) != example.ndim:
        raise ModelError(f"{spec} takes an input of {example.ndim} axes like {tuple(example.shape)}, not {shape}")
    return noise(shape, dtype=example.dtype)


def batched(example: Any, batch: int | None, spec: str) -> Any:
    """The example input of a module with as many images as are wanted; as it is for None.

    Raises:
        UsageError: the module takes no single tensor, or there is no memory for these images.
    """
    if batch is None:
        return example
    import torch

    if not isinstance(example, torch.Tensor) or example.ndim < 1:
        raise UsageError(
            f"{spec} takes several inputs, or none with a batch; return an example input of {batch} images"
        )
    return noise((batch, *example.shape[1:]), dtype=example.dtype)


def _from_factory(file: Path, name: str) -> MadeModule:
    module, example = _call_factory(file, name)
    if example is None:
        return MadeModule(module, noise((1, _image_channels(module), _USUAL_SIZE, _USUAL_SIZE)), size_is_assumed=True)
    return MadeModule(module, example)


def _call_factory(file: Path, name: str) -> tuple[nn.Module, Any]:
    """The module of a factory, and its example input or None."""
    from torch import nn

    factory = getattr(import_file(file), name, None)
    if not callable(factory):
        raise ModelError(
            f"{file} has no function {name!r}; write FILE.py:FACTORY with a function that returns a module"
        )
    if isinstance(factory, nn.Module):
        raise ModelError(f"{file}:{name} is a module; write FILE.py:FACTORY with a function that returns it")
    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        raise ModelError(
            f"{file}:{name} cannot be called without arguments ({error}); wrap it in a function"
        ) from error
    try:
        made = factory()
    except NNStretchError:
        raise
    except (Exception, SystemExit) as error:
        raise ModelError(f"{file}:{name} fails{place_in(file, error)} with {_said(error)}; mend it there") from error
    module, example = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(module, nn.Module):
        raise ModelError(f"{file}:{name} returned {type(module).__name__}; it must return a torch module")
    return module, example


def _image_channels(module: nn.Module) -> int:
    """Channels of the images that a module is for: 3, unless none of its convolutions reads 3, but one reads 1, 2 or 4."""
    from torch import nn

    read = [layer.in_channels for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    return 3 if 3 in read else next((channels for channels in read if channels in (1, 2, 4)), 3)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {first_line(error)}"


def import_file(file: Path) -> Any:
    """The Python file as a module, with its folder importable while it loads."""
    if not file.is_file():
        raise FileError(f"cannot read {file}: no such file; write FILE.py:FACTORY")
    specification = importlib.util.spec_from_file_location(f"_nnstretch_user_{file.stem}", file)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    # Dataclasses and the exporter look modules up by name.
    sys.modules[specification.name] = module
    sys.path.insert(0, str(file.resolve().parent))
    try:
        specification.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ModelError(f"{file} cannot be imported: {_said(error)}; run it with Python to see why") from error
    finally:
        sys.path.remove(str(file.resolve().parent))
    return module
