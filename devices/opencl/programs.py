"""Programs of one OpenCL device: builds kernel files, and keeps what drivers have made of them."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from nnstretch.devices.opencl import drivers
from nnstretch.devices.opencl.crashes import compiling
from nnstretch.devices.opencl.program_cache import CachedProgram
from nnstretch.devices.opencl.properties import DeviceInfo
from nnstretch.devices.opencl.sources import kernel_integers, kernel_source
from nnstretch.errors import BuildError

if TYPE_CHECKING:
    import pyopencl

_NO_LOG = "<error retrieving log>"
"""What pyopencl has in the place of a log that the driver does not give."""
_OPTIONS: tuple[str, ...] = ("-cl-mad-enable", "-cl-no-signed-zeros")
_DOT_PRODUCTS = "__opencl_c_integer_dot_product_input_4x8bit_packed"
"""The feature of OpenCL C 3.0 that kernels with dot products of packed int8 ask for."""

Defines = Sequence[tuple[str, int]]
"""Macros and their values."""


class Programs:
    """Programs built for one device, each once.

    Attributes:
        integers: kernel -> integers of its argument struct, for the kernels of the programs so far.

    Args:
        device: the device.
        info: its properties.
        context: of the programs.
        sources: texts of kernel files that replace the installed ones.
    """

    def __init__(
        self,
        device: pyopencl.Device,
        info: DeviceInfo,
        context: pyopencl.Context,
        sources: Mapping[str, str] | None = None,
    ) -> None:
        self.integers: dict[str, int] = {}
        self._device, self._info, self._context, self._sources = device, info, context, sources
        self._programs: dict[tuple[str, tuple[tuple[str, int], ...]], pyopencl.Program] = {}
        self._lock = threading.Lock()

    def has(self, name: str) -> bool:
        """Whether kernels of a file can be built here."""
        return self._sources is None or name in self._sources

    def program(self, source: str, defines: Defines) -> pyopencl.Program:
        """The program of kernel file `source` with macros `defines`, built once and cached on disk.

        Raises:
            BuildError: it does not compile.
            FileError: the cache cannot be written.
        """
        key = (source, tuple(defines))
        with self._lock:
            if key not in self._programs:
                self._programs[key] = self._load(source, defines)
            return self._programs[key]

    def _load(self, source: str, defines: Defines) -> pyopencl.Program:
        text = kernel_source(source) if self._sources is None else self._sources.get(source)
        if text is None:
            raise BuildError(f"the package holds no OpenCL source {source}; compile it again with this version")
        self.integers |= kernel_integers(text)
        options = [f"-cl-std={self._standard(text)}", *_OPTIONS, *(f"-D{name}={value}" for name, value in defines)]
        program = CachedProgram((text, *options, self._info.platform, self._info.name, self._info.driver))
        # PoCL's own cache also covers work group sizes, which its binaries do not.
        if self._info.platform == drivers.POCL:
            return self._build(source, text, options)
        return self._from_binary(source, program, options) or self._to_binary(source, text, options, program)

    def _standard(self, text: str) -> str:
        """The version of OpenCL C for a source: 3.0 for dot products of packed int8 on devices that have them."""
        has_dot_products = (
            self._device.version >= "OpenCL 3" and "cl_khr_integer_dot_product" in self._device.extensions
        )
        return "CL3.0" if has_dot_products and _DOT_PRODUCTS in text else "CL1.2"

    def _build(self, source: str, text: str, options: list[str]) -> pyopencl.Program:
        import pyopencl as cl

        program = cl.Program(self._context, text)
        try:
            with compiling(self._info, source):
                return drivers.build(program, options)
        except cl.Error as error:
            raise BuildError(
                f"OpenCL source {source} ({' '.join(options)}) does not compile on {self._info.name}: {_log_line(error)}"
            ) from error

    def _from_binary(self, source: str, known: CachedProgram, options: list[str]) -> pyopencl.Program | None:
        """The program of a cached binary; None if it is missing or damaged, or the driver rejects it."""
        import pyopencl as cl

        if not (binary := known.binary):
            return None
        try:
            with compiling(self._info, source):
                return drivers.build(cl.Program(self._context, [self._device], [binary]), options)
        except cl.Error:
            return None

    def _to_binary(self, source: str, text: str, options: list[str], known: CachedProgram) -> pyopencl.Program:
        program = self._build(source, text, options)
        known.keep_binary(bytes(program.binaries[0]))
        return program


def _log_line(error: Exception) -> str:
    """The first line of a build log that names an error, else the first line of the message, as without a log."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and line.strip() != _NO_LOG]
    return next(
        (line for line in lines if re.search(r"\berror\b:?", line, re.IGNORECASE) and "clBuild" not in line), lines[0]
    )
