"""Cases that a command line names, and options."""

from __future__ import annotations

from pathlib import Path

import pytest

from nnstretch.bench.regression.cases import DEFAULT_MODELS, Case, find_cases, parse_threads
from nnstretch.errors import UsageError
from nnstretch.zoo import names


def test_cases_come_model_by_model_and_once() -> None:
    found = find_cases(["resnet18", "mobilenetv2", "resnet18"], ["cpu:0", "cpu:0"], [1, 2])
    assert found == [Case("resnet18", "cpu:0", 1), Case("mobilenetv2", "cpu:0", 1)]
    assert [case.model for case in find_cases([], ["cpu:0"], [1])] == list(DEFAULT_MODELS)


def test_all_is_the_whole_zoo(model: str) -> None:
    assert [case.model for case in find_cases([model, "all"], ["cpu:0"], [1])] == [*names(), model]


def test_a_case_without_a_cpu_has_no_threads(model: str) -> None:
    assert find_cases([model], ["opencl:0@0"], [1]) == [Case(model, "opencl:0@0", None)]
    assert str(Case("a/model.onnx", "opencl:0", None)) == "model.onnx on opencl:0"
    assert str(Case("resnet18", "cpu", 1)) == "resnet18 on cpu, 1 thread"
    assert str(Case("resnet18", "cpu", 2)) == "resnet18 on cpu, 2 threads"


def test_a_package_is_refused(tmp_path: Path) -> None:
    package = tmp_path / "model.nns"
    package.write_text("")
    with pytest.raises(UsageError, match="is a package, whose plan is used as it is"):
        find_cases([str(package)], ["cpu"], [1])


def test_threads_are_numbers_above_zero_each_once() -> None:
    assert parse_threads("1,1") == (1,)
    for text in ("", "0", "1,x", "-1"):
        with pytest.raises(UsageError, match="give numbers above 0, such as 1,2"):
            parse_threads(text)
