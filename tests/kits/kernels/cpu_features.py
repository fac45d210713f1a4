"""Engines that find fewer CPU features than the CPU has."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import pytest

from nnstretch.devices.engine.binding.library import Engine
from nnstretch.devices.engine.build import engine_library
from nnstretch.devices.engine.build.instruction_sets import ISAS, Isa, local_features, local_isa


def runnable_isas() -> list[Isa]:
    """The instruction sets that this machine can run, the best first."""
    here = local_isa()
    return [isa for isa in ISAS if isa.architecture == here.architecture and isa.features <= here.features]


def variant_masks(isa: Isa, folder: str = "**") -> list[str]:
    """Values of NNSTRETCH_CPU_FEATURES that choose each variant of an instruction set's kernels; the first hides nothing.

    Args:
        isa: the instruction set.
        folder: folder of the kernels' C files below `kernels`; by default all.
    """
    families = [
        family
        for path in engine_library.c_files(f"kernels/{folder}/**/*.c")
        for family in engine_library.families_of(path)
    ]
    features = {
        feature
        for variant in engine_library.variants(families, engine_library.listed_variants())
        if engine_library.is_variant_of(isa, variant)
        for feature in variant
    }
    beyond = features.difference(isa.features).intersection(local_features())
    return ["", *(f"-{feature}" for feature in sorted(beyond))]


def families_that_differ(mask: str) -> list[str]:
    """The families of kernels that have a variant with the feature that a mask hides, as kernels/manifest.h lists them."""
    listed = engine_library.listed_variants()
    return [family for family, some in listed.items() if any(mask.removeprefix("-") in features for features in some)]


def masked_engine(isa: Isa, mask: str, folder: Path) -> Engine:
    """An engine that detects the CPU's features while NNSTRETCH_CPU_FEATURES is `mask`.

    A library detects them once, so each mask loads a copy in `folder`.
    """
    library = engine_library.build_engine(isa)
    if not mask:
        return Engine(library)
    copy = folder / f"{library.stem}{mask}.so"
    shutil.copy(library, copy)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NNSTRETCH_CPU_FEATURES", mask)
        masked = Engine(copy)
        masked.kernel_names()
    return masked


def engine_features(native: Engine) -> tuple[str, ...]:
    """The features of this CPU that an engine has found, as /proc/cpuinfo names them."""
    native.library.nns_cpu_features.restype = ctypes.c_uint64
    return _names(native, native.library.nns_cpu_features())


def kernel_features(native: Engine, kernel: str) -> tuple[str, ...]:
    """The features that a kernel requires beyond the engine's instruction set. Errors as for `Engine.find`."""
    native.library.nns_kernel_features.restype = ctypes.c_uint64
    return _names(native, native.library.nns_kernel_features(ctypes.c_int64(native.find(kernel))))


def feature_name(native: Engine, bit: int) -> str | None:
    """The name of a bit of an engine's masks; None out of range."""
    native.library.nns_cpu_feature_name.restype = ctypes.c_char_p
    name = native.library.nns_cpu_feature_name(bit)
    return None if name is None else str(name.decode())


def _names(native: Engine, mask: int) -> tuple[str, ...]:
    return tuple(feature_name(native, bit) or "" for bit in range(mask.bit_length()) if mask >> bit & 1)
