"""int8 layers by LiteRT and ONNX Runtime: results equal those of quantised networks up to one step."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from nnstretch.compiler.compile import compile_model
from nnstretch.compiler.processors import build_processors
from nnstretch.devices import registry
from nnstretch.devices.base.routine import PLAIN
from nnstretch.devices.base.spec import ProcessorSpec, parse_processors, usable_cores
from nnstretch.devices.external.litert.delegate import Delegate
from nnstretch.devices.external.litert.engine import LiteRtRoutine
from nnstretch.devices.external.litert.flatbuffer import load_schema
from nnstretch.devices.external.litert.writer import write_tflite
from nnstretch.devices.external.processor import ExternalProcessor
from nnstretch.devices.registry import open_external_model
from nnstretch.errors import ModelError
from nnstretch.frontends.onnx_file import load, save
from nnstretch.frontends.resolve import load_model
from nnstretch.graph.activation import ActivationKind
from nnstretch.graph.dtypes import QuantizationParameters
from nnstretch.graph.layer import Attribute, Layer, TensorType
from nnstretch.graph.layers import layers
from nnstretch.graph.reference import answer_error, relative_error, run_layer, run_proto
from nnstretch.passes import optimize
from nnstretch.scheduler.lowering.views import joinable
from nnstretch.scheduler.measurement.runner.single_layer import random_inputs
from nnstretch.scheduler.runtime.session import PlanSession
from tests.kits.graphs.quantized_networks import QuantizedNetwork

pytest.importorskip("ai_edge_litert.interpreter")

CORE = usable_cores()[0]
TWICE = ("AveragePool", "Resize", "Softmax")
"""Operators with fixed int8 parameters in TFLite: results are rounded to these and then to the layer's."""


def opened(spec: ProcessorSpec) -> ExternalProcessor:
    processor = registry.external_engine(spec.kind).processor(spec)
    assert isinstance(processor, ExternalProcessor)
    return processor


@pytest.fixture(scope="module", params=["litert", "litert:builtin", "ort"])
def external_engine(request: pytest.FixtureRequest) -> ExternalProcessor:
    (spec,) = parse_processors(f"{request.param}@{CORE}")
    return opened(spec)


def steps_allowed(layer: Layer) -> int:
    return 2 if layer.op in TWICE or layer.activation.kind in (ActivationKind.TANH, ActivationKind.SIGMOID) else 1


@settings(max_examples=8)
@given(seed=st.integers(0, 10**6))
def test_layers_of_random_networks(external_engine: ExternalProcessor, seed: int) -> None:
    """Sums are exact, so results differ only where a value lies between two steps."""
    for node in layers(optimize(QuantizedNetwork(seed).graph())):
        layer = node.layer
        (routine,) = [r for r in external_engine.routines if r.supports(layer)]
        assert routine.descriptor.dtype == "int8"
        inputs = random_inputs(layer, seed)
        (wanted,) = run_layer(layer, *inputs)
        found = np.empty_like(wanted)
        (call,) = routine.lower(layer, routine.parameter_space(layer)[0]).calls
        assert call.model is not None
        reads = [layer.type_of(i) for i in layer.activations]
        open_external_model(str(routine.descriptor), call.model, (CORE,), reads, layer.outputs).run(inputs, [found])
        if layer.outputs[0].quantization is None:
            assert relative_error(found, wanted) < 1e-6, layer.name
        else:
            assert np.abs(np.subtract(found, wanted, dtype=np.int32)).max() <= steps_allowed(layer), layer.name
            assert answer_error(layer, 0, found, wanted) == 0.0


class _Images(CalibrationDataReader):  # type: ignore[misc]
    """Random images."""

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        rng = np.random.default_rng(0)
        self._feeds: Iterator[dict[str, np.ndarray]] = iter(
            [{name: rng.standard_normal(shape).astype(np.float32)} for _ in range(2)]
        )

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)


