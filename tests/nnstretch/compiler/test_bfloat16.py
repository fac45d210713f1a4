"""Networks whose products may be of bfloat16: options, routines, results, and what other engines get then."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir
import pytest

from nnstretch.api.options import BFLOAT16_TOLERANCE, FLOAT16_TOLERANCE, TOLERANCE, CompileOptions
from nnstretch.bench.comparison.client import Workspace
from nnstretch.bench.comparison.compare import compiling_of_process
from nnstretch.bench.engines import Job, engine_entry
from nnstretch.compiler.compile import compile_model
from nnstretch.compiler.processors import build_processors, rounded_products
from nnstretch.devices.cpu.routines.bfloat16.convolution import FEATURES
from nnstretch.devices.engine.build.instruction_sets import local_features
from nnstretch.errors import UsageError
from nnstretch.graph.dtypes import BFLOAT16, FLOAT16
from nnstretch.graph.reference import relative_error, run_proto
from nnstretch.support.progress import silent
from tests.kits.graphs.float_networks import classifier, network, normal

CPU = CompileOptions("cpu:0")
OF_BFLOAT16 = replace(CPU, dtype=BFLOAT16)


def test_the_type_is_a_tolerance() -> None:
    assert CPU.largest_error == TOLERANCE
    assert OF_BFLOAT16.largest_error == BFLOAT16_TOLERANCE
    assert replace(OF_BFLOAT16, tolerance=0.1).largest_error == 0.1
    with pytest.raises(UsageError, match="tolerance is -1"):
        build_processors(CompileOptions("cpu:0", dtype=BFLOAT16, tolerance=-1.0))


@pytest.mark.parametrize("tolerance", [1e-3, TOLERANCE])
def test_a_tolerance_that_excludes_the_type_is_refused(tolerance: float) -> None:
    """That of float32, too, if it is given."""
    wanted = f"bfloat16 needs a tolerance of 0.005 or more, and {tolerance:g} is given; leave one of them out"
    with pytest.raises(UsageError, match=re.escape(wanted)):
        CompileOptions("cpu:0", dtype=BFLOAT16, tolerance=tolerance)


@pytest.mark.parametrize(
    ("options", "rounds"),
    [
        (CPU, False),
        (OF_BFLOAT16, True),
        (replace(CPU, tolerance=BFLOAT16_TOLERANCE), True),
        (replace(CPU, tolerance=4e-3), False),
    ],
)
def test_processors_round_products_where_that_is_allowed(options: CompileOptions, rounds: bool) -> None:
    (cpu,) = build_processors(options).named
    assert any(routine.rounds_to == BFLOAT16 for routine in cpu.routines) == rounds


@pytest.mark.parametrize(
    ("tolerance", "types"),
    [(2e-3, ()), (FLOAT16_TOLERANCE, (FLOAT16,)), (BFLOAT16_TOLERANCE, (FLOAT16, BFLOAT16))],
)
def test_every_type_of_products_has_its_tolerance(tolerance: float, types: Sequence[str]) -> None:
    assert set(rounded_products(replace(CPU, tolerance=tolerance))) == set(types)


def test_a_network_computes_in_bfloat16_where_the_cpu_does() -> None:
    text = "wide (float[1,32,9,9] x) => (float[1,64,9,9] y) { c = Conv<pads=[1,1,1,1]>(x, w)  y = Relu(c) }"
    model = network(text, {"w": normal(64, 32, 3, 3) / 17})
    proto, feeds = ir.to_proto(model), {"x": normal(1, 32, 9, 9, seed=2)}
    with compile_model(model, build_processors(OF_BFLOAT16), tune=False) as session:
        (found,) = session.run(None, feeds)
        used = any(step.routine.startswith(f"cpu:{BFLOAT16}/") for step in session.plan.steps if step.macs)
    (wanted,) = run_proto(proto, feeds)
    assert used == (not FEATURES.isdisjoint(local_features()))
    error = relative_error(found, wanted)
    assert error < BFLOAT16_TOLERANCE
    assert (error > 1e-4) == used


@pytest.mark.parametrize(("options", "prepared"), [(CPU, False), (OF_BFLOAT16, True)])
def test_openvino_chooses_its_precision_beside_bfloat16(
    options: CompileOptions, prepared: bool, tmp_path: Path
) -> None:
    pytest.importorskip("openvino", reason="the extra bench is not installed")
    path = tmp_path / "x.onnx"
    ir.save(classifier(), path)
    job = Job("x", str(path), (0,), {"compile": compiling_of_process(options)})
    with Workspace() as workspace:
        file = workspace.file_for(engine_entry("openvino"), job, silent)
        assert bool(file) == prepared
        if file:
            assert Path(file).read_text() in ("float32", "its default precision")
