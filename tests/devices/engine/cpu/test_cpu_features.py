"""CPU features: detection, and the kernel variants that they select."""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nnstretch.devices.engine.binding.library import Engine, engine
from nnstretch.devices.engine.build import engine_library
from nnstretch.devices.engine.build.instruction_sets import (
    ISAS,
    BuildTarget,
    cpu_features,
    gcc_flags,
    local_features,
    local_isa,
    parse_target,
    zig_cpu,
)
from nnstretch.devices.engine.build.toolchains import make_toolchain
from nnstretch.errors import DeviceError, PackageError, UsageError
from tests.kits.kernels.cpu_features import engine_features, feature_name, kernel_features, masked_engine

X86_V2 = next(isa for isa in ISAS if isa.name == "x86-64-v2")

needs_fma = pytest.mark.skipif("fma" not in local_features(), reason="this CPU has no fused multiply-add")

DETECT = """
#include <stdio.h>
#include "cpu/cpu_features.h"
int main(void) {
    for (int bit = 0; bit < NNS_CPU_FEATURES; bit++)
        if (nns_cpu_features() >> bit & 1) printf("%s ", nns_cpu_feature_name(bit));
    const char *missing = nns_features_missing(nns_features_of_level(LEVEL));
    printf("\\n%s\\n", missing ? missing : "");
    return 0;
}
"""


def test_python_and_the_engine_find_the_same_features() -> None:
    assert engine_features(engine()) == local_features()
    assert local_isa().features <= set(engine_features(engine()))


def test_bits_are_numbered_as_the_table_lists_them() -> None:
    names = list(cpu_features())
    assert [feature_name(engine(), bit) for bit in range(len(names))] == names
    assert feature_name(engine(), len(names)) is None
    assert feature_name(engine(), -1) is None


def test_levels_include_the_levels_below() -> None:
    v4, v3, v2, arm, arm32, risc_v = ISAS
    assert v2.features < v3.features < v4.features
    assert {"sse4_2", "popcnt"} <= v2.features
    assert {"avx2", "fma", "f16c"} == {"avx2", "fma", "f16c"} & (v3.features - v2.features)
    assert "avx512_vnni" not in v4.features
    assert arm.features == {"asimd"}
    assert arm32.features == {"neon", "vfpv4"}
    assert risc_v.features == frozenset()


def test_compilers_get_the_names_that_they_know() -> None:
    assert zig_cpu(("fma", "amx_int8", "sse4_2")) == "+fma+amx_int8+sse4_2"
    assert gcc_flags(("-march=x86-64-v4", "-x"), ("avx512_vnni",)) == ("-march=x86-64-v4", "-x", "-mavx512vnni")
    assert gcc_flags(("-march=armv8-a",), ("asimddp", "asimdhp")) == ("-march=armv8-a+dotprod+fp16",)
    assert zig_cpu(("asimdhp",)) == "+fullfp16"