@pytest.fixture(scope="module")
def squeezenet(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A network of the zoo, and the same quantised by onnxruntime.quantization."""
    folder = tmp_path_factory.mktemp("quantized")
    files = folder / "float.onnx", folder / "int8.onnx"
    save(load_model("squeezenet1_1", {"": (1, 3, 64, 64)}), files[0])
    model = onnx.load(files[0])
    model.opset_import[0].version = max(model.opset_import[0].version, 13)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantize_static(
            files[0],
            files[1],
            _Images(model.graph.input[0].name, (1, 3, 64, 64)),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
    return files


@pytest.mark.parametrize("kind", ["litert", "ort"])
def test_a_quantised_network(squeezenet: tuple[Path, Path], kind: str, tmp_path: Path) -> None:
    """One call in int8. The tolerance covers accumulated rounding differences of 40 layers."""
    floating, quantized = squeezenet
    model = load(quantized)
    (name,) = (str(value.name) for value in model.graph.inputs)
    x = np.random.default_rng(7).standard_normal((1, 3, 64, 64)).astype(np.float32)
    (wanted,), (unrounded,) = (run_proto(onnx.load(path), {name: x}) for path in (quantized, floating))
    with compile_model(model, build_processors(f"{kind}@{CORE}"), tune=False) as session:
        (step,) = session.plan.steps
        assert step.routine == {"litert": "litert:int8/xnnpack", "ort": "ort:int8/cpu"}[kind]
        assert session.plan.fallback_layers == ()
        (y,) = session.run(None, {name: x})
        session.save(tmp_path / "quantized.nns")
    assert relative_error(y, wanted) < 2 * np.sqrt(40) / 255
    assert np.sqrt(np.mean((y - wanted) ** 2)) < 0.1 * wanted.std()
    assert relative_error(y, unrounded) < 0.15
    with PlanSession.load(tmp_path / "quantized.nns") as again:
        assert np.array_equal(again.run(None, {name: x})[0], y)


def test_a_measured_plan(squeezenet: tuple[Path, Path]) -> None:
    """int8 results of single layers and of a whole call pass the check against the reference."""
    with compile_model(load(squeezenet[1]), build_processors(f"litert@{CORE}")) as session:
        assert [step.routine for step in session.plan.steps] == ["litert:int8/xnnpack"]


def test_contents_of_a_file(squeezenet: tuple[Path, Path]) -> None:
    """Weights with a scale per channel, biases in their product with the input's, a concat of equal parameters."""
    schema = load_schema()
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(write_tflite(load(squeezenet[1])), 0))
    graph = model.subgraphs[0]
    names = {value: name for name, value in vars(schema.BuiltinOperator).items() if isinstance(value, int)}
    seen = set()
    for operator in graph.operators:
        tensors = [graph.tensors[i] for i in operator.inputs]
        code = model.operatorCodes[operator.opcodeIndex]
        kind = names[code.builtinCode]
        seen.add(kind)
        (result,) = [graph.tensors[i] for i in operator.outputs]
        if kind == "CONV_2D":
            source, weight, bias = tensors
            assert [t.type for t in tensors] == [
                schema.TensorType.INT8,
                schema.TensorType.INT8,
                schema.TensorType.INT32,
            ]
            assert weight.quantization.quantizedDimension == 0
            assert len(weight.quantization.scale) == weight.shape[0]
            assert not weight.quantization.zeroPoint.any()
            assert np.allclose(bias.quantization.scale, source.quantization.scale * weight.quantization.scale)
            assert code.version >= 3
        if kind in ("CONCATENATION", "MAX_POOL_2D"):
            assert all(t.quantization.scale == result.quantization.scale for t in tensors)
    assert {"CONV_2D", "CONCATENATION", "QUANTIZE", "MEAN", "DEQUANTIZE"} <= seen


def test_a_concat_of_other_quantization_is_no_view() -> None:
    found = [
        n.layer for seed in range(9) for n in layers(optimize(QuantizedNetwork(seed).graph())) if n.layer.op == "Concat"
    ]
    assert any(len({t.quantization for t in (*layer.inputs, *layer.outputs) if t}) > 1 for layer in found)
    for layer in found:
        same = len({t.quantization for t in (*layer.inputs, *layer.outputs) if t}) == 1
        assert (joinable(layer, PLAIN) is not None) == same


