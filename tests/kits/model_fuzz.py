"""The program that loads damaged copies of model files (model_fuzz.c)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from nnstretch.devices.engine.build import standalone
from nnstretch.devices.engine.build.instruction_sets import parse_target
from nnstretch.devices.engine.build.standalone import build_binaries
from nnstretch.devices.engine.build.toolchains import ENGINE_FOLDER
from tests.kits.c_libraries import runnable_sources


def fuzz_program(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """Builds the program in a folder, with the library of standalone models beside it; both have gcc's sanitizers.

    Its arguments are a model file, a file for copies, a number of copies and a seed. It prints how many were refused, and how
    many ran; the first mistake ends it.
    """
    patch.setattr(standalone, "engine_sources", runnable_sources)
    built = build_binaries(parse_target("local"), sanitize="address,undefined").library
    shutil.copy(built, folder / "libnnstretch.so")
    flags = ("-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
    links = (f"-L{folder}", "-lnnstretch", "-Wl,-rpath,$ORIGIN")
    includes = (f"-I{ENGINE_FOLDER / 'standalone'}", f"-I{ENGINE_FOLDER / 'include'}")
    program, source = folder / "fuzz", Path(__file__).with_suffix(".c")
    subprocess.run(["gcc", *flags, *includes, str(source), "-o", str(program), *links], check=True)
    return program
