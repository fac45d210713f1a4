"""MODEL as users write it: an ONNX file, a name of the zoo, or `module.py:factory`."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from nnstretch.errors import FileError, ModelError, UsageError
from nnstretch.frontends.onnx_file import load

if TYPE_CHECKING:
    from torch import Tensor, nn


def load_model(
    spec: str,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    num_classes: int | None = None,
    batch: int | None = None,
) -> ir.Model:
    """The graph, not fused, of what `spec` names.

    Args:
        spec: path of an ONNX file, name of a zoo network, or `file.py:factory`.
        shapes: input name (or "" for the only input) -> shape. A torch module is exported for that shape.
        num_classes: of a zoo network, by default that of the published one.
        batch: images per run: the first dimension of a module's input, and of an ONNX file's inputs where that is dynamic.

    Raises:
        UsageError: a batch below 1, or one that no input can have.
        ModelError, FileError: nothing is found or it cannot be read; near names are listed.
    """
    if batch is not None and batch < 1:
        raise UsageError(f"a batch of {batch} images holds nothing; give 1 or more")
    if _is_onnx_path(spec):
        return load(spec, shapes, batch)
    module, example = load_module(spec, num_classes)
    from nnstretch.frontends.torch_module import export

    return export(module, batched(_reshaped(example, shapes or {}, spec), batch, spec))


def load_module(spec: str, num_classes: int | None = None) -> tuple[nn.Module, Tensor]:
    """The torch module that `spec` (a zoo name or `file.py:factory`) names, and an input for it.

    A factory takes no arguments and returns a module, or a module and its example input, which is else one
    3-channel image of 224 x 224.

    Raises:
        ModelError, FileError: it is an ONNX file, nothing is found, or the factory fails.
    """
    if _is_onnx_path(spec):
        raise ModelError(f"{spec} is an ONNX file, a torch module was wanted; give a zoo name or FILE.py:FACTORY")
    file, colon, factory = spec.rpartition(":")
    if colon and file.endswith(".py"):
        return _from_factory(Path(file), factory)
    from nnstretch import zoo

    if spec.endswith(".py"):
        raise ModelError(f"{spec} does not say which function makes the module; write {spec}:FACTORY")
    module = zoo.build(spec, num_classes=num_classes)
    return module, zoo.example_input(spec)


def _is_onnx_path(spec: str) -> bool:
    """Whether `spec` is meant as an ONNX file: by its ending, or as a path that is not of Python."""
    path = Path(spec)
    if path.suffix.lower() == ".onnx":
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
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(example.dtype)


def batched(example: Any, batch: int | None, spec: str) -> Any:
    """The example input of a module with as many images as are wanted; as it is for None.

    Raises:
        UsageError: the module takes no single tensor.
    """
    if batch is None:
        return example
    import torch

    if not isinstance(example, torch.Tensor) or example.ndim < 1:
        raise UsageError(
            f"{spec} takes several inputs, or none with a batch; return an example input of {batch} images"
        )
    shape = (batch, *example.shape[1:])
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(example.dtype)


def _from_factory(file: Path, name: str) -> tuple[nn.Module, Tensor]:
    import torch
    from torch import nn

    factory = getattr(_import_file(file), name, None)
    if not callable(factory):
        raise ModelError(
            f"{file} has no function {name!r}; write FILE.py:FACTORY with a function that returns a module"
        )
    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        raise ModelError(
            f"{file}:{name} cannot be called without arguments ({error}); wrap it in a function"
        ) from error
    made = factory()
    module, example = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(module, nn.Module):
        raise ModelError(f"{file}:{name} returned {type(module).__name__}; it must return a torch module")
    if example is None:
        example = torch.randn((1, 3, 224, 224), generator=torch.Generator().manual_seed(0))
    return module, example


def _import_file(file: Path) -> Any:
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
    except (ImportError, SyntaxError, NameError) as error:
        raise ModelError(f"{file} cannot be imported: {error}; run it with Python to see why") from error
    finally:
        sys.path.remove(str(file.resolve().parent))
    return module
