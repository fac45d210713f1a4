"""LiteRT and ONNX Runtime as processors: specifications, rejected layers, and failing delegates."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nnstretch.compiler.processors import build_processors
from nnstretch.devices import registry
from nnstretch.devices.base.routine import PLAIN, Layout, reorder_layer
from nnstretch.devices.base.spec import ProcessorSpec, parse_processors, usable_cores
from nnstretch.devices.external.litert.delegate import Delegate, parse_delegate
from nnstretch.devices.external.litert.engine import LiteRtRoutine
from nnstretch.devices.external.processor import ExternalProcessor
from nnstretch.devices.registry import open_external_model
from nnstretch.errors import DeviceError, MissingExtraError, UsageError
from nnstretch.graph.activation import Activation, ActivationKind
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.graph.reference import relative_error
from nnstretch.passes import optimize
from nnstretch.scheduler.planner import make_plan
from nnstretch.scheduler.runtime.session import PlanSession
from tests.kits.graphs.graphs import RandomNetwork

pytest.importorskip("ai_edge_litert.interpreter")

CORE = usable_cores()[0]
IMAGE = TensorType((1, 8, 5, 5))


def written(text: str) -> str:
    return ",".join(map(str, parse_processors(text, (0, 1, 2, 3))))


def opened(spec: ProcessorSpec) -> ExternalProcessor:
    processor = registry.external_engine(spec.kind).processor(spec)
    assert isinstance(processor, ExternalProcessor)
    return processor


def test_the_alias_of_litert_is_accepted() -> None:
    assert written("tflite@1,tflite:builtin@2") == "litert@1,litert:builtin@2"
    assert written("onnxruntime@1") == "ort@1"
    routine = LiteRtRoutine(Delegate())
    assert str(routine.descriptor) == "litert:float32/xnnpack"
    layer = Layer("relu", "Activation", (IMAGE,), (IMAGE,), activation=Activation(ActivationKind.RELU))
    x = np.random.default_rng(0).standard_normal(IMAGE.shape).astype(np.float32)
    y = np.empty_like(x)
    open_external_model("tflite:float32/xnnpack", routine.model(layer), (CORE,), [IMAGE], [IMAGE]).run([x], [y])
    np.testing.assert_array_equal(y, np.maximum(x, 0))


@pytest.mark.parametrize("name", registry.ENGINES)
def test_every_engine_is_registered_by_its_own_name(name: str) -> None:
    engine = registry.external_engine(name)
    assert engine.name == name
    assert str(engine.routine().descriptor) == f"cpu:float32/{registry.ENGINES[name].module}"


def test_specifications() -> None:
    assert written("cpu:0,litert@1,ort@2-3") == "cpu:0,litert@1,ort@2-3"
    assert written("litert:xnnpack@1") == "litert@1"
    assert written("litert:builtin@1,litert:gpu@2") == "litert:builtin@1,litert:gpu@2"
    assert written("litert:/lib/a.so?speed=2&fp16=1@0") == "litert:/lib/a.so?speed=2&fp16=1@0"
    assert written("litert:./a.so@0") == f"litert:{Path('a.so').absolute()}@0"
    assert written("cpu:0-1,litert") == "cpu:0-1,litert@2-3"
    assert parse_delegate("./a.so?speed=2").options == {"speed": "2"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("litert:tpu@1", "path of a library"),
        ("litert:xnnpack?fast=1@1", "has no options"),
        ("litert:/a.so?fast@1", "options as in"),
        ("ort:gpu@1", "no options except its cores"),
        ("litert@0*1:2", "only a CPU's cores have ratios"),
        ("litert:1@0,cpu:0", "path of a library"),
        ("litert@0,cpu:0", "one core to two processors"),
    ],
)
def test_malformed_specifications(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_processors(text, (0, 1))


def test_a_library_is_identified_by_its_file(tmp_path: Path) -> None:
    library = tmp_path / "a.so"
    library.write_bytes(b"one")
    before = parse_delegate(str(library)).identity
    library.write_bytes(b"another")
    assert parse_delegate(str(library)).identity != before
    assert parse_delegate(f"{library}?a=1").identity != parse_delegate(str(library)).identity
    assert Delegate().identity == "xnnpack"


@pytest.fixture(scope="module", params=["litert", "ort"])
def external_engine(request: pytest.FixtureRequest) -> ExternalProcessor:
    (spec,) = parse_processors(f"{request.param}@{CORE}")
    return opened(spec)


def test_supported_layers(external_engine: ExternalProcessor) -> None:
    """All layers that the format can express, also those that move no data; plain tensors only."""
    routine, _ = external_engine.routines
    attributes = {"kernel": (2, 2), "strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (2, 2)}
    dilated = Layer("pool", "MaxPool", (IMAGE,), (TensorType((1, 8, 3, 3)),), attributes)
    assert routine.supports(dilated) == (external_engine.spec.kind == "ort")
    assert routine.supports(Layer("rows", "Reshape", (IMAGE,), (TensorType((1, 200)),)))
    many = Layer("many", "Concat", (IMAGE,) * 17, (TensorType((1, 136, 5, 5)),), {"axis": 1})
    assert not routine.supports(many), "the engine's steps read 16 tensors"
    again = opened(external_engine.spec)
    assert again.fingerprint == external_engine.fingerprint


@pytest.mark.parametrize("kind", [IMAGE, TensorType((3, 7)), TensorType((1, 3, 4, 4), "int8")])
def test_an_identity_call_changes_nothing(external_engine: ExternalProcessor, kind: TensorType) -> None:
    through = external_engine.reorder
    assert not through.supports(reorder_layer(IMAGE, PLAIN, Layout(8)))
    layer = reorder_layer(kind, PLAIN, PLAIN)
    assert through.supports(layer)
    (call,) = through.lower(layer, {}).calls
    assert call.model is not None
    x = (50 * np.random.default_rng(0).standard_normal(kind.shape)).astype(kind.dtype)
    y = np.zeros_like(x)
    open_external_model(str(through.descriptor), call.model, (CORE,), [kind], [kind]).run([x], [y])
    assert np.array_equal(x, y)


def test_without_litert(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [p for p in sys.modules if p.partition(".")[0] == "ai_edge_litert"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ai_edge_litert", None)
    monkeypatch.setitem(sys.modules, "tflite_runtime", None)
    with pytest.raises(MissingExtraError, match=r"nnstretch\[litert\]"):
        build_processors(f"litert@{CORE}")


# ---- delegates ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The delegate of delegate.c."""
    made = tmp_path_factory.mktemp("delegate") / "libfailing.so"
    source = Path(__file__).with_name("delegate.c")
    # With the sanitizer's option of engines, zig's runtime library is theirs.
    flags = ("-O1", "-shared", "-fPIC", "-fno-sanitize=undefined", "-Wall", "-Wextra", "-Werror")
    subprocess.run([sys.executable, "-m", "ziglang", "cc", *flags, str(source), "-o", str(made)], check=True)
    return made


