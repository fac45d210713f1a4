"""Engines that find fewer CPU features than the CPU has."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from nnstretch.devices.engine.binding.library import Engine
from nnstretch.devices.engine.build import engine_library
from nnstretch.devices.engine.build.cpu_features import cpu_features
from nnstretch.devices.engine.build.instruction_sets import Isa


def variant_masks(isa: Isa) -> list[str]:
    """Values of NNSTRETCH_CPU_FEATURES that choose each variant of an instruction set's kernels; the first hides nothing."""
    features = {
        feature
        for path in engine_library.c_files("kernels/**/*.c")
        for feature in engine_library.variant_features(path)
    }
    beyond = {f for f in features - isa.features if cpu_features()[f].architecture == isa.architecture}
    return ["", *(f"-{feature}" for feature in sorted(beyond))]


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
