"""Shapes of a model's inputs: as people write them, and given to a model that leaves dimensions open."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import onnx_ir as ir

from nnstretch.errors import ModelError, UsageError
from nnstretch.support.image_size import ImageSize, sides

# A single shape that is given without the name of its input.
UNNAMED = ""


def parse_shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Shapes as the command line states them: "x=1,3,224,224", or "1,3,224,224" for the only input.

    Raises:
        UsageError: a text of another form, or an input named twice.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, _, numbers = text.rpartition("=")
        try:
            shape = tuple(int(number) for number in numbers.split(",")) if numbers else ()
        except ValueError:
            shape = (0,)
        if any(length < 1 for length in shape):
            raise UsageError(
                f"shape {text!r} is not understood; write --shape NAME=1,3,224,224 with whole numbers above 0"
            )
        if name in shapes:
            raise UsageError(f"two shapes are given for input {name!r}; give one" if name else "two shapes lack a name")
        shapes[name] = shape
    return shapes


def fix_shapes(model: ir.Model, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Give the inputs of `model` these shapes; if that changes any, forget the shapes of what is computed.

    Raises:
        ModelError: an input stays dynamic, or a shape contradicts the model or names no input.
    """
    inputs = {str(value.name): value for value in model.graph.inputs}
    if UNNAMED in shapes and UNNAMED not in inputs:
        dynamic = [name for name, value in inputs.items() if value.shape is None or not value.shape.is_static()]
        wanted = dynamic if len(dynamic) == 1 else list(inputs)
        if len(wanted) != 1:
            raise ModelError(
                f"a shape is given without a name, but the inputs are {_listing(inputs)}; write NAME=1,3,224,224"
            )
        shapes = {**{name: shape for name, shape in shapes.items() if name != UNNAMED}, wanted[0]: shapes[UNNAMED]}
    for name in shapes:
        if name not in inputs:
            raise ModelError(f"a shape is given for {name!r}, but the inputs are {_listing(inputs)}")
    changed = False
    for name, value in inputs.items():
        changed |= _fix_shape(name, value, shapes.get(name))
    if changed:
        _forget_computed_shapes(model)


def fix_batch(model: ir.Model, batch: int, shapes: Mapping[str, tuple[int, ...]], path: str | Path) -> None:
    """Make `batch` the first dimension of the inputs for which that is dynamic, but for those that have a shape in `shapes`.

    Raises:
        UsageError: there are no such inputs.
    """
    inputs = [
        value
        for value in model.graph.inputs
        if value.name not in shapes and UNNAMED not in shapes and (value.shape is None or len(value.shape))
    ]
    dynamic = [value for value in inputs if value.shape is not None and _is_dynamic(value.shape)]
    if not dynamic and any(value.shape is None or value.shape[0] != batch for value in inputs):
        found = ", ".join(f"{str(v.name)!r} {_written(v.shape or ())}" for v in model.graph.inputs)
        raise UsageError(
            f"{path} has no input with a dynamic batch ({found}); export it with one, or leave out the batch of {batch}"
        )
    for value in dynamic:
        assert value.shape is not None
        value.shape = ir.Shape([batch, *list(value.shape)[1:]])
        _forget_computed_shapes(model)


def fix_images(model: ir.Model, size: ImageSize) -> None:
    """Make the dynamic batch of an input 1, and the dynamic height and width of one with four axes `size`."""
    for value in model.graph.inputs:
        if value.shape is None or value.shape.is_static():
            continue
        usual = [1, None, *sides(size)] if len(value.shape) == 4 else [1]
        dims = [
            usual[i] if i < len(usual) and usual[i] is not None and not isinstance(n, int) else n
            for i, n in enumerate(value.shape)
        ]
        value.shape = ir.Shape(dims)
        _forget_computed_shapes(model)


def _forget_computed_shapes(model: ir.Model) -> None:
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        for output in node.outputs:
            output.shape = None


def _is_dynamic(shape: ir.Shape) -> bool:
    """Whether the first dimension is."""
    return len(shape) > 0 and not isinstance(shape[0], int)


def _listing(names: Mapping[str, object]) -> str:
    return ", ".join(repr(name) for name in names) or "none"


def _fix_shape(name: str, value: ir.Value, shape: tuple[int, ...] | None) -> bool:
    """Set or check one input's shape; whether it changed. Where the first dimension alone is dynamic, the batch is 1."""
    current = value.shape
    if shape is None and current is not None and all(isinstance(size, int) for size in list(current)[1:]):
        if current.is_static():
            return False
        shape = tuple(_example(current))
    if shape is None:
        found = "unknown shape" if current is None else f"dynamic shape {_written(current)}"
        example = (1, 3, 224, 224) if current is None else tuple(_example(current))
        advice = f"--shape {name}={','.join(map(str, example))} (in Python shapes={{{name!r}: {example}}})"
        if current is not None and len(current) == 4 and not any(isinstance(side, int) for side in list(current)[2:]):
            advice = f"--image-size {example[2]}, or {advice}"
        raise ModelError(f"input {name!r} has {found}; give {advice}")
    fits = current is None or (
        len(current) == len(shape)
        and all(not isinstance(old, int) or old == new for old, new in zip(current, shape, strict=True))
    )
    if not fits:
        assert current is not None
        raise ModelError(
            f"input {name!r} has the shape {_written(current)}, "
            f"which {','.join(map(str, shape))} contradicts; change only its dynamic dimensions"
        )
    changed = current is None or not current.is_static()
    value.shape = ir.Shape(shape)
    return changed


def _written(shape: Iterable[int | ir.SymbolicDim]) -> str:
    return f"[{','.join(str(n) if isinstance(n, int) else str(n.value or '?') for n in shape)}]"


def _example(shape: ir.Shape) -> list[int]:
    """A likely static shape: one image of 224 x 224 with three channels."""
    usual = (1, 3, 224, 224) if len(shape) == 4 else (1,) * len(shape)
    return [old if isinstance(old, int) else new for old, new in zip(shape, usual, strict=True)]
