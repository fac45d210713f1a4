"""External engines as routines: their results against torch, their threads, and invalid models."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as fn

from nnstretch.devices.base.routine import Routine
from nnstretch.devices.external.engine import (
    ExternalModel,
    ExternalRoutine,
    release_number,
)
from nnstretch.devices.registry import ENGINES, open_external_model, routines_of_engines
from nnstretch.errors import DeviceError, MissingExtraError, ModelError, PackageError, UsageError
from nnstretch.graph.activation import NO_ACTIVATION, Activation, ActivationKind
from nnstretch.graph.layer import Layer, TensorType, fused_layer, fused_pair
from nnstretch.graph.reference import relative_error

pytest.importorskip("ai_edge_litert.interpreter")

RELU = Activation(ActivationKind.RELU)
ONNXRUNTIME, LITERT = "cpu:float32/onnxruntime", "cpu:float32/litert"
ROUTINES = routines_of_engines(tuple(ENGINES))
every_engine = pytest.mark.parametrize("routine", ROUTINES, ids=list(ENGINES))
few = settings(max_examples=12)


def random(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def conv(
    shape: tuple[int, ...],
    outputs: int,
    kernel: int,
    *,
    stride: int = 1,
    groups: int = 1,
    residual: bool = False,
    activation: Activation = NO_ACTIVATION,
) -> Layer:
    """A convolution padded by half its kernel."""
    pad = kernel // 2
    weight = random((outputs, shape[1] // groups, kernel, kernel), 1) / (kernel * shape[1] ** 0.5)
    sizes = [(extent + 2 * pad - kernel) // stride + 1 for extent in shape[2:]]
    made = TensorType((shape[0], outputs, *sizes))
    return Layer(
        "conv",
        "Conv",
        (TensorType(shape), TensorType(weight.shape), TensorType((outputs,)), made if residual else None),
        (made,),
        MappingProxyType({"strides": (stride,) * 2, "pads": (pad,) * 4, "dilations": (1, 1), "groups": groups}),
        activation,
        MappingProxyType({1: weight, 2: random((outputs,), 2)}),
    )


def computed(layer: Layer, x: np.ndarray, residual: np.ndarray | None = None) -> np.ndarray:
    """The result of torch for a convolution or dense layer."""
    weight, bias = (torch.from_numpy(layer.constants[i]) for i in (1, 2))
    if layer.op == "Dense":
        result = fn.linear(torch.from_numpy(x), weight, bias)
    else:
        stride, groups = layer.ints("strides")[0], int(layer.attributes["groups"])  # type: ignore[arg-type]
        result = fn.conv2d(torch.from_numpy(x), weight, bias, stride, layer.ints("pads")[0], 1, groups)
    if residual is not None:
        result += torch.from_numpy(residual)
    return (result.relu() if layer.activation == RELU else result).numpy()


def opened(routine: Routine, layer: Layer, cores: tuple[int, ...] = ()) -> ExternalModel:
    (call,) = routine.lower(layer, routine.parameter_space(layer)[0]).calls
    assert call.model is not None
    reads = [layer.type_of(i) for i in layer.activations]
    return open_external_model(str(routine.descriptor), call.model, cores, reads, layer.outputs)


def run(routine: Routine, layer: Layer, *feeds: np.ndarray) -> np.ndarray:
    assert routine.supports(layer)
    result = np.full(layer.outputs[0].shape, np.nan, np.float32)
    opened(routine, layer).run(feeds, [result])
    return result


convolutions = st.builds(
    conv,
    st.tuples(st.integers(1, 2), st.sampled_from([4, 12]), st.integers(3, 9), st.integers(3, 9)),
    st.sampled_from([4, 8, 20]),
    st.sampled_from([1, 3]),
    stride=st.integers(1, 2),
    groups=st.sampled_from([1, 4]),
    residual=st.booleans(),
    activation=st.sampled_from([NO_ACTIVATION, RELU]),
)


@every_engine
@few
@given(layer=convolutions)
def test_convolutions(routine: Routine, layer: Layer) -> None:
    feeds = [random(layer.type_of(i).shape, 5 + i) for i in layer.activations]
    assert relative_error(run(routine, layer, *feeds), computed(layer, *feeds)) < 1e-5


@every_engine
@few
@given(rows=st.integers(1, 9), inputs=st.integers(1, 40), outputs=st.integers(1, 40))
def test_dense_layers(routine: Routine, rows: int, inputs: int, outputs: int) -> None:
    types = tuple(map(TensorType, ((rows, inputs), (outputs, inputs), (outputs,))))
    constants = MappingProxyType({1: random((outputs, inputs), 1), 2: random((outputs,), 2)})
    layer = Layer("dense", "Dense", types, (TensorType((rows, outputs)),), activation=RELU, constants=constants)
    x = random((rows, inputs), 3)
    assert relative_error(run(routine, layer, x), computed(layer, x)) < 1e-5


@every_engine
@few
@given(first=convolutions, outputs=st.sampled_from([5, 16]), twice=st.booleans())
def test_fusion_groups(routine: Routine, first: Layer, outputs: int, twice: bool) -> None:
    """A second layer reads the first, and a third adds the first or an external input."""
    middle = first.outputs[0].shape
    second = conv(middle, outputs, 3, activation=RELU)
    third = conv(second.outputs[0].shape, middle[1], 1, residual=True)
    count = len(first.activations)
    layer = fused_layer((first, second, third), (range(count), (-1,), (-2, -1 if twice else count)))
    feeds = [random(layer.type_of(i).shape, 5 + i) for i in layer.activations]
    between = computed(first, *feeds[:count])
    expected = computed(third, computed(second, between), between if twice else feeds[count])
    assert relative_error(run(routine, layer, *feeds), expected) < 1e-5


@every_engine
def test_new_memory_is_written_and_old_memory_is_not(routine: Routine) -> None:
    layer = conv((1, 4, 5, 5), 4, 3)
    model, results = opened(routine, layer), [np.empty(layer.outputs[0].shape, np.float32) for _ in range(3)]
    feeds = [random((1, 4, 5, 5), seed) for seed in range(3)]
    for x, result in zip(feeds, results, strict=True):
        model.run([x], [result])
    for x, result in zip(feeds, results, strict=True):
        assert relative_error(result, computed(layer, x)) < 1e-5
    feeds[2][:] = 0
    model.run([feeds[2]], [results[2]])
    assert relative_error(results[2], computed(layer, feeds[2])) < 1e-5


def conv_of_two_inputs() -> Layer:
    """A convolution whose weights are computed at run time."""
    return replace(conv((1, 4, 5, 5), 4, 3), constants=MappingProxyType({}))


@every_engine
def test_unsupported_layers(routine: Routine) -> None:
    x = TensorType((1, 4, 5, 5))
    number = TensorType((1, 4, 5, 5), "int64")
    assert not routine.supports(Layer("a", "onnx:Erf", (x,), (x,)))
    assert not routine.supports(Layer("a", "Activation", (number,), (number,), activation=RELU))
    assert not routine.supports(Layer("a", "Reshape", (x,), (TensorType((1, 100)),)))
    assert not routine.supports(conv_of_two_inputs())
    chain = fused_pair(conv((1, 4, 5, 5), 4, 3), Layer("a", "onnx:Erf", (x,), (x,)))
    assert routine.supports(chain) == (str(routine.descriptor) == ONNXRUNTIME)


def threads() -> dict[int, set[int]]:
    """The threads of this process and the cores that they may use."""
    return {int(task.name): os.sched_getaffinity(int(task.name)) for task in Path("/proc/self/task").iterdir()}


@every_engine
@pytest.mark.parametrize("count", [1, 2])
def test_one_thread_per_core_bound_to_it(routine: Routine, count: int) -> None:
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < count:
        pytest.skip(f"needs {count} cores")
    cores = tuple(usable[-count:])
    layer = conv((1, 32, 40, 40), 32, 3)
    x, y = random((1, 32, 40, 40), 0), np.empty(layer.outputs[0].shape, np.float32)
    before = threads()
    model = opened(routine, layer, cores)
    assert os.sched_getaffinity(0) == set(usable)
    model.run([x], [y])
    started = {thread: where for thread, where in threads().items() if thread not in before}
    assert len(started) == count - 1
    assert all(where <= set(cores) for where in started.values())


# ---- errors -----------------------------------------------------------------------------------------------------


def model_of(routine: Routine, layer: Layer) -> bytes:
    assert isinstance(routine, ExternalRoutine)
    return routine.model(layer)


@every_engine
def test_an_invalid_model(routine: Routine) -> None:
    kind = [TensorType((1, 4, 5, 5))]
    for content in (b"", b"abc", b"\0\0\0\0TFL3" + bytes(40), model_of(routine, conv((1, 4, 5, 5), 4, 3))[:200]):
        with pytest.raises((ModelError, PackageError)):
            open_external_model(str(routine.descriptor), content, (), kind, kind)


@every_engine
def test_a_model_for_other_tensors(routine: Routine) -> None:
    content = model_of(routine, conv((1, 4, 5, 5), 4, 3))
    right, wrong = TensorType((1, 4, 5, 5)), TensorType((1, 4, 5, 6))
    number = TensorType((1, 4, 5, 5), "int32")
    for reads, writes in (([right], [wrong]), ([wrong], [right]), ([right] * 2, [right]), ([number], [right])):
        with pytest.raises(PackageError, match="compile it again"):
            open_external_model(str(routine.descriptor), content, (), reads, writes)


@every_engine
def test_a_run_that_fails(routine: Routine) -> None:
    model = opened(routine, conv((1, 4, 5, 5), 4, 3))
    with pytest.raises(DeviceError, match="failed"):
        model.run([np.zeros((1, 4, 5, 6), np.float32)], [np.zeros((1, 4, 5, 5), np.float32)])


def test_no_such_external_engine() -> None:
    kind = [TensorType((1, 4, 5, 5))]
    with pytest.raises(PackageError, match="cpu:float32/direct"):
        open_external_model("cpu:float32/direct", b"", (), kind, kind)
    for names in (("abacus",), ("ort", "ort"), ("ort", "onnxruntime"), ("",)):
        with pytest.raises(UsageError, match="ort, litert"):
            routines_of_engines(names)
    (routine,) = routines_of_engines(("onnxruntime",))
    assert str(routine.descriptor) == ONNXRUNTIME


def test_litert_cannot_express_some_layers() -> None:
    x, y = TensorType((1, 4, 6, 6)), TensorType((1, 4, 4, 4))
    attributes = {"kernel": (2, 2), "strides": (1, 1), "pads": (0,) * 4, "dilations": (2, 2)}
    with pytest.raises(ModelError, match="dilated"):
        model_of(ROUTINES[1], Layer("pool", "MaxPool", (x,), (y,), MappingProxyType(attributes)))


@pytest.mark.parametrize(
    ("name", "hidden", "extra"),
    [
        ("ort", ("onnxruntime",), "onnxruntime"),
        ("litert", ("ai_edge_litert", "tflite_runtime"), r"nnstretch\[litert\]"),
    ],
)
def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, hidden: tuple[str, ...], extra: str
) -> None:
    for package in [p for p in sys.modules if p.partition(".")[0] in hidden]:
        monkeypatch.delitem(sys.modules, package)
    for package in hidden:
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=extra):
        routines_of_engines((name,))
    kind = [TensorType((1,))]
    with pytest.raises(MissingExtraError, match=extra):
        open_external_model(ONNXRUNTIME if name == "ort" else LITERT, b"\0\0\0\0TFL3", (), kind, kind)


def test_the_older_runtime_if_only_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    from ai_edge_litert import interpreter

    package, module = ModuleType("tflite_runtime"), ModuleType("tflite_runtime.interpreter")
    package.interpreter = module  # type: ignore[attr-defined]
    module.Interpreter = interpreter.Interpreter  # type: ignore[attr-defined]
    layer = conv((1, 4, 5, 5), 4, 3)
    content = model_of(ROUTINES[1], layer)
    for name in [p for p in sys.modules if p.partition(".")[0] == "ai_edge_litert"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ai_edge_litert", None)
    monkeypatch.setitem(sys.modules, "tflite_runtime", package)
    monkeypatch.setitem(sys.modules, "tflite_runtime.interpreter", module)
    x, y = random((1, 4, 5, 5), 1), np.empty((1, 4, 5, 5), np.float32)
    open_external_model(LITERT, content, (), [TensorType((1, 4, 5, 5))], layer.outputs).run([x], [y])
    assert relative_error(y, computed(layer, x)) < 1e-5


@pytest.mark.parametrize(
    ("version", "number"), [("1.31.0", 13100), ("2.3", 20300), ("2.14.0rc1", 21400), ("3", 30000), ("1.200.5", 19905)]
)
def test_releases_are_numbers(version: str, number: int) -> None:
    assert release_number(version) == number


def test_measurements_of_another_release_do_not_count() -> None:
    layer = SimpleNamespace()
    (found,) = ROUTINES[0].parameter_space(layer)  # type: ignore[arg-type]
    assert found["release"] > 0
