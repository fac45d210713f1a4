"""Networks with inputs and outputs of all types on targets: arrays go there and come back as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from nnstretch.bench.targets.measure import measure_models
from nnstretch.bench.targets.models import TargetModel, write_for_target
from nnstretch.compiler.compile import plan_model
from nnstretch.compiler.processors import build_processors
from nnstretch.devices.engine.build.instruction_sets import local_isa
from nnstretch.devices.targets.base import TargetError
from nnstretch.devices.targets.results import BenchOptions, arrays_of
from nnstretch.devices.targets.schemes import open_device
from nnstretch.errors import FeedError
from nnstretch.graph.layer import TensorType
from nnstretch.scheduler.runtime.session import PlanSession
from tests.kits.command_line import Cli, answer_of, refuses
from tests.kits.graphs.typed_networks import NETWORKS, bytes_of_an_image, quantised_ends

ONCE = BenchOptions(runs=1, warmup=0.0)
BY_THE_RUNNER = ("--target", "local", "--cool-down", "0.01", "--budget", "0.05", "--json")


@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_are_those_of_a_session(name: str, tmp_path: Path) -> None:
    network = NETWORKS[name]()
    compiled = plan_model(network.graph(), build_processors("cpu:0"), tune=False)
    with PlanSession(compiled) as session, open_device("local") as device:
        write_for_target(compiled, name, device.isa, tmp_path / "m.nnm")
        (measured,) = measure_models(device, [TargetModel(name, tmp_path / "m.nnm", network.feeds)], ONCE).measured
        expected = session.run(None, network.feeds)
    assert [*measured.outputs] == [tensor.name for tensor in compiled.plan.outputs]
    for found, wanted in zip(measured.outputs.values(), expected, strict=True):
        assert (found.shape, found.dtype.itemsize, found.tobytes()) == (
            wanted.shape,
            wanted.dtype.itemsize,
            wanted.tobytes(),
        )


def test_wrong_inputs_are_refused_before_the_model_runs(tmp_path: Path) -> None:
    network = quantised_ends()
    compiled = plan_model(network.graph(), build_processors("cpu:0"), tune=False)
    write_for_target(compiled, "m", local_isa(), tmp_path / "m.nnm")
    x = network.feeds["x"]
    with open_device("local") as device:
        for feeds, said in (
            ({"x": x.view(np.uint8)}, "input 'x' is uint8; the model wants int8"),
            ({"x": x[:, :1]}, "input 'x' has shape"),
            ({"z": x}, "the model's inputs are x, not z"),
        ):
            with pytest.raises(FeedError, match=said):
                measure_models(device, [TargetModel("m", tmp_path / "m.nnm", feeds)], ONCE)


def test_contents_of_other_sizes_are_no_outputs() -> None:
    types = [TensorType((2, 3), "int16"), TensorType((), "float64")]
    first, second = arrays_of([bytes(range(12)), bytes(8)], types, "m")
    assert (first.dtype.name, first.shape, int(first[0, 1])) == ("int16", (2, 3), 0x302)
    assert (second.dtype.name, second.shape) == ("float64", ())
    for wrong in ([bytes(12)], [bytes(11), bytes(8)], [bytes(12), bytes(8), b""]):
        with pytest.raises(TargetError, match="outputs of m have other sizes"):
            arrays_of(wrong, types, "m")


def test_bench_draws_inputs_of_their_types(cli: Cli) -> None:
    """Random bytes, and the reference for them."""
    for make, dtypes in ((bytes_of_an_image, ("uint8", "float32")), (quantised_ends, ("int8", "int8"))):
        onnx.save(make().proto, "net.onnx")
        (run,) = answer_of(cli("bench", "net.onnx", *BY_THE_RUNNER))["targets"]
        (result,) = run["results"]
        assert tuple(one["type"] for one in (*result["inputs"], *result["outputs"])) == dtypes
        assert result["max_rel_error"] < 1e-5


@pytest.mark.slow
def test_a_quantised_network_runs_on_an_emulated_cpu(emulator: str, cli: Cli) -> None:
    network = quantised_ends()
    onnx.save(network.proto, "net.onnx")
    np.save("x.npy", network.feeds["x"])
    given = ("run", "net.onnx", "--target", "qemu:aarch64:cortex-a76", "--runs", "1", "--input")
    answer = answer_of(cli(*given, "x=x.npy", "-o", "y.npz", "--json"))
    assert answer["outputs"] == {"y": {"shape": [1, 8, 9, 7], "dtype": "int8"}}
    assert answer["passed"]
    with PlanSession(plan_model(network.graph(), build_processors("cpu:0"), tune=False)) as session:
        assert np.array_equal(np.load("y.npz")["y"], session.run(None, network.feeds)[0])
    np.save("x.npy", network.feeds["x"].astype(np.float32))
    refuses(cli(*given, "x=x.npy"), "input 'x' is float32; the model wants int8")