def test_integers_that_stand_for_nothing(squeezenet: tuple[Path, Path]) -> None:
    model = load(squeezenet[1])
    model.graph.inputs[0].type = ir.TensorType(ir.DataType.INT8)
    with pytest.raises(ModelError, match="float32 and quantised int8"):
        write_tflite(model)


def image(scale: float, zero_point: int = 0) -> TensorType:
    return TensorType((1, 4, 6, 6), "int8", QuantizationParameters(float(np.float32(scale)), zero_point))


def convolution(weight: np.ndarray) -> Layer:
    types = image(0.02, 3), TensorType(weight.shape, "int8"), None, None, TensorType((4,))
    window: dict[str, Attribute] = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "groups": 1}
    constants = {1: weight, 4: np.full(4, 0.002, np.float32)}
    return Layer("least", "Conv", types, (image(0.05),), window, constants=constants)


ROUNDABOUT = {
    "the least weight that int8 has": convolution(np.full((4, 4, 1, 1), -128, np.int8)),
    "shares of more than 256": Layer("fine", "Softmax", (image(0.02),), (image(0.0004, -128),), {"axis": 1}),
    "a mean that is finer than what it reads": Layer(
        "mean",
        "AveragePool",
        (image(0.2),),
        (image(0.02),),
        {"kernel": (3, 3), "strides": (1, 1), "pads": (1, 1, 1, 1), "count_include_pad": 1},
    ),
}


@pytest.mark.parametrize("name", ROUNDABOUT)
def test_what_tflite_does_not_say_in_int8(name: str) -> None:
    """Such a layer is computed in float32, from int8 to int8, with the same accuracy."""
    layer = ROUNDABOUT[name]
    x = np.random.default_rng(1).integers(-128, 128, (1, 4, 6, 6), np.int8)
    content = LiteRtRoutine(Delegate(), "int8").model(layer)
    found = np.empty_like(x)
    open_external_model("litert:int8/xnnpack", content, (CORE,), [layer.type_of(0)], layer.outputs).run([x], [found])
    assert np.abs(np.subtract(found, run_layer(layer, x)[0], dtype=np.int32)).max() <= 1
    model = load_schema().ModelT.InitFromObj(load_schema().Model.GetRootAs(content, 0))
    codes = {code.builtinCode for code in model.operatorCodes}
    assert load_schema().BuiltinOperator.DEQUANTIZE in codes


def test_engines_report_int8(squeezenet: tuple[Path, Path], tmp_path: Path) -> None:
    """Engines of the benchmark report their data type, and the table shows it."""
    from nnstretch.bench.engines import Job, litert_engine, nnstretch_engine, onnxruntime_engine
    from nnstretch.report.tables.bench import failures

    feeds = {"x": np.zeros((1, 3, 64, 64), np.float32)}
    for path, dtype in zip(squeezenet, ("float32", "int8"), strict=True):
        job = Job(str(path), str(path), (CORE,), {"compile": {"tune": False}})
        engines = {"onnxruntime": onnxruntime_engine.load(job, feeds, lambda *_: None)}
        for name, module in (("litert", litert_engine), ("nnstretch", nnstretch_engine)):
            made = str(module.prepare(job, tmp_path, lambda *_: None))
            engines[name] = module.load(Job(job.model, job.onnx, job.cores, job.options, made), feeds, lambda *_: None)
        facts = {name: engine.facts() for name, engine in engines.items()}
        assert {about["dtype"] for about in facts.values()} == {dtype}
        result = {"model": "squeezenet.onnx", "threads": 1, "engines": facts, "fallback_layers": []}
        assert failures([result]) == [
            "squeezenet.onnx, 1 thread: computed in int8 by onnxruntime, litert, nnstretch"
            for _ in "i"
            if dtype == "int8"
        ]
