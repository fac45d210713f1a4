"""The script that predicts the throughput of ARM kernels."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from nnstretch.devices.engine.build.engine_library import engine_sources
from nnstretch.devices.engine.build.instruction_sets import parse_target

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "engine" / "arm_throughput.py"


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


def test_a_loop_may_run_several_times_in_the_one_around_it() -> None:
    lines = [".La:", "mov x0, x1", *loop(8, ".Lb"), "fcvtl v0.4s, v1.4h", "cbnz x0, .La", "ret"]
    inner = loop(8, ".Lb")[1:]
    wanted = ["mov x0, x1", *inner, *inner, *inner, "fcvtl v0.4s, v1.4h", "cbnz x0, .La"]
    assert script.hot_path(lines, times=3) == tuple(wanted)
    assert script.hot_path(lines[2:-2], times=3) == ()


def test_functions_without_multiply_adds_have_no_hot_path() -> None:
    assert script.hot_path([]) == ()
    assert script.hot_path([".La:", "add x0, x0, #1", "b.ne .La", "ret"]) == ()


def test_an_in_order_core_issues_no_128_bit_load_beside_a_multiply_add() -> None:
    found = script.Loop("dense", "v4", ("ldp q0, q1, [x0]", "ldr d2, [x1]", "ldr q3, [x1]", *loop(8, ".La")[1:]))
    assert (found.fmas, found.loads, found.vector_slots) == (8, 3, 11)


def test_functions_are_cut_from_a_disassembly() -> None:
    """What a jump by a table may reach, behind an instruction that always jumps, has a label as what branches name."""
    text = """
kernel.o: file format elf64-littleaarch64

Disassembly of section .text:

<f>:
        fmla    v0.4s, v1.4s, v2.4s
        adrp    x8, 0x0 <table>
        br      x8
        b.lt     <L1>
<L1>:
        b        <L1>

<g>:
        ret
        nop
"""
    assert script.functions(text) == {
        "f": ["fmla v0.4s, v1.4s, v2.4s", "adrp x8, 0x0", "br x8", ".Lbehind3:", "b.lt .L1", ".L1:", "b .L1"],
        "g": ["ret", ".Lbehind1:", "nop"],
    }


def test_objects_are_those_of_the_runner_for_targets() -> None:
    runner = {source.key for source in engine_sources(parse_target("aarch64-linux-musl"))}
    assert {
        script.kernel_source(file, script.PRODUCTS.get(kernel, script.FLOATS).features).key
        for kernel, (file, _) in script.FUNCTIONS.items()
    } <= runner


def test_a_missing_llvm_mca_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script.shutil, "which", lambda _name: None)
    with pytest.raises(script.UsageError, match="apt-get install llvm-22"):
        script.find_llvm_mca()


def test_a_missing_llvm_objdump_is_named_with_its_package(tmp_path: Path) -> None:
    with pytest.raises(script.UsageError, match=r"llvm-objdump-22 is not beside .*; install it"):
        script.find_llvm_objdump(str(tmp_path / "llvm-mca-22"))
    (tmp_path / "llvm-objdump-22").touch()
    assert script.find_llvm_objdump(str(tmp_path / "llvm-mca-22")) == str(tmp_path / "llvm-objdump-22")


def test_an_unknown_core_is_refused() -> None:
    with pytest.raises(script.UsageError, match="no core is named cortex-a1; there are Cortex-A55"):
        script.cores(["cortex-a1"])


def skip_without_llvm_mca() -> None:
    try:
        script.find_llvm_mca()
    except script.UsageError as error:
        pytest.skip(str(error))


FLOORS = {
    "1×1": (0.9, 0.9),
    "any kernel": (0.9, 0.9),
    "any kernel, float16": (1.8, 1.8),
    "float16, 64 terms": (1.6, 1.5),
    "float16, 128 terms": (1.7, 1.65),
    "first layer": (0.9, 0.9),
    "Strassen product": (0.9, 0.9),
    "Winograd product": (0.9, 0.9),
    "Winograd product, int16 weights": (0.65, 0.75),
    "dense": (0.9, 0.9),
    "pair, 1×1": (0.9, 0.9),
    "depthwise": (0.65, 0.85),
    "two channels": (0.55, 0.4),
    "matrix product": (0.7, 0.55),
    "attention": (0.7, 0.55),
    "int8, long products": (0.95, 1.9),
    "int8 1×1, dot products": (1.75, 2.2),
    "int8 first layer, dot products": (1.7, 2.4),
    "int8 dense, dot products": (1.6, 2.5),
    "int8 depthwise, dot products": (2.2, 3.4),
    "int8 depthwise": (0.7, 0.85),
    "int8, matrix products": (0, 6),
    "bfloat16": (0, 2.1),
    "attention, bfloat16": (0, 0.95),
}
"""Kernel -> least share that its best tile must reach on the in-order core, and on the others.

Depthwise convolutions load one weight for each multiply-add of a few outputs, those of two channels per group also shuffle, and
matrix products broadcast one factor from memory: they do not reach what products of packed weights do. Weights that are
int16 are widened and scaled before their use. Sums of float16 are widened after some terms. Attention in bfloat16 broadcasts
each pair of inputs, and depthwise kernels without products of int8 convert their rows to float32.
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_kernel_has_a_tile_of_its_share_on_every_core() -> None:
    skip_without_llvm_mca()
    assert FLOORS.keys() == script.FUNCTIONS.keys()
    done = subprocess.run([sys.executable, str(SCRIPT), "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    best: dict[tuple[str, str], float] = {}
    for row in json.loads(done.stdout)["loops"]:
        for core, figures in row["cores"].items():
            key = row["kernel"], core
            best[key] = max(best.get(key, 0), figures["share"])
    meant = {kernel: script.PRODUCTS.get(kernel, script.FLOATS).cores for kernel in FLOORS}
    assert best.keys() == {
        (kernel, core.name)
        for kernel, models in meant.items()
        for core in script.CORES
        if core.model in models or not models
    }
    in_order = {core.name for core in script.CORES if core.halves}
    low = {key: share for key, share in best.items() if share < FLOORS[key[0]][key[1] not in in_order]}
    assert not low


def test_loops_are_analysed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call of llvm-mca for all loops of a core; the shares are those of the loops, in their order."""
    skip_without_llvm_mca()
    busy = script.Loop("1×1", "p12v2", tuple(f"fmla v{i}.4s, v30.4s, v31.s[0]" for i in range(16)))
    chained = script.Loop("dense", "v4", ("fmla v0.4s, v1.4s, v2.4s",) * 8)
    calls: list[object] = []
    run = script.subprocess.run

    def counted(*arguments: object, **more: object) -> object:
        calls.append(arguments)
        return run(*arguments, **more)

    monkeypatch.setattr(script.subprocess, "run", counted)
    core = next(core for core in script.CORES if core.fmas == 2)
    first, second = script.throughputs([busy, chained], script.find_llvm_mca(), core)
    assert len(calls) <= 2  # one, and perhaps the question for the version
    assert first["share"] > 0.9
    assert second["limit"] == "latency"
