"""Networks of the zoo on an emulated ARM processor: the runner's outputs are those of ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import pytest

from nnstretch.api.options import CompileOptions
from nnstretch.bench.targets.measure import measure_models
from nnstretch.bench.targets.models import compile_for_target, with_drawn_inputs
from nnstretch.cli.models.sources import Source
from nnstretch.devices.targets.results import BenchOptions
from nnstretch.devices.targets.schemes import open_device

ONCE = BenchOptions(runs=1, warmup=0.0)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["mobilenetv3_small", "squeezenet1_1"])
def test_a_network_computes_what_onnx_runtime_does(emulator: str, tmp_path: Path, name: str) -> None:
    options = CompileOptions(processors="cpu:0", tune=False)
    graph = Source(name, options, image_size=32).load()
    with open_device("qemu:aarch64:cortex-a76") as device:
        model = with_drawn_inputs(compile_for_target(graph, name, device, options, tmp_path / "m.nnm"), graph, 0)
        (measured,) = measure_models(device, [model], ONCE).measured
    assert measured.error is not None
    assert measured.error < 1e-4
