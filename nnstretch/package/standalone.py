"""The folder of `nnstretch compile --standalone`: a model that runs without Python or any framework.

| file | contents |
|---|---|
| `NAME.nnm` | the model: program and weights (`nnstretch.package.model_file`) |
| `NAME` | an executable that runs it |
| `libnnstretch.so` | a library that runs it in other programs |
| `nnstretch.h` | the library's interface |
| `example.c` | a program that uses the library |
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from nnstretch.devices.engine.build.instruction_sets import BuildTarget
from nnstretch.devices.engine.build.standalone import EXAMPLE, HEADER, LIBRARY, build_binaries
from nnstretch.errors import FileError, UsageError
from nnstretch.package.model_file import check_standalone, write_model_file
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.support.settings import atomic_write

SUFFIX = ".nnm"


def standalone_files(name: str, folder: Path) -> Mapping[str, Path]:
    """The files of a standalone folder: `model`, `executable`, `library`, `header`, `example`.

    Raises:
        UsageError: the name is not valid as a file name.
    """
    if not re.fullmatch(r"\w[\w.+-]*", name) or name in (LIBRARY, HEADER.name, EXAMPLE.name):
        raise UsageError(f"a standalone model cannot be called {name!r}; name the folder or the model otherwise")
    return {
        "model": folder / f"{name}{SUFFIX}",
        "executable": folder / name,
        "library": folder / LIBRARY,
        "header": folder / HEADER.name,
        "example": folder / EXAMPLE.name,
    }


def write_standalone(compiled: Compiled, name: str, target: BuildTarget, folder: Path) -> Mapping[str, Path]:
    """Writes a model and its binaries to an existing folder. Each file appears complete or not at all.

    Args:
        compiled: a plan made for `target.isa` whose queues are all CPU cores.
        name: of the model and of the executable.
        target: of the binaries.
        folder: the destination; existing files of the same names are replaced.

    Returns:
        The files, with the keys of `standalone_files`.

    Raises:
        UsageError: the plan needs OpenCL or ONNX Runtime, or the name is not valid as a file name.
        BuildError: the engine cannot be built for the target.
        FileError: the folder is not writable or the disk is full.
    """
    files = standalone_files(name, folder)
    check_standalone(compiled.plan)
    binaries = build_binaries(target)
    write_model_file(compiled, name, target.isa, files["model"])
    for what, source in (
        ("executable", binaries.executable),
        ("library", binaries.library),
        ("header", HEADER),
        ("example", EXAMPLE),
    ):
        with atomic_write(files[what]) as file:
            file.write(source.read_bytes())
    try:
        files["executable"].chmod(0o755)
    except OSError as error:
        raise FileError(f"cannot make {files['executable']} executable: {error.strerror}") from error
    return files
