"""A TFLite file as an ONNX graph, checked against LiteRT."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from nnstretch.errors import MissingExtraError, ModelError, first_line
from nnstretch.frontends.input_shapes import fix_batch, fix_shapes
from nnstretch.frontends.onnx_file import infer_shapes
from nnstretch.frontends.tflite_file import elementwise, layers, movement
from nnstretch.frontends.tflite_file.flat import FlatFile, FlatOperator, read_flat
from nnstretch.frontends.tflite_file.importer import TO_FIRST, TO_LAST, Importer, UnsupportedError
from nnstretch.frontends.tflite_file.layers import Lowering
from nnstretch.support.library_output import dropped_stderr
from nnstretch.support.onnxruntime_errors import refusals

_LOWERINGS: Mapping[str, Lowering] = {**layers.LOWERINGS, **elementwise.LOWERINGS, **movement.LOWERINGS}
_TOLERANCE, _ROUNDED_TOLERANCE = 1e-3, 0.1
"""Of the largest output: of float32, and where tensors are rounded to integers, in other orders by the two runtimes."""


def load_tflite(
    path: str | Path, shapes: Mapping[str, tuple[int, ...]] | None = None, batch: int | None = None
) -> ir.Model:
    """The network in a TFLite file as an ONNX graph, not fused.

    Inputs and outputs with four axes are N,C,H,W in the graph; in the file they are N,H,W,C. They keep the names of the
    file's signature, or of its tensors. Weights of float16 become float32. int8 and uint8 tensors become float32 between
    QuantizeLinear and DequantizeLinear; where only the weights are integers, the graph computes with the numbers they stand
    for. The graph is run once, and its answers are compared with those of LiteRT.

    Args:
        path: the file.
        shapes: input name -> N,C,H,W or another shape; only that of the file is possible.
        batch: images per run; only that of the file is possible.

    Raises:
        UsageError: another batch than the file's.
        FileError: the file cannot be read.
        ModelError: it is no TFLite file, is damaged, has operators that no ONNX graph is made of here, or other shapes are
            asked for.
        MissingExtraError: LiteRT is not installed.
    """
    path = Path(path)
    flat = read_flat(path)
    model = _to_ir(flat, path)
    common.RemoveUnusedNodesPass()(model)
    infer_shapes(model, path)
    if batch is not None:
        fix_batch(model, batch, shapes or {}, path)
    fix_shapes(model, shapes or {})
    _check(model, flat, path)
    return model


def _to_ir(flat: FlatFile, path: Path) -> ir.Model:
    build = Importer(flat)
    try:
        inputs = build.add_inputs()
    except UnsupportedError as error:
        raise ModelError(f"{path}: input {error}; convert it to float32 or int8") from error
    for operator in flat.operators:
        _lower(build, operator, path)
    try:
        return build.finish(inputs)
    except UnsupportedError as error:
        raise ModelError(f"{path}: output {error}; convert it to float32 or int8") from error


def _lower(build: Importer, operator: FlatOperator, path: Path) -> None:
    name = build.flat.tensors[operator.outputs[0]].name if operator.outputs else "nothing"
    if operator.is_custom or operator.name not in _LOWERINGS:
        kind = f"custom operator {operator.name}" if operator.is_custom else operator.name
        flex = operator.is_custom and operator.name.startswith("Flex")
        advice = "convert it with TFLITE_BUILTINS alone, without SELECT_TF_OPS" if flex else "convert it without that"
        raise ModelError(f"{path}: {name!r} is computed by {kind}, which has no counterpart in ONNX here; {advice}")
    build.begin(operator)
    try:
        _LOWERINGS[operator.name](build, operator)
    except UnsupportedError as error:
        raise ModelError(f"{path}: {operator.name} {name!r}: {error}; convert the model without that") from error
    except (AttributeError, LookupError, ValueError, TypeError, ArithmeticError) as error:
        raise ModelError(
            f"{path}: {operator.name} {name!r} has other inputs or options than TFLite's ({first_line(error)}); convert or "
            "copy it again"
        ) from error


def _check(model: ir.Model, flat: FlatFile, path: Path) -> None:
    """Compares the graph with LiteRT on noise.

    Raises:
        ModelError: they answer differently, or one of them refuses the network.
    """
    rng = np.random.default_rng(0)
    feeds = {name: _noise(rng, flat, number) for name, number in flat.inputs.items()}
    wanted, found = _by_litert(path, flat, feeds), _by_onnxruntime(model, feeds, path)
    is_rounded = any(tensor.quantization is not None for tensor in flat.tensors)
    for (name, number), expected in zip(flat.outputs.items(), wanted, strict=True):
        real = found[name].transpose(TO_LAST) if found[name].ndim == 4 else found[name]
        if real.shape != expected.shape:
            raise ModelError(
                f"{path}: output {name!r} has the shape {list(real.shape)}, LiteRT's {list(expected.shape)}{_ADVICE}"
            )
        left, right = real.astype(np.float64), expected.astype(np.float64)
        if expected.dtype.kind in "iub" and flat.tensors[number].quantization is None:
            if left.size and float(np.mean(left == right)) < (0.9 if is_rounded else 0.99):
                raise ModelError(f"{path}: output {name!r} differs from LiteRT's{_ADVICE}")
            continue
        spread = float(np.ptp(right[np.isfinite(right)])) if np.isfinite(right).any() else 0.0
        scale = max(spread, float(np.abs(right[np.isfinite(right)]).max(initial=0.0)), 1e-12)
        if (np.isnan(left) != np.isnan(right)).any():
            raise ModelError(
                f"{path}: output {name!r} has NaN where LiteRT's has numbers, or the other way round{_ADVICE}"
            )
        error = float(np.nanmax(np.abs(left - right), initial=0.0)) / scale
        if error > (_ROUNDED_TOLERANCE if is_rounded else _TOLERANCE):
            raise ModelError(f"{path}: output {name!r} differs from LiteRT's by {error:.2g} of its range{_ADVICE}")


_ADVICE = "; export the network to ONNX instead"


def _noise(rng: np.random.Generator, flat: FlatFile, number: int) -> np.ndarray:
    """An input in the file's layout."""
    tensor = flat.tensors[number]
    if tensor.dtype == "float32":
        return rng.standard_normal(tensor.shape).astype(np.float32)
    if tensor.quantization is not None:
        limits = np.iinfo(tensor.dtype)
        return rng.integers(limits.min, limits.max + 1, tensor.shape).astype(tensor.dtype)
    return rng.integers(0, 2, tensor.shape).astype(tensor.dtype)


