"""The script that predicts the throughput of ARM kernels."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "arm_throughput.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("arm_throughput", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


script = load()


def loop(fmas: int, label: str, condition: str = "b.ne") -> list[str]:
    return [f"{label}:", *(f"fmla v{i}.4s, v30.4s, v31.s[0]" for i in range(fmas)), f"{condition} {label}"]


def test_the_innermost_loop_with_the_most_multiply_adds_is_taken() -> None:
    lines = [".Louter:", *loop(9, ".La"), *loop(12, ".Lb"), "fmla v0.4s, v1.4s, v2.4s", "cbnz x0, .Louter", "ret"]
    assert script.hot_path(lines) == tuple(loop(12, ".Lb")[1:])


def test_the_path_through_a_loop_avoids_what_is_rare() -> None:
    rare = ["cmp x1, x2", "b.ge .Lskip", "prfm pldl1keep, [x3]", ".Lskip:"]
    lines = [".La:", *rare, *loop(8, ".La")[1:], "ret"]
    assert script.hot_path(lines) == ("cmp x1, x2", "b.ge .Lskip", *loop(8, ".La")[1:])


def test_loops_behind_a_jump_by_a_table_are_found() -> None:
    assert script.hot_path(["br x10", ".Lcase:", "mov x0, x1", *loop(8, ".La"), "ret"]) == tuple(loop(8, ".La")[1:])


def test_functions_without_multiply_adds_have_no_hot_path() -> None:
    assert script.hot_path([]) == ()
    assert script.hot_path([".La:", "add x0, x0, #1", "b.ne .La", "ret"]) == ()


def test_an_in_order_core_issues_no_128_bit_load_beside_a_multiply_add() -> None:
    found = script.Loop("dense", "v4", ("ldp q0, q1, [x0]", "ldr d2, [x1]", "ldr q3, [x1]", *loop(8, ".La")[1:]))
    assert (found.fmas, found.loads, found.vector_slots) == (8, 3, 11)


def test_functions_are_cut_from_assembly() -> None:
    text = "\t.type\tf,@function\nf:  // @f\n// %bb.0:\n\tfmla\tv0.4s, v1.4s, v2.4s\n.Lfunc_end0:\n\t.size\tf, 4\ng:\n\tret\n"
    assert script.functions(text) == {"f": ["fmla v0.4s, v1.4s, v2.4s", ".Lfunc_end0:"], "g": ["ret"]}


def test_a_missing_llvm_mca_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script.shutil, "which", lambda _name: None)
    with pytest.raises(script.UsageError, match="apt-get install llvm-22"):
        script.find_llvm_mca()


def test_an_unknown_core_is_refused() -> None:
    with pytest.raises(script.UsageError, match="no core is named cortex-a1; there are Cortex-A55"):
        script.cores(["cortex-a1"])


def skip_without_llvm_mca() -> None:
    try:
        script.find_llvm_mca()
    except script.UsageError as error:
        pytest.skip(str(error))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_core_has_a_tile_of_nine_tenths_of_its_throughput() -> None:
    """The others but depthwise convolutions have one, too, and the same inner loop."""
    skip_without_llvm_mca()
    kernels = ("1×1", "any kernel", "first layer", "dense")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *kernels, "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    best: dict[tuple[str, str], float] = {}
    for row in json.loads(done.stdout)["loops"]:
        for core, figures in row["cores"].items():
            key = row["kernel"], core
            best[key] = max(best.get(key, 0), figures["share"])
    assert {kernel for kernel, _ in best} == set(kernels)
    low = {key: share for key, share in best.items() if share < 0.9}
    assert not low
