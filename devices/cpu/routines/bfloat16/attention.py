"""Attention whose products are of bfloat16."""

from __future__ import annotations

from nnstretch.devices.base.routine import Descriptor
from nnstretch.devices.cpu.routines.attention import Attention
from nnstretch.devices.cpu.routines.bfloat16.convolution import FEATURES
from nnstretch.graph.dtypes import BFLOAT16
from nnstretch.graph.layer import Layer


class AttentionOfBfloat16(Attention):
    """Rounds queries, keys, values and their weights to bfloat16; scores, softmax and sums are in float32.

    Routine parameters: those of `Attention`.
    """

    descriptor = Descriptor("cpu", BFLOAT16, "attention")
    rounds_to = BFLOAT16
    family = "attention_bfloat16"

    def supports(self, layer: Layer) -> bool:
        return not self.features.isdisjoint(FEATURES) and super().supports(layer)


ROUTINES = (AttentionOfBfloat16,)