def _by_litert(path: Path, flat: FlatFile, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError as error:
        raise MissingExtraError("TFLite files need LiteRT; install it with pip install 'nnstretch[litert]'") from error
    try:
        with dropped_stderr():  # LiteRT logs that it has delegates
            interpreter: Any = Interpreter(model_content=path.read_bytes())
            interpreter.allocate_tensors()
        for name, number in flat.inputs.items():
            interpreter.set_tensor(number, feeds[name])
        interpreter.invoke()
        return [interpreter.get_tensor(number) for number in flat.outputs.values()]
    except (RuntimeError, ValueError) as error:
        raise ModelError(f"LiteRT cannot run {path}: {first_line(error)}; convert or copy it again") from error


def _by_onnxruntime(model: ir.Model, feeds: Mapping[str, np.ndarray], path: Path) -> dict[str, np.ndarray]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        proto = ir.to_proto(model).SerializeToString()
        session = onnxruntime.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
        given = {name: x.transpose(TO_FIRST) if x.ndim == 4 else x for name, x in feeds.items()}
        names = [str(value.name) for value in model.graph.outputs]
        return dict(zip(names, session.run(names, given), strict=True))
    except refusals() as error:
        raise ModelError(f"ONNX Runtime cannot run {path} as an ONNX graph: {first_line(error)}{_ADVICE}") from error
