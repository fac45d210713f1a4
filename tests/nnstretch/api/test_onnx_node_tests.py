"""ONNX's own tests of operators: each that ONNX Runtime passes is passed, or refused with a reason that is known.

All of them take half a minute: `NNSTRETCH_TEST_ALL_NODES=1` runs them, else those of each operator's first function.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.kits.graphs.onnx_node_tests import fault, node_tests, onnxruntime_passes

EVERY = bool(os.environ.get("NNSTRETCH_TEST_ALL_NODES"))
REFUSALS = ("holds texts", "known only in the run")
"""What no plan has: tensors of texts, and shapes that depend on values."""
UNKNOWN_TO_ONNX = {"test_scan_sum": "of opset 8, which ONNX converts wrongly"}


@pytest.mark.filterwarnings("ignore")
def test_operators_compute_what_onnx_expects(tmp_path: Path) -> None:
    faults, passed = {}, 0
    for test in node_tests(every=EVERY):
        if test.name in UNKNOWN_TO_ONNX or not onnxruntime_passes(test):
            continue
        found = fault(test, tmp_path)
        if found is None:
            passed += 1
        elif not any(reason in found for reason in REFUSALS):
            faults[test.name] = found
    assert not faults
    assert passed > (1000 if EVERY else 300)
