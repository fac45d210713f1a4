"""ONNX's own tests of single operators (`onnx.backend.test`), run through `nns.compile`."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import nnstretch as nns
from nnstretch.support.onnxruntime_errors import refusals

OPSET = 21
"""The newest operator set that models are given, unless one of their operators changed later."""


@dataclass(frozen=True)
class NodeTest:
    """A model of one operator, or of the function that it stands for, with inputs and outputs.

    Attributes:
        name: of the test in ONNX's collection.
        model: the model.
        feeds: inputs by name.
        expected: outputs in order.
        tolerances: relative and absolute.
    """

    name: str
    model: onnx.ModelProto
    feeds: dict[str, Any]
    expected: list[Any]
    tolerances: tuple[float, float]


@cache
def node_tests(*, every: bool) -> tuple[NodeTest, ...]:
    """All tests on dense tensors by name, or those that the first function of each operator makes.

    These functions run while the operators' classes are made, and those of all tests take longer than most tests.
    """
    from onnx.backend.test.case import base
    from onnx.backend.test.case.node import collect_testcases

    make = base._Exporter.__init__

    def make_first(made: Any, name: str, bases: tuple[type, ...], members: dict[str, Any]) -> None:
        exports = [key for key in members if key.startswith("export")]
        make(made, name, bases, {key: member for key, member in members.items() if key not in exports[1:]})

    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        if not every:
            patch.setattr(base._Exporter, "__init__", make_first)
        cases = collect_testcases(None)
    return tuple(test for case in sorted(cases, key=lambda c: c.name) for test in _dense(case))


def _dense(case: Any) -> Iterator[NodeTest]:
    for inputs, outputs in case.data_sets[:1]:
        if all(isinstance(array, np.ndarray) for array in (*inputs, *outputs)):
            names = [value.name for value in case.model.graph.input]
            feeds = dict(zip(names, inputs, strict=True))
            yield NodeTest(case.name, _at_opset(case.model), feeds, list(outputs), (case.rtol, case.atol))


def _at_opset(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model at `OPSET`, if all of its operators mean there what they mean at its own."""
    version = next((entry.version for entry in model.opset_import if entry.domain == ""), 0)
    if version <= OPSET or any(entry.domain for entry in model.opset_import):
        return model
    for node in model.graph.node:
        if onnx.defs.get_schema(node.op_type, version).since_version > OPSET:
            return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    result.opset_import[0].version = OPSET
    result.ir_version = min(result.ir_version, 10)
    return result


def onnxruntime_passes(test: NodeTest) -> bool:
    """Whether ONNX Runtime's CPU provider gives the expected outputs."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(
            test.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        found = session.run(None, test.feeds)
    except refusals():
        return False
    return difference(test, found) is None


def difference(test: NodeTest, found: Sequence[Any]) -> str | None:
    """What is wrong with the outputs `found`; None if nothing is."""
    relative, absolute = test.tolerances
    for number, (array, wanted) in enumerate(zip(found, test.expected, strict=True)):
        if array.shape != wanted.shape or array.dtype != wanted.dtype:
            return f"output {number} is {array.dtype}{array.shape}, not {wanted.dtype}{wanted.shape}"
        try:
            if wanted.dtype.kind in "OUSb":
                np.testing.assert_array_equal(array, wanted)
            else:
                np.testing.assert_allclose(array.astype(np.float64), wanted.astype(np.float64), relative, absolute)
        except AssertionError as error:
            return f"output {number}: {error}"
        except TypeError:
            np.testing.assert_array_equal(array, wanted)
    return None


def fault(test: NodeTest, folder: Path) -> str | None:
    """What `nns.compile` and `Session.run` do wrong with a test.

    Returns:
        None if nothing; "refused: …" if they raise an `NNStretchError`, which may be right.
    """
    path = folder / "model.onnx"
    onnx.save(test.model, path)
    try:
        session = nns.compile(path, processors="cpu:0", tune=False)
        try:
            found = session.run(None, test.feeds)
        finally:
            session.close()
    except nns.NNStretchError as error:
        return f"refused: {type(error).__name__}: {error}"
    except Exception as error:  # noqa: BLE001 (any other is what the test looks for)
        return f"{type(error).__name__}: {error}"
    return difference(test, found)
