"""Runs standalone models (`.nnm`) from Python, by the library that they are made for.

The library is built from the installed sources and kept in the cache. A library that lies beside a model file is a program of
whoever made the folder, and is not loaded.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nnstretch.devices.engine.binding.program import opencl_library
from nnstretch.devices.engine.build.instruction_sets import ISAS, BuildTarget, local_isa
from nnstretch.devices.engine.build.standalone import build_binaries
from nnstretch.devices.external.litert.library import LITERT_VARIABLE, packaged_library
from nnstretch.errors import FeedError, PackageError, UsageError
from nnstretch.graph.layer import TensorType
from nnstretch.package.standalone_head import read_head
from nnstretch.scheduler.plan.schema import PlanTensor
from nnstretch.scheduler.runtime.arguments import Arguments
from nnstretch.scheduler.runtime.base_session import NodeArg, node_arg
from nnstretch.support.closing import Closing
from nnstretch.support.settings import cache_dir

_ERROR_BYTES = 512


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("count", ctypes.c_int64),
        ("dtype", ctypes.c_int32),
        ("bytes", ctypes.c_int64),
    )


class _OpenCLOptions(ctypes.Structure):
    _fields_ = (
        ("library", ctypes.c_char_p),
        ("cache", ctypes.c_char_p),
        ("device", ctypes.c_char_p),
        ("trusted_sources", ctypes.c_int32),
        ("profiling", ctypes.c_int32),
    )


class _LiteRtOptions(ctypes.Structure):
    _fields_ = (("library", ctypes.c_char_p), ("accelerator", ctypes.c_char_p))


class _Options(ctypes.Structure):
    _fields_ = (
        ("threads", ctypes.c_int32),
        ("cores", ctypes.POINTER(ctypes.c_int32)),
        ("n_cores", ctypes.c_int32),
        ("opencl", ctypes.POINTER(_OpenCLOptions)),
        ("litert", ctypes.POINTER(_LiteRtOptions)),
    )


class _Array(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("bytes", ctypes.c_int64))


class StandaloneSession(Closing):
    """A standalone model that is ready to run. The calls are those of `Session`: `get_inputs`, `get_outputs`, `run`.

    Concurrent runs take turns.
    """

    def __init__(
        self, path: str | os.PathLike[str], threads: int | None = None, *, trusted_sources: bool = False
    ) -> None:
        """Loads a model file.

        Args:
            path: a file that `nnstretch compile --standalone` wrote. It must not change until the session is closed.
            threads: CPU threads; None: as compiled.
            trusted_sources: refuse a model whose OpenCL sources differ from the installed ones.

        Raises:
            FileError: there is no such file.
            PackageError: it is no model file, is damaged, is for another kind of CPU, has OpenCL sources that are not
                trusted, or its OpenCL device or LiteRT is missing or fails.
            BuildError: the library cannot be built.
        """
        self._model = ctypes.c_void_p()
        path = Path(path)
        head = read_head(path)
        self._library = _library(path, head.isa)
        opencl = _opencl_options(trusted_sources) if head.has_devices else None
        litert = _litert_options() if head.has_litert else None
        options = _Options(threads or 0, None, 0, opencl and ctypes.pointer(opencl), litert and ctypes.pointer(litert))
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        if self._library.nns_model_load_with(
            os.fsencode(path), ctypes.byref(options), ctypes.byref(self._model), error, len(error)
        ):
            raise PackageError(error.value.decode(errors="replace"))
        self._inputs = self._tensors("input")
        self._outputs = self._tensors("output")
        self._arguments = Arguments(self._inputs, self._outputs)

    def get_inputs(self) -> list[NodeArg]:
        """Name, shape and type of every input."""
        return [node_arg(tensor) for tensor in self._inputs]

    def get_outputs(self) -> list[NodeArg]:
        """Name, shape and type of every output."""
        return [node_arg(tensor) for tensor in self._outputs]

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Runs the model once and returns the named outputs as new arrays.

        Args:
            output_names: the outputs to return, in this order; all if None.
            feeds: an array for each input.

        Raises:
            FeedError: unknown or missing names, wrong shapes or types.
            UsageError: the session is closed.
        """
        if not self._model.value:
            raise UsageError("the session is closed; open the model again")
        self._arguments.check_names(output_names)
        arrays, written = self._arguments.arrays(feeds), self._arguments.new_outputs()
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        status = self._library.nns_model_run_sized(
            self._model, _described(arrays), len(arrays), _described(written), len(written), error, len(error)
        )
        if status:
            raise FeedError(error.value.decode(errors="replace"))
        return self._arguments.chosen(output_names, written)

    def close(self) -> None:
        """Frees the model and ends its threads."""
        model, self._model = self._model, ctypes.c_void_p()
        if model.value:
            self._library.nns_model_free(model)

    def _tensors(self, kind: str) -> list[PlanTensor]:
        count = getattr(self._library, f"nns_model_{kind}_count")(self._model)
        describe, dtype = getattr(self._library, f"nns_model_{kind}"), self._library.nns_dtype_name
        found = [describe(self._model, index).contents for index in range(count)]
        return [
            PlanTensor(
                tensor.name.decode(), TensorType(tuple(tensor.shape[: tensor.rank]), dtype(tensor.dtype).decode())
            )
            for tensor in found
        ]


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
    library.nns_model_load_with.argtypes = (
        *(ctypes.c_char_p, ctypes.POINTER(_Options), ctypes.POINTER(ctypes.c_void_p)),
        *text,
    )
    library.nns_model_run_sized.argtypes = (ctypes.c_void_p, *arrays, *arrays, *text)
    library.nns_model_free.argtypes = (ctypes.c_void_p,)
    library.nns_model_free.restype = None
    library.nns_dtype_name.restype = ctypes.c_char_p
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


def _litert_options() -> _LiteRtOptions:
    """Options with the library of LiteRT's package, unless NNSTRETCH_LITERT names one or there is none."""
    library = None if os.environ.get(LITERT_VARIABLE) else packaged_library()
    return _LiteRtOptions(None if library is None else os.fsencode(library), None)


def _described(arrays: Sequence[np.ndarray]) -> Any:
    return (_Array * len(arrays))(*(_Array(array.ctypes.data, array.nbytes) for array in arrays))
