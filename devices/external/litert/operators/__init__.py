"""Layers as operators of TFLite: a class per family, with a method per layer operator."""

from __future__ import annotations

from nnstretch.devices.external.litert.operators.arithmetic import Arithmetic
from nnstretch.devices.external.litert.operators.convolution import Convolutions
from nnstretch.devices.external.litert.operators.family import OperatorFamily
from nnstretch.devices.external.litert.operators.movement import Movements
from nnstretch.devices.external.litert.operators.normalization import Normalizations
from nnstretch.devices.external.litert.operators.padding import Paddings
from nnstretch.devices.external.litert.operators.pooling import Pools
from nnstretch.devices.external.litert.operators.product import Products
from nnstretch.devices.external.litert.operators.quantization import Quantizations
from nnstretch.devices.external.litert.operators.reduction import Reductions
from nnstretch.devices.external.litert.operators.resize import Resizes
from nnstretch.devices.external.litert.operators.selection import Selections

FAMILIES: tuple[type[OperatorFamily], ...] = (
    Convolutions,
    Products,
    Pools,
    Arithmetic,
    Normalizations,
    Reductions,
    Resizes,
    Paddings,
    Movements,
    Selections,
    Quantizations,
)
"""An operator of `nnstretch.graph.layer.OPERATORS` is a method of one of these, with its row in `lowerings`."""
