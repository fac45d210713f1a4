"""The static runner: what it needs, and what it computes on emulated cores."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from nnstretch.api.options import CompileOptions
from nnstretch.compiler.compile import plan_model
from nnstretch.compiler.processors import foreign_processors
from nnstretch.devices.engine.build.instruction_sets import ISAS, BuildTarget, Isa, architecture_of
from nnstretch.devices.engine.build.standalone import build_runner
from nnstretch.graph.reference import relative_error
from nnstretch.package.standalone import write_model_file
from tests.kits.boards.runner import QUICK, bench, write_model
from tests.kits.c_libraries import leave_out_optimisation
from tests.kits.graphs.graphs import RandomNetwork

MOST_BYTES = 3_000_000
OPTIMISED = {"aarch64"}
_PT_DYNAMIC, _PT_INTERP = 2, 3
_MACHINES = {"aarch64": 183, "armv7": 40, "riscv64": 243}
"""ELF's numbers of the architectures."""
_EMULATORS = {"aarch64": "qemu-aarch64-static", "armv7": "qemu-arm-static", "riscv64": "qemu-riscv64-static"}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=sorted(_MACHINES))
def isa(request: pytest.FixtureRequest) -> Isa:
    return next(isa for isa in ISAS if isa.name == request.param)


@pytest.fixture(scope="module")
def static_runner(isa: Isa) -> Path:
    """The runner; that for ARM, which other tests need, as users get it."""
    with pytest.MonkeyPatch.context() as patch:
        if isa.name not in OPTIMISED:
            leave_out_optimisation(patch)
        return build_runner(BuildTarget(isa, "linux-musl"))


def test_it_is_small_and_needs_no_library(isa: Isa, static_runner: Path) -> None:
    content = static_runner.read_bytes()
    assert isa.name not in OPTIMISED or len(content) <= MOST_BYTES
    has_64_bits = isa.name != "armv7"
    assert content[:6] == (b"\x7fELF\x02\x01" if has_64_bits else b"\x7fELF\x01\x01")
    assert struct.unpack_from("<H", content, 18) == (_MACHINES[isa.name],)
    (offset,) = struct.unpack_from("<Q", content, 32) if has_64_bits else struct.unpack_from("<I", content, 28)
    size, count = struct.unpack_from("<2H", content, 54 if has_64_bits else 42)
    segments = {struct.unpack_from("<I", content, offset + size * number)[0] for number in range(count)}
    assert not segments & {_PT_DYNAMIC, _PT_INTERP}


def check(isa: Isa, static_runner: Path, folder: Path, *options: str) -> list[str]:
    """Runs a network of two queues on an emulated CPU, compares its outputs, and returns the CPU's features."""
    qemu = shutil.which(_EMULATORS[isa.name])
    if qemu is None:
        pytest.skip(f"{_EMULATORS[isa.name]} is not there (Debian, Ubuntu: apt-get install qemu-user-static)")
    network = RandomNetwork(2, 2)
    model = write_model(network, folder / "random.nnm", ((0,), (1,)), isa)
    network.input.tofile(folder / "x")
    given = ("--input", f"x={folder / 'x'}", "--outputs", folder / "out", "--timeline")
    answer = bench(static_runner, *QUICK, *given, model, prefix=(qemu, *options))
    assert (answer["runner"]["isa"], answer["runner"]["system"]) == (isa.name, "linux-musl")
    device = answer["device"]
    assert (architecture_of(device["machine"]), device["libc"], device["isa_levels"]) == (isa.name, "musl", [isa.name])
    assert "statically" in device["opencl_error"]
    (entry,) = answer["models"]
    assert entry["runs"] == 3
    assert entry["repeatable"]
    for place, (output, wanted) in enumerate(zip(entry["outputs"], network.expected(), strict=True)):
        found = np.fromfile(folder / "out" / f"0-{place}.bin", np.float32).reshape(output["shape"])
        assert relative_error(found, wanted) < 1e-4
    features = device["features"]
    assert isinstance(features, list)
    return features


@pytest.mark.parametrize(
    ("cpu", "has_dot_product"), [("cortex-a53", False), ("cortex-a76", True), ("max,sve=off", True)]
)
@pytest.mark.parametrize("isa", ["aarch64"], indirect=True)
def test_emulated_arm_cores_compute_the_same(
    isa: Isa, static_runner: Path, tmp_path: Path, cpu: str, *, has_dot_product: bool
) -> None:
    features = check(isa, static_runner, tmp_path, "-cpu", cpu)
    assert ("asimddp" in features) is has_dot_product
    assert "sve" not in features


@pytest.mark.parametrize("isa", ["aarch64"], indirect=True)
def test_it_says_that_it_cannot_open_litert(isa: Isa, static_runner: Path, tmp_path: Path) -> None:
    qemu = shutil.which(_EMULATORS[isa.name])
    if qemu is None:
        pytest.skip(f"{_EMULATORS[isa.name]} is not there (Debian, Ubuntu: apt-get install qemu-user-static)")
    processors = foreign_processors(isa, CompileOptions("cpu:0,litert@1"))
    compiled = plan_model(RandomNetwork(0, 2, nodes=6).graph(), processors, tune=False)
    write_model_file(compiled, "model", isa, tmp_path / "model.nnm")
    (entry,) = bench(static_runner, *QUICK, tmp_path / "model.nnm", prefix=(qemu,), status=1)["models"]
    assert "linked statically and cannot open LiteRT" in entry["error"]


@pytest.mark.parametrize("isa", ["armv7"], indirect=True)
def test_an_emulated_32_bit_core_computes_the_same(isa: Isa, static_runner: Path, tmp_path: Path) -> None:
    assert check(isa, static_runner, tmp_path, "-cpu", "cortex-a7") == ["neon", "vfpv4"]


@pytest.mark.parametrize("isa", ["riscv64"], indirect=True)
def test_an_emulated_risc_v_core_computes_the_same(isa: Isa, static_runner: Path, tmp_path: Path) -> None:
    assert check(isa, static_runner, tmp_path) == []
