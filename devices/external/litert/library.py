"""The C library of LiteRT, which standalone models open."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

LITERT_LIBRARY = "libLiteRt.so"
LITERT_VARIABLE = "NNSTRETCH_LITERT"
"""Environment variable that names the library."""
_PACKAGE = "ai_edge_litert"


def packaged_library() -> Path | None:
    """The library in LiteRT's Python package; None if the package is not installed or has none."""
    spec = find_spec(_PACKAGE)
    folders = [] if spec is None else spec.submodule_search_locations or []
    return next((path for folder in folders if (path := Path(folder) / LITERT_LIBRARY).is_file()), None)
