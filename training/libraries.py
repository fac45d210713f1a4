"""timm and torchvision, which everything here imports through `library`.

The torchvision of PyPI is built for PyPI's torch, which has CUDA. Beside a CPU build of torch, the library with its operators
cannot be loaded, and the import of the package fails because it registers shapes for operators that nobody defined. The
package works once their schemas are there: transforms and models do not call them.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from typing import Any

_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def library(name: str) -> Any:
    """A module of timm or torchvision by its name, such as ``timm.optim``.

    Raises:
        ModuleNotFoundError: it is not installed; `nnstretch.support.extras` names the extra.
    """
    _import_torchvision()
    return import_module(name)


@cache
def _import_torchvision() -> Any:
    """Imports torchvision, with the schemas of its operators defined where that fails without them.

    Returns:
        The library that holds the schemas, which lives as long as this function's result; None if it was not needed.
    """
    try:
        import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    else:
        return None
    import torch

    schemas: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for operator in _OPERATORS:
        schemas.define(operator)
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]  # the failed import left parts of the package
    import_module("torchvision")
    return schemas
