"""Runs standalone models (`.nnm`) from Python, by the library that they are made for.

The library is built from the installed sources and kept in the cache. A library that lies beside a model file is a program of
whoever made the folder, and is not loaded.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nnstretch.devices.engine.binding.program import opencl_library
from nnstretch.devices.engine.build.instruction_sets import ISAS, BuildTarget, local_isa
from nnstretch.devices.engine.build.standalone import build_binaries
from nnstretch.errors import FeedError, FileError, PackageError, UsageError
from nnstretch.package.standalone import CPU_VERSION, MAGIC, SUFFIX
from nnstretch.scheduler.runtime.base_session import NodeArg
from nnstretch.support.closing import Closing
from nnstretch.support.settings import cache_dir

_HEADER = struct.Struct("<8q")
_ERROR_BYTES = 512
_LONGEST_NAME = 64  # characters of an instruction set's name


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("count", ctypes.c_int64),
    )


class _OpenCLOptions(ctypes.Structure):
    _fields_ = (
        ("library", ctypes.c_char_p),
        ("cache", ctypes.c_char_p),
        ("device", ctypes.c_char_p),
        ("trusted_sources", ctypes.c_int32),
        ("profiling", ctypes.c_int32),
    )


class _Options(ctypes.Structure):
    _fields_ = (
        ("threads", ctypes.c_int32),
        ("cores", ctypes.POINTER(ctypes.c_int32)),
        ("n_cores", ctypes.c_int32),
        ("opencl", ctypes.POINTER(_OpenCLOptions)),
    )


class _Array(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("bytes", ctypes.c_int64))


class StandaloneSession(Closing):
    """A standalone model that is ready to run. The calls are those of `Session`: `get_inputs`, `get_outputs`, `run`.

    Concurrent runs take turns.
    """

    def __init__(self, path: Path, threads: int | None = None, *, trusted_sources: bool = False) -> None:
        """Loads a model file.

        Args:
            path: a file that `nnstretch compile --standalone` wrote. It must not change until the session is closed.
            threads: CPU threads; None: as compiled.
            trusted_sources: refuse a model whose OpenCL sources differ from the installed ones.

        Raises:
            FileError: there is no such file.
            PackageError: it is no model file, is damaged, is for another kind of CPU, has OpenCL sources that are not
                trusted, or its OpenCL device is missing or fails.
            BuildError: the library cannot be built.
        """
        self._model = ctypes.c_void_p()
        header = _read_header(path)
        self._library = _library(path, header.isa)
        opencl = _opencl_options(trusted_sources) if header.format > CPU_VERSION else None
        options = _Options(threads or 0, None, 0, opencl and ctypes.pointer(opencl))
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        if self._library.nns_model_load_on(
            os.fsencode(path), ctypes.byref(options), ctypes.byref(self._model), error, len(error)
        ):
            raise PackageError(error.value.decode(errors="replace"))
        self._inputs = self._tensors("input")
        self._outputs = self._tensors("output")

    def get_inputs(self) -> list[NodeArg]:
        """Name, shape and type of every input."""
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        """Name, shape and type of every output."""
        return list(self._outputs)

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Runs the model once and returns the named outputs as new arrays.

        Args:
            output_names: the outputs to return, in this order; all if None.
            feeds: a float32 array for each input.

        Raises:
            FeedError: unknown or missing names, wrong shapes or types.
            UsageError: the session is closed.
        """
        if not self._model.value:
            raise UsageError("the session is closed; open the model again")
        known = [output.name for output in self._outputs]
        wanted = known if output_names is None else list(output_names)
        if unknown := [name for name in wanted if name not in known]:
            raise FeedError(f"there is no output {unknown[0]!r}; the model has {', '.join(known)}")
        arrays = self._checked(feeds)
        written = [np.empty(output.shape, np.float32) for output in self._outputs]
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        status = self._library.nns_model_run_sized(
            self._model, _described(arrays), len(arrays), _described(written), len(written), error, len(error)
        )
        if status:
            raise FeedError(error.value.decode(errors="replace"))
        by_name = dict(zip(known, written, strict=True))
        return [by_name[name] for name in wanted]

    def close(self) -> None:
        """Frees the model and ends its threads."""
        model, self._model = self._model, ctypes.c_void_p()
        if model.value:
            self._library.nns_model_free(model)

    def _checked(self, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        names = [one.name for one in self._inputs]
        if sorted(feeds) != sorted(names):
            raise FeedError(f"the feeds are {', '.join(feeds) or 'none'}; the model's inputs are {', '.join(names)}")
        for one in self._inputs:
            array = feeds[one.name]
            if array.dtype != np.float32 or array.shape != one.shape:
                raise FeedError(f"{one.name} is {array.dtype}{list(array.shape)}; float32{list(one.shape)} is wanted")
        return [np.ascontiguousarray(feeds[name]) for name in names]

    def _tensors(self, kind: str) -> list[NodeArg]:
        count = getattr(self._library, f"nns_model_{kind}_count")(self._model)
        describe = getattr(self._library, f"nns_model_{kind}")
        tensors = [describe(self._model, index).contents for index in range(count)]
        return [NodeArg(t.name.decode(), tuple(t.shape[: t.rank]), "tensor(float)") for t in tensors]


def is_standalone(path: Path) -> bool:
    """Whether `path` is meant as a standalone model: by its ending, or by the file's signature."""
    if path.suffix == SUFFIX:
        return True
    try:
        with path.open("rb") as file:
            return file.read(8) == struct.pack("<q", MAGIC)
    except OSError:
        return False


def _library(path: Path, name: str) -> Any:
    """The library for the instruction set that a model file names, with the types of its functions."""
    isa = next((isa for isa in ISAS if isa.name == name), local_isa())  # the library refuses files of unknown ones
    if isa.architecture != local_isa().architecture or not isa.features <= local_isa().features:
        raise PackageError(
            f"{path} is for {isa.name}, this CPU is {local_isa().name}; compile the model with --target {local_isa().name}"
        )
    library = ctypes.CDLL(str(build_binaries(BuildTarget(isa)).library))
    text = (ctypes.c_char_p, ctypes.c_size_t)
    arrays = (ctypes.POINTER(_Array), ctypes.c_int32)
    library.nns_model_load_on.argtypes = (
        *(ctypes.c_char_p, ctypes.POINTER(_Options), ctypes.POINTER(ctypes.c_void_p)),
        *text,
    )
    library.nns_model_run_sized.argtypes = (ctypes.c_void_p, *arrays, *arrays, *text)
    library.nns_model_free.argtypes = (ctypes.c_void_p,)
    library.nns_model_free.restype = None
    for kind in ("input", "output"):
        getattr(library, f"nns_model_{kind}_count").argtypes = (ctypes.c_void_p,)
        getattr(library, f"nns_model_{kind}").argtypes = (ctypes.c_void_p, ctypes.c_int32)
        getattr(library, f"nns_model_{kind}").restype = ctypes.POINTER(_Tensor)
    return library


def _opencl_options(trusted_sources: bool) -> _OpenCLOptions:
    """Options with pyopencl's loader, so that this process has one, and the folder where processors keep built kernels."""
    try:
        library = os.fsencode(opencl_library())
    except ImportError:
        library = None
    return _OpenCLOptions(library, os.fsencode(cache_dir("opencl")), None, trusted_sources, 0)


def model_file_isa(path: Path) -> str:
    """The name of the instruction set that a model file is for; empty if the file is too short to name one.

    Raises:
        FileError: it cannot be read.
        PackageError: it is no model file.
    """
    return _read_header(path).isa


class _Header(NamedTuple):
    """What a model file says of itself: its format, and an instruction set, empty if the file is too short to name one."""

    format: int
    isa: str


def _read_header(path: Path) -> _Header:
    """Reads the header of a model file.

    Raises:
        FileError: it cannot be read.
        PackageError: it is no model file.
    """
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER.size)
            if len(header) < _HEADER.size or header[:8] != struct.pack("<q", MAGIC):
                raise PackageError(f"{path} is no model file of nnstretch; give what compile --standalone wrote")
            _, version, _, words, *_ = _HEADER.unpack(header)
            file.seek(_HEADER.size + 8 * max(0, min(words, 1 << 40)))
            isa = file.read(_LONGEST_NAME).partition(b"\0")[0].decode(errors="replace")
            return _Header(version, isa)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from error


def _described(arrays: Sequence[np.ndarray]) -> Any:
    return (_Array * len(arrays))(*(_Array(array.ctypes.data, array.nbytes) for array in arrays))
