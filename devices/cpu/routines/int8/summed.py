"""Convolutions of int8 and the sum that reads them, as one: the residual blocks of networks that round what is added.

A quantised network rounds the result of a convolution before a residual is added, and rounds the sum again. The kernels do
both in registers, so the tensor between them is never stored.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from nnstretch.devices.algorithms.quantized_sums import conv_form, group_layouts, group_lowering, with_residual
from nnstretch.devices.base.routine import Descriptor, Layout, Lowering, Parameters
from nnstretch.devices.cpu.routines.int8.convolution import (
    DirectInt8Convolution,
    Int8Convolution,
    RowsInt8Convolution,
)
from nnstretch.graph.layer import FUSION_GROUP, Layer


class _Summed(Int8Convolution):
    """Base class: a fusion group of a convolution and the Add that reads it, computed as a convolution with a residual."""

    def supports(self, layer: Layer) -> bool:
        form = with_residual(layer) if layer.op == FUSION_GROUP else None
        return form is not None and super().supports(form)

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        return super().parameter_space(conv_form(layer))

    def search_space(self, layer: Layer) -> Sequence[Parameters]:
        return super().search_space(conv_form(layer))

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        return group_layouts(layer, *super().layouts(conv_form(layer), parameters))

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """The convolution's call, whose operands are the inputs of the group."""
        return group_lowering(layer, self._convolution(conv_form(layer), parameters))

    @abstractmethod
    def _convolution(self, form: Layer, parameters: Parameters) -> Lowering:
        """The call for a convolution with a residual."""


class SummedDirectConvolution(_Summed, DirectInt8Convolution):
    """`DirectInt8Convolution` of such a group."""

    descriptor = Descriptor("cpu", "int8", "direct_add")

    def _convolution(self, form: Layer, parameters: Parameters) -> Lowering:
        return DirectInt8Convolution.lower(self, form, parameters)


class SummedRowsConvolution(_Summed, RowsInt8Convolution):
    """`RowsInt8Convolution` of such a group."""

    descriptor = Descriptor("cpu", "int8", "rows_add")

    def _convolution(self, form: Layer, parameters: Parameters) -> Lowering:
        return RowsInt8Convolution.lower(self, form, parameters)


ROUTINES = (SummedRowsConvolution, SummedDirectConvolution)
