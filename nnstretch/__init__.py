"""nnstretch: branched CNNs that run on several processors at the same time, each layer by its fastest implementation.

    import nnstretch as nns

    session = nns.compile("resnet50", processors="cpu")   # a Session, called as ONNX Runtime's are
    (y,) = session.run(None, {"x": x})
    designs = nns.stretch(module, example_input, "cpu:0,opencl:0@1")   # branched networks with inherited weights

`compile` takes the fields of `CompileOptions`, `stretch` those of `StretchOptions`. `sweep` explores designs for objectives of
your own, `quantize` and `export` write files that other engines read. `list_devices`, `list_models` and `create_model` say what
there is. Errors in models, files, processors and values of options are `NNStretchError`s; a misspelt argument is a `TypeError`.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

from nnstretch.errors import (
    BuildError,
    DeadlineError,
    DesignError,
    DeviceError,
    FeedError,
    FileError,
    MissingExtraError,
    ModelError,
    NNStretchError,
    PackageError,
    SelectionError,
    UsageError,
)

__version__ = "0.1.0"

# ONNX Runtime is loaded after this. It would report its use to a server of others, and leave files in the user's folders.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

if TYPE_CHECKING:
    from nnstretch.api.compile import compile
    from nnstretch.api.devices import DeviceInfo, list_devices
    from nnstretch.api.export import export
    from nnstretch.api.models import create_model, list_models
    from nnstretch.api.options import CompileOptions, StretchOptions
    from nnstretch.api.quantize import quantize
    from nnstretch.api.stretch import stretch
    from nnstretch.api.sweep import sweep
    from nnstretch.branching.design.design import Design
    from nnstretch.branching.search.limits import SearchLimits
    from nnstretch.branching.stretch import StretchResult
    from nnstretch.quantization import Quantized
    from nnstretch.scheduler.plan.schema import Plan
    from nnstretch.scheduler.runtime.base_session import Binding, Session
    from nnstretch.sweeps.designs import SweepPoint, SweepResult

# Loaded on first use, so that `import nnstretch` needs neither numpy nor torch.
_LATER = {
    "Binding": "nnstretch.scheduler.runtime.base_session",
    "CompileOptions": "nnstretch.api.options",
    "Design": "nnstretch.branching.design.design",
    "DeviceInfo": "nnstretch.api.devices",
    "Plan": "nnstretch.scheduler.plan.schema",
    "Quantized": "nnstretch.quantization",
    "SearchLimits": "nnstretch.branching.search.limits",
    "Session": "nnstretch.scheduler.runtime.base_session",
    "StretchOptions": "nnstretch.api.options",
    "StretchResult": "nnstretch.branching.stretch",
    "SweepPoint": "nnstretch.sweeps.designs",
    "SweepResult": "nnstretch.sweeps.designs",
    "compile": "nnstretch.api.compile",
    "create_model": "nnstretch.api.models",
    "export": "nnstretch.api.export",
    "list_devices": "nnstretch.api.devices",
    "list_models": "nnstretch.api.models",
    "quantize": "nnstretch.api.quantize",
    "stretch": "nnstretch.api.stretch",
    "sweep": "nnstretch.api.sweep",
}

__all__ = [
    "Binding",
    "BuildError",
    "CompileOptions",
    "DeadlineError",
    "Design",
    "DesignError",
    "DeviceError",
    "DeviceInfo",
    "FeedError",
    "FileError",
    "MissingExtraError",
    "ModelError",
    "NNStretchError",
    "PackageError",
    "Plan",
    "Quantized",
    "SearchLimits",
    "SelectionError",
    "Session",
    "StretchOptions",
    "StretchResult",
    "SweepPoint",
    "SweepResult",
    "UsageError",
    "__version__",
    "compile",
    "create_model",
    "export",
    "list_devices",
    "list_models",
    "quantize",
    "stretch",
    "sweep",
]


def __getattr__(name: str) -> Any:
    """Loads a public name on first use."""
    if name in _LATER:
        from nnstretch.support.extras import extras_named

        with extras_named():
            return getattr(importlib.import_module(_LATER[name]), name)
    raise AttributeError(f"module 'nnstretch' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