def test_hidden_features(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNSTRETCH_CPU_FEATURES", "-fma,-asimd")
    assert not {"fma", "asimd"} & set(local_features())
    for wrong, words in (("fma", "write -NAME"), ("-mmx", "does not know")):
        monkeypatch.setenv("NNSTRETCH_CPU_FEATURES", wrong)
        with pytest.raises(UsageError, match=words):
            local_features()


def test_the_instruction_set_follows_the_mask() -> None:
    """In a process of its own, since the choice is made once."""
    hidden = ",".join(f"-{name}" for name in sorted(local_isa().features))
    script = "from nnstretch.devices.engine.build.instruction_sets import local_isa; local_isa()"
    environment = {"NNSTRETCH_CPU_FEATURES": hidden}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert "has none of the instruction sets" in done.stderr


# -- variants of kernels --------------------------------------------------------------------------------------------


@needs_fma
def test_the_engine_takes_the_variant_that_the_cpu_can_run(tmp_path: Path) -> None:
    best, plain = (masked_engine(X86_V2, mask, tmp_path) for mask in ("", "-fma"))
    assert best.kernel_names() == plain.kernel_names()
    assert kernel_features(best, "dense_v2") == ("fma",)
    assert kernel_features(plain, "dense_v2") == ()
    assert kernel_features(best, "softmax") == ()
    assert "fma" not in engine_features(plain)
    with pytest.raises(PackageError, match="no kernel 'dance'"):
        best.find("dance")


@needs_fma
def test_variants_compute_the_same_up_to_rounding(tmp_path: Path) -> None:
    """Sums of products are rounded once with fused multiply-add and twice without."""
    answers = [dense(masked_engine(X86_V2, mask, tmp_path)) for mask in ("", "-fma")]
    x, w = operands()
    wanted = x.astype(np.float64) @ w.astype(np.float64)
    for answer in answers:
        np.testing.assert_allclose(answer, wanted, rtol=1e-5, atol=1e-5)
    assert not np.array_equal(answers[0], answers[1])


def operands() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.standard_normal((5, 300), np.float32), random.standard_normal((300, 8), np.float32)


def dense(native: Engine) -> np.ndarray:
    """The product of `operands` by the kernel `dense_v2` of x86-64-v2, whose panels are 8 columns wide."""
    from nnstretch.devices.engine.binding.image import (
        Buffer,
        Queue,
        QueueKind,
        Region,
        RegionKind,
        Step,
        StepKind,
        SubGraph,
    )
    from nnstretch.devices.engine.binding.program import Program

    x, w = operands()
    y = np.zeros((5, 8), np.float32)
    regions = [
        Region(RegionKind.FIXED, memory=array.reshape(-1).view(np.uint8), bytes=array.nbytes) for array in (x, w, y)
    ]
    buffers = [Buffer(i, 0, region.bytes) for i, region in enumerate(regions)]
    step = Step(StepKind.KERNEL, native.find("dense_v2"), (0, 1, -1, -1), (2,), (5, 300, 8, 0, 0, 0))
    with Program([Queue(QueueKind.HOST)], regions, buffers, [step], [SubGraph(0, 1)], native=native) as program:
        program.run()
    return y


def test_a_kernel_that_requires_more_than_the_cpu_has(tmp_path: Path) -> None:
    """It has no number, and the engine says which feature is missing."""
    if platform.machine() != "x86_64":
        pytest.skip("the kernel requires a feature of x86-64")
    source = tmp_path / "special.c"
    target = BuildTarget(X86_V2)
    toolchain = make_toolchain(target, features=("fma", "f16c"))
    source.write_text(
        '#include "program/registry.h"\n'
        'static const nns_kernel rows[] = {{.name = "special"}};\n'
        "const nns_family nns_family_dense_fma = {.kernels = rows, .n_kernels = 1, .requires = NNS_REQUIRES};\n"
    )
    dense = make_toolchain(target, features=("fma",))
    sources = [s for s in engine_library.engine_sources(target) if (s.path.name, s.toolchain) != ("dense.c", dense)]
    sources += engine_library.source_files(toolchain, [source], ())
    library = engine_library.build_file("special", ".so", sources, make_toolchain(target), "-shared")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NNSTRETCH_CPU_FEATURES", "-f16c")
        native = Engine(library)
        with pytest.raises(DeviceError, match=r"this CPU lacks \w+, which the kernel 'special' requires"):
            native.find("special")
    assert "special" not in native.kernel_names()
    assert kernel_features(native, "dense_v2") == ()


# -- other CPUs -----------------------------------------------------------------------------------------------------


def detected(target: BuildTarget, folder: Path, *prefix: str) -> tuple[set[str], str]:
    """The features that a program finds, and the first that the target's level lacks."""
    source = folder / "detect.c"
    source.write_text(DETECT.replace("LEVEL", str(target.isa.level)))
    toolchain = make_toolchain(target, oldest=True)
    files = engine_library.source_files(
        toolchain, [source, *engine_library.c_files("runtime/cpu/cpu_features.c")], ("include", "runtime")
    )
    # Linked as the runner is: for a program that is not stripped, zig would compile its libraries again.
    program = engine_library.build_file("detect", "", files, toolchain, *(("-static",) if target.system else ()), "-s")
    done = subprocess.run([*prefix, str(program)], capture_output=True, text=True, check=True, env={})
    names, missing = done.stdout.split("\n")[:2]
    return set(names.split()), missing


def test_detection_on_this_cpu(tmp_path: Path) -> None:
    names, missing = detected(BuildTarget(local_isa()), tmp_path)
    assert names == set(local_features())
    assert missing == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cpu", "has", "lacks"),
    [
        ("cortex-a53", {"asimd"}, {"asimdhp", "asimddp", "i8mm", "bf16", "sve"}),
        ("max", {"asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve"}, set()),
    ],
)
def test_detection_on_aarch64(cpu: str, has: set[str], lacks: set[str], tmp_path: Path) -> None:
    qemu = shutil.which("qemu-aarch64-static")
    if qemu is None:
        pytest.skip("qemu-aarch64-static is not there (Debian, Ubuntu: apt-get install qemu-user-static)")
    names, missing = detected(parse_target("aarch64-linux-musl"), tmp_path, qemu, "-cpu", cpu)
    assert has <= names
    assert not lacks & names
    assert missing == ""


@pytest.mark.parametrize(
    ("cpu", "has", "lacks"),
    [
        ("Nehalem", {"sse4_2", "popcnt"}, {"avx", "fma", "f16c", "avx2"}),
        ("Haswell", {"sse4_2", "avx", "fma", "f16c", "avx2", "abm"}, {"avx512f", "amx_tile", "avx512_vnni"}),
    ],
)
def test_detection_on_x86(cpu: str, has: set[str], lacks: set[str], tmp_path: Path) -> None:
    qemu = shutil.which("qemu-x86_64-static")
    if platform.machine() != "x86_64":
        pytest.skip("an x86-64 program is built for this machine's system")
    if qemu is None:
        pytest.skip("qemu-x86_64-static is not there (Debian, Ubuntu: apt-get install qemu-user-static)")
    names, _ = detected(BuildTarget(X86_V2), tmp_path, qemu, "-cpu", cpu)
    assert has <= names
    assert not lacks & names


def test_every_variant_names_features_that_exist() -> None:
    for family, listed in engine_library.listed_variants().items():
        assert all(set(features) <= cpu_features().keys() for features in listed), family
    assert ctypes.sizeof(ctypes.c_uint64) * 8 > len(cpu_features())