Fails = Callable[[str], PlanSession]


@pytest.fixture
def fails(library: Path) -> Fails:
    def session(how: str) -> PlanSession:
        usable = build_processors(f"litert:{library}?fail={how}@{CORE}")
        network = RandomNetwork(1, processors=0, nodes=4)
        return PlanSession(make_plan(optimize(network.graph()), usable.named, usable.host))

    return session


def test_a_delegate_may_take_nothing(fails: Fails) -> None:
    network = RandomNetwork(1, processors=0, nodes=4)
    with fails("never") as session:
        found = session.run(None, {"x": network.input})
    for y, expected in zip(found, network.expected(), strict=True):
        assert relative_error(y, expected) < 1e-4


@pytest.mark.parametrize(("how", "said"), [("load", "there is no such device"), ("prepare", "does not work")])
def test_a_delegate_that_is_refused(fails: Fails, how: str, said: str) -> None:
    with pytest.raises(DeviceError, match=said) as raised:
        fails(how)
    assert "\n" not in str(raised.value)


def test_a_delegate_that_fails_in_a_run_leaves_the_session_usable(library: Path, tmp_path: Path) -> None:
    if len(usable_cores()) < 2:
        pytest.skip("two processors need two cores")
    obstacle, network = tmp_path / "lost", RandomNetwork(1, processors=2, nodes=8)
    usable = build_processors(f"cpu:{CORE},litert:{library}?fail={obstacle}@{usable_cores()[-1]}")
    with PlanSession(make_plan(optimize(network.graph()), usable.named, usable.host)) as session:
        assert "call" in {queue.kind for queue in session.plan.queues}
        session.run(None, {"x": network.input})
        for _ in range(2):
            obstacle.touch()
            with pytest.raises(DeviceError, match=r"libfailing\.so.* failed: .*lost its device"):
                session.run(None, {"x": network.input})
            obstacle.unlink()
            session.run(None, {"x": network.input})
    obstacle.touch()
    with pytest.raises(DeviceError, match="does not work"):
        build_processors(f"litert:{library}?fail={obstacle}@{CORE}")


@pytest.mark.parametrize(
    ("name", "said"),
    [("/nowhere/libnpu.so", "cannot open"), ("gpu", "libtensorflowlite_gpu_delegate.so"), ("engine", "no function")],
)
def test_libraries_that_make_no_delegate(name: str, said: str) -> None:
    if name == "engine":
        from nnstretch.devices.engine.binding.library import engine

        name = str(engine().path)
    with pytest.raises(DeviceError, match=said) as raised:
        build_processors(f"litert:{name}@{CORE}")
    assert "\n" not in str(raised.value)
