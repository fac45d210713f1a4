"""Optional libraries and the extras that install them.

Modules import optional libraries plainly. Public functions and the command line run within `extras_named`, so a library that
is not installed is one `MissingExtraError` wherever the import stands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from nnstretch.errors import MissingExtraError

EXTRAS: Mapping[str, str] = {
    "PIL": "data",
    "adbutils": "adb",
    "ai_edge_litert": "litert",
    "cmaes": "auto",
    "flatbuffers": "litert",
    "grpc": "grpc",
    "ncnn": "bench",
    "openvino": "bench",
    "optuna": "sweep",
    "optunahub": "auto",
    "pnnx": "bench",
    "psycopg": "sweep",
    "pycocotools": "detection",
    "resvg_py": "report",
    "sklearn": "data",
    "sqlalchemy": "sweep",
    "timm": "train",
    "torch": "train",
    "torchvision": "train",
    "xgboost": "tune",
}
"""Module that may be absent -> the extra of this package that installs it."""


@contextmanager
def extras_named() -> Iterator[None]:
    """Names the extra of an optional library that cannot be imported; also a decorator.

    Raises:
        MissingExtraError: a module of `EXTRAS` is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in EXTRAS:
            raise
        raise MissingExtraError(
            f"this needs {library}, which is not installed; pip install 'nnstretch[{EXTRAS[library]}]'"
        ) from error
