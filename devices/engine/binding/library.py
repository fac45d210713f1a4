"""The engine's C interface, loaded once per process."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.devices.engine.build.engine_library import build_engine
from nnstretch.errors import BuildError, DeviceError, FeedError, PackageError

if TYPE_CHECKING:
    import numpy as np

ABI = 6
"""NNS_ABI of nns_engine.h."""

MAX_READS, MAX_WRITES = 16, 4
"""NNS_MAX_READS, NNS_MAX_WRITES: operands of one step."""
BUFFER_ALIGNMENT = 4
"""NNS_BUFFER_ALIGNMENT: buffers begin at multiples of this many bytes of their regions."""

MAX_CORES = 1024
"""NNS_MAX_CORES: threads of one queue."""

MAX_RATIO = 65536
"""NNS_MAX_RATIO: of one thread."""

ERROR_BYTES = 512

_CLOCK_READINGS = 3
_STEADY_READINGS, _MOST_READINGS = 12, 60
"""Readings of a clock without a faster one after which it has risen, and after which it counts as risen."""
_FASTER = 1.01

Pointer = ctypes.c_void_p
Call = ctypes.CFUNCTYPE(ctypes.c_int32, Pointer, ctypes.c_int64, ctypes.POINTER(Pointer), ctypes.POINTER(Pointer))
"""nns_call: a callback for steps of kind NNS_STEP_CALL."""


class Region(ctypes.Structure):
    """nns_region: memory bound to a region of a program."""

    _fields_ = (
        ("host", Pointer),
        ("mem", Pointer),
        ("sharing", ctypes.c_int32),
        ("queue", ctypes.c_int32),
    )


class Launch(ctypes.Structure):
    """nns_launch: an OpenCL kernel with its sizes."""

    _fields_ = (
        ("kernel", Pointer),
        ("dimensions", ctypes.c_int32),
        ("global_size", ctypes.c_size_t * 3),
        ("local_size", ctypes.c_size_t * 3),
    )


class Bindings(ctypes.Structure):
    """nns_bindings: the memory, kernels and functions that the numbers of a program refer to."""

    _fields_ = (
        ("regions", ctypes.POINTER(Region)),
        ("launches", ctypes.POINTER(Launch)),
        ("n_launches", ctypes.c_int64),
        ("command_queues", ctypes.POINTER(Pointer)),
        ("call", Call),
        ("semaphores", ctypes.POINTER(Launch)),
        ("flags", Pointer),
        ("trace_queues", ctypes.POINTER(Pointer)),
        ("call_context", Pointer),
    )


class Feeds(ctypes.Structure):
    """nns_feeds: the inputs and outputs of a run, each as the words of an nns_input or nns_output: address and bytes."""

    _fields_ = (
        ("inputs", ctypes.POINTER(ctypes.c_int64)),
        ("outputs", ctypes.POINTER(ctypes.c_int64)),
        ("n_inputs", ctypes.c_int64),
        ("n_outputs", ctypes.c_int64),
    )


class Trace(ctypes.Structure):
    """nns_trace: times of one run."""

    _fields_ = (
        ("steps", ctypes.POINTER(ctypes.c_int64)),
        ("waits", ctypes.POINTER(ctypes.c_int64)),
        ("begin", ctypes.c_int64),
        ("end", ctypes.c_int64),
    )


_INVALID = 1
"""NNS_EINVALID: the program or an argument is not valid."""

_WORDS = ctypes.POINTER(ctypes.c_int64)
_POINTERS = ctypes.POINTER(Pointer)
_TEXT = (ctypes.c_char_p, ctypes.c_int64)
_SIGNATURES: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    "nns_abi": (ctypes.c_int32, ()),
    "nns_block": (ctypes.c_int32, ()),
    "nns_kernel_count": (ctypes.c_int64, ()),
    "nns_kernel_name": (ctypes.c_char_p, (ctypes.c_int64,)),
    "nns_kernel_find": (ctypes.c_int64, (ctypes.c_char_p,)),
    "nns_kernel_missing_feature": (ctypes.c_char_p, (ctypes.c_char_p,)),
    "nns_opencl_load": (ctypes.c_int32, (ctypes.c_char_p, *_TEXT)),
    "nns_program_create": (
        ctypes.c_int32,
        (_WORDS, ctypes.c_int64, ctypes.POINTER(Bindings), _POINTERS, *_TEXT),
    ),
    "nns_program_record": (ctypes.c_int32, (Pointer, ctypes.c_int32, _WORDS, *_TEXT)),
    "nns_program_run": (ctypes.c_int32, (Pointer, ctypes.POINTER(Feeds), ctypes.POINTER(Trace), *_TEXT)),
    "nns_program_time": (
        ctypes.c_int32,
        (Pointer, ctypes.POINTER(Feeds), ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, _WORDS, _WORDS, *_TEXT),
    ),
    "nns_program_cancel": (ctypes.c_int64, (Pointer,)),
    "nns_program_failed_step": (ctypes.c_int64, (Pointer,)),
    "nns_program_destroy": (None, (Pointer,)),
    "nns_peak_gflops": (ctypes.c_double, (ctypes.c_int32,)),
    "nns_clock_gflops": (ctypes.c_double, ()),
    "nns_flush": (None, (Pointer, ctypes.c_int64)),
    "nns_crash_line": (None, (ctypes.c_char_p,)),
}


def engine_error(status: int, text: ctypes.Array[ctypes.c_char]) -> PackageError | DeviceError:
    """The error of an nns_status that is not 0, and the text that came with it."""
    return (PackageError if status == _INVALID else DeviceError)(text.value.decode(errors="replace"))


class Engine:
    """A loaded engine library.

    Attributes:
        path: the shared library.
        library: its functions, with argument types set.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.library = ctypes.CDLL(str(path))
        except OSError as error:
            raise BuildError(f"cannot load the engine {path}: {error}; delete the file to build it again") from error
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self.library, name)
            function.restype, function.argtypes = result, arguments
        found = self.library.nns_abi()
        if found != ABI:
            raise BuildError(f"the engine {path} has interface {found}, this version needs {ABI}; delete the file")

    @property
    def block(self) -> int:
        """Floats per vector: the block of the blocked layout."""
        return int(self.library.nns_block())

    @cached_property
    def _numbers(self) -> dict[str, int]:
        names = [self.library.nns_kernel_name(i) for i in range(self.library.nns_kernel_count())]
        return {name.decode(): i for i, name in enumerate(names)}

    def kernel_names(self) -> tuple[str, ...]:
        """Names of all kernels, by number."""
        return tuple(self._numbers)

    def find(self, kernel: str) -> int:
        """The number of a kernel in this engine.

        Raises:
            PackageError: it has none of that name.
            DeviceError: it has one, which requires a feature that this CPU lacks.
        """
        number = self._numbers.get(kernel)
        if number is None:
            missing = self.library.nns_kernel_missing_feature(kernel.encode())
            if missing:
                raise DeviceError(
                    f"this CPU lacks {missing.decode()}, which the kernel {kernel!r} requires; compile the package here"
                )
            raise PackageError(f"the engine has no kernel {kernel!r}; compile the package again with this version")
        return number

    def load_opencl(self, path: str | Path) -> None:
        """Resolves the OpenCL functions from a shared library that links an ICD loader.

        Raises:
            DeviceError: the library cannot be loaded or lacks a function.
        """
        self.checked(self.library.nns_opencl_load, os.fsencode(path))

    def checked(self, function: Callable[..., int], *arguments: Any) -> None:
        """Calls a function of the engine and raises its error.

        Args:
            function: returns an nns_status and takes a text buffer last.
            arguments: before the buffer.
        """
        text = ctypes.create_string_buffer(ERROR_BYTES)
        status = function(*arguments, text, ERROR_BYTES)
        if status:
            raise engine_error(status, text)

    def peak_gflops(self, core: int | None = None, milliseconds: int = 100) -> float:
        """Measured float32 peak of one thread in GFLOP/s, on `core` or on the current core.

        Raises:
            FeedError: this process may not run on `core`.
        """
        with _on_core(core):
            return float(self.library.nns_peak_gflops(milliseconds))

    def clock_gflops(self, core: int | None = None, *, awake: bool = False) -> float:
        """Current GFLOP/s of one thread in a matrix product from the L1 cache, on `core` or on the current core.

        It follows the core's clock and the load of hyper-threads on the same core. A core that was idle takes up to some
        milliseconds of work to reach its clock, so it is read until the readings no longer rise. The result is the best of
        a few further ones, since any may be interrupted. After the call the core is at its clock, as it is within a network.

        Args:
            core: the one to read.
            awake: it has worked within the last millisecond or two, and need not be waited for.

        Raises:
            FeedError: this process may not run on `core`.
        """
        with _on_core(core):
            if not awake:
                wait_for_rise(self.library.nns_clock_gflops)
            return float(max(self.library.nns_clock_gflops() for _ in range(_CLOCK_READINGS)))

    def flush(self, memory: np.ndarray) -> None:
        """Evicts a contiguous array from all caches, if the CPU has an instruction for that."""
        self.library.nns_flush(memory.ctypes.data, memory.nbytes)

    def set_crash_line(self, text: str) -> None:
        """Sets what is written to the standard error, after the signal's name, if a signal such as SIGSEGV ends the process.

        Handlers that there were run next.
        """
        self.library.nns_crash_line(text.encode())


def wait_for_rise(read: Callable[[], float]) -> None:
    """Reads a clock until it no longer rises."""
    best, since = 0.0, 0
    for _ in range(_MOST_READINGS):
        value = read()
        since = 0 if value > _FASTER * best else since + 1
        best = max(best, value)
        if since == _STEADY_READINGS:
            return


@contextmanager
def _on_core(core: int | None) -> Iterator[None]:
    """Pins the calling thread to `core`; None: does nothing."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {core})
    except OSError as error:
        raise FeedError(f"core {core} cannot be used; this process may use {sorted(before)}") from error
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@cache
def engine() -> Engine:
    """The engine for this machine, built on first use and loaded once per process.

    Raises:
        BuildError: it cannot be built or loaded.
    """
    return Engine(build_engine())
