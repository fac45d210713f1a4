"""The benchmark of kernels has a layer for every kernel, and measures."""

from __future__ import annotations

import json

import pytest

from nnstretch.devices.engine.binding.library import engine
from scripts.engine.kernel_benchmark import main, typical_uses


def test_every_kernel_computes_a_typical_layer() -> None:
    present = set(engine().kernel_names())
    uses = typical_uses(present)
    assert uses.keys() == present
    assert all(use.call.kernel == name for name, use in uses.items())


def test_kernels_are_measured_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reorder/copy", "depthwise_g1", "--milliseconds", "1", "--json"]) == 0
    copy, depthwise = json.loads(capsys.readouterr().out)["kernels"]
    assert copy["kernel"] == "reorder/copy"
    assert copy["gb_per_s"] > 0
    assert "gflops" not in copy
    assert depthwise["gflops"] > 0


def test_an_unknown_kernel_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conv_direct_p1v1"]) == 2
    assert "no kernel conv_direct_p1v1" in capsys.readouterr().err
