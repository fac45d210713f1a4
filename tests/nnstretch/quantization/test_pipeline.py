"""The whole way from a network in float32 to a file, on random networks and combinations of options."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx_ir as ir
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import shape_inference

from nnstretch.compiler.compile import compile_model
from nnstretch.compiler.processors import build_processors
from nnstretch.devices.base.spec import usable_cores
from nnstretch.frontends.onnx_file import load
from nnstretch.graph.layers import layers
from nnstretch.graph.reference import relative_error
from nnstretch.passes import optimize
from nnstretch.quantization import METHODS, ROUNDINGS, KeepFloat, QuantizationOptions, quantize, signal_to_noise
from nnstretch.quantization.runs import open_run
from tests.kits.graphs.quantized_networks import QuantizedNetwork

OPTIONS = st.builds(
    QuantizationOptions,
    method=st.sampled_from(METHODS),
    keep_float=st.builds(KeepFloat, st.sampled_from(["auto", "heads", "none"]), st.integers(0, 2)),
    sensitivity=st.booleans(),
    equalize=st.booleans(),
    bias_correction=st.booleans(),
    reduce_range=st.booleans(),
    rounding=st.sampled_from(ROUNDINGS),
)


@settings(max_examples=12)
@given(st.integers(0, 10**6), OPTIONS)
def test_random_networks(seed: int, options: QuantizationOptions) -> None:
    """Outputs stay near those in float32, and the engine computes what the file says."""
    made_up = QuantizedNetwork(seed)
    rng = np.random.default_rng(seed)
    feeds = [{"x": rng.standard_normal(made_up.input.shape).astype(np.float32)} for _ in range(4)]
    network = ir.from_proto(shape_inference.infer_shapes(made_up.floating, strict_mode=True))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "q.onnx"
        made = quantize(network, feeds, file, options)
        assert made.error is not None
        assert 0 <= made.error < 0.3
        assert (made.full_range_error is not None) == options.reduce_range
        weighted = [
            n.layer for n in layers(optimize(load(file))) if n.layer.is_int8 and n.layer.op in ("Conv", "Dense")
        ]
        assert not options.reduce_range or all(
            layer.has_narrow_weights for layer in weighted if layer.constants[1].any()
        )
        assert bool(made.sensitivity) == bool(options.sensitivity or options.keep_float.worst)
        assert all(layer.error >= 0 and signal_to_noise(layer.error) > 5 for layer in made.sensitivity)
        wanted = open_run(file)(feeds[0])
        cpu = build_processors(f"cpu:{usable_cores()[0]}")
        with compile_model(load(file), cpu, tune=False) as session:
            for y, reference in zip(session.run(None, feeds[0]), wanted, strict=True):
                assert relative_error(y, reference) < 0.05
