"""LiteRT delegates: the code that computes a model's layers.

    delegate := name ["?" key "=" value ("&" key "=" value)*]

Names are `xnnpack` (LiteRT's default on CPUs), `builtin` (its kernels without a delegate), `gpu` (the library of the GPU
delegate), `npu` (in standalone models alone) and paths of libraries that create one (`tflite_plugin_create_delegate`).
Libraries interpret their options.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nnstretch.errors import DeviceError, UsageError

XNNPACK, BUILTIN, GPU, NPU = "xnnpack", "builtin", "gpu", "npu"
GPU_LIBRARY = "libtensorflowlite_gpu_delegate.so"
"""Library of the GPU delegate, found on the system's library path."""

_FUNCTIONS = ("tflite_plugin_create_delegate", "tflite_plugin_destroy_delegate")


@dataclass(frozen=True)
class Delegate:
    """A delegate with its options.

    Attributes:
        name: `xnnpack`, `builtin`, `gpu`, `npu`, or the path of a library.
        options: options of a library: key -> value.
    """

    name: str = XNNPACK
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def library(self) -> str | None:
        """The library that creates it; None for `xnnpack`, `builtin` and `npu`."""
        if self.name in (XNNPACK, BUILTIN, NPU):
            return None
        return GPU_LIBRARY if self.name == GPU else self.name

    @property
    def identity(self) -> str:
        """Part of the fingerprint of measurements: name, options, and size and time of a library."""
        options = "".join(f" {key}={value}" for key, value in sorted(self.options.items()))
        library = self.library
        if library is None or not Path(library).is_file():
            return f"{self.name}{options}"
        about = Path(library).stat()
        return f"{self.name}{options} {about.st_size} {about.st_mtime_ns}"

    def arguments(self, interpreter: Any) -> dict[str, Any]:
        """Arguments of `interpreter.Interpreter` that select the delegate.

        Raises:
            DeviceError: the library cannot be loaded or creates no delegate, or only standalone models have the delegate.
        """
        if self.name == NPU:
            raise DeviceError(
                "the delegate npu works in standalone models for other machines alone; name the path of a delegate's library, "
                "or add --standalone and --target to compile"
            )
        if self.name == XNNPACK:
            return {}
        if self.library is None:
            plain = interpreter.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
            return {"experimental_op_resolver_type": plain}
        try:
            _check_library(self.library)
            made = interpreter.load_delegate(self.library, dict(self.options))
        except (OSError, ValueError, RuntimeError) as error:
            raise DeviceError(
                f"the delegate {self.name} cannot be used: {' '.join(str(error).split()) or type(error).__name__}; "
                "name a library that creates a delegate on this machine, or omit the delegate for xnnpack"
            ) from error
        return {"experimental_delegates": [made]}

    def __str__(self) -> str:
        options = "&".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.name}?{options}" if options else self.name


def _check_library(path: str) -> None:
    """Checks a library before LiteRT loads it, because LiteRT leaves a half-built object behind when that fails.

    Raises:
        OSError: the library cannot be loaded.
        ValueError: the library creates no delegates.
    """
    library = ctypes.CDLL(path)
    missing = [name for name in _FUNCTIONS if not hasattr(library, name)]
    if missing:
        raise ValueError(f"the library has no function {missing[0]}")


def parse_delegate(text: str) -> Delegate:
    """Parses the text after `litert:`.

    Raises:
        UsageError: the text is malformed.
    """
    name, _, rest = text.partition("?")
    pairs = [part.partition("=") for part in rest.split("&") if part]
    options = {key: value for key, equals, value in pairs if key and equals}
    if len(options) != len(pairs) or not (name in (XNNPACK, BUILTIN, GPU, NPU) or "/" in name):
        raise UsageError(
            f"delegate {text!r} is not understood; write {XNNPACK}, {BUILTIN}, {GPU}, {NPU} or the path of a library with a "
            "slash in it, and options as in ./libnpu.so?key=value&key=value"
        )
    made = Delegate(str(Path(name).absolute()) if "/" in name else name, MappingProxyType(options))
    if options and made.library is None:
        raise UsageError(f"delegate {text!r}: {name} has no options; those of a library follow its path")
    return made
