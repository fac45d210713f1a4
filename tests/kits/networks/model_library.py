"""The C library of standalone models, as a program in C uses it."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from nnstretch.devices.engine.build.instruction_sets import parse_target
from nnstretch.devices.engine.build.standalone import build_binaries
from nnstretch.package.standalone_session import _LiteRtOptions, _OpenCLOptions, _Options

_ERROR_BYTES = 512


class _Array(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("bytes", ctypes.c_int64))


class ModelError(Exception):
    """A call of the library has failed; the text is its line."""


class ModelLibrary:
    """A copy of the library with static variables of its own, so that it opens OpenCL by itself.

    Args:
        folder: where the copy is written.
        opencl: the OpenCL library to open; None: the usual one.
        cache: the folder of built kernels.
        litert: the LiteRT library to open; None: the usual one.
    """

    def __init__(
        self, folder: Path, opencl: str | None = None, cache: Path | None = None, litert: Path | None = None
    ) -> None:
        made = build_binaries(parse_target("local")).library
        self._library = ctypes.CDLL(str(shutil.copy(made, folder / "libnnstretch.so")))
        self._opencl, self._cache, self._litert = opencl, cache, litert
        self._library.nns_model_free.argtypes = (ctypes.c_void_p,)

    def load(
        self, path: Path, *, device: str = "", trusted: bool = False, threads: int = 0, accelerator: str | None = None
    ) -> int:
        """The handle of a loaded model, which `free` takes.

        Raises:
            ModelError: the library refuses it.
        """
        texts = [None if text is None else str(text).encode() for text in (self._opencl, self._cache, device)]
        litert = _LiteRtOptions(*(None if one is None else str(one).encode() for one in (self._litert, accelerator)))
        opencl = _OpenCLOptions(*texts, trusted, 0)
        options = _Options(threads, None, 0, ctypes.pointer(opencl), ctypes.pointer(litert))
        model = ctypes.c_void_p()
        self._call(self._library.nns_model_load_with, str(path).encode(), ctypes.byref(options), ctypes.byref(model))
        assert model.value is not None
        return model.value

    def free(self, model: int) -> None:
        """Frees a loaded model."""
        self._library.nns_model_free(model)

    @contextmanager
    def loaded(self, path: Path, *, device: str = "", trusted: bool = False, threads: int = 0) -> Iterator[int]:
        """A loaded model within the block; arguments and errors as for `load`."""
        model = self.load(path, device=device, trusted=trusted, threads=threads)
        try:
            yield model
        finally:
            self.free(model)

    def run(self, model: int, x: np.ndarray, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
        """The outputs of a model with one input.

        Raises:
            ModelError: the run has failed.
        """
        outputs = [np.full(shape, np.nan, np.float32) for shape in shapes]
        given = _Array(x.ctypes.data, x.nbytes)
        made = (_Array * len(outputs))(*(_Array(y.ctypes.data, y.nbytes) for y in outputs))
        self._call(
            self._library.nns_model_run_sized, ctypes.c_void_p(model), ctypes.byref(given), 1, made, len(outputs)
        )
        return outputs

    def device_names(self) -> list[str]:
        """The names of all OpenCL devices.

        Raises:
            ModelError: there is none.
        """
        size = 4 * 128
        texts = [None if text is None else str(text).encode() for text in (self._opencl, self._cache)]
        devices = ctypes.create_string_buffer(8 * (size + 4))
        count = ctypes.c_int32()
        self._call(
            self._library.nns_opencl_devices,
            *(ctypes.byref(_OpenCLOptions(*texts)), devices, 8, ctypes.byref(count)),
        )
        starts = [i * (size + 4) + 128 for i in range(count.value)]
        return [devices.raw[start : start + 128].partition(b"\0")[0].decode() for start in starts]

    def _call(self, function: object, *arguments: object) -> None:
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        if function(*arguments, error, ctypes.c_size_t(_ERROR_BYTES)):  # type: ignore[operator]
            text = error.value.decode()
            assert text, "a failure has a reason"
            assert "\n" not in text
            raise ModelError(text)
