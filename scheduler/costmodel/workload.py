"""Workloads parsed from the text of tuning keys: shapes and arithmetic of layers.

The profile store identifies layers by the text of their workload (`Layer.workload`). Features come from the text, so they are
equal for a layer to predict and for a stored measurement.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from nnstretch.graph.layer import FUSION_GROUP, TensorType, multiply_accumulates
from nnstretch.support.settings import transfer_delay_us

Shape = tuple[int, ...]

_TYPE = re.compile(r"(?P<name>[a-z]+(?P<bits>\d+)?)\[(?P<shape>[\d,]*)\]")
_BITS_OF_OTHERS = 8  # of types whose name has no number: bool
_TRANSFER = "transfer "


@dataclass(frozen=True)
class Tensor:
    """Shape of a tensor, and bytes per element."""

    shape: Shape
    width: int

    @property
    def bytes(self) -> int:
        """Bytes of the whole tensor, without padding."""
        return math.prod(self.shape) * self.width


@dataclass(frozen=True)
class Workload:
    """A parsed workload.

    Attributes:
        op: the layer's operator.
        inputs: types in the layer's order; None where an optional input is absent.
        constants: indices of the inputs that are weights.
        outputs: types of the outputs.
        attributes: numbers, texts and tuples of them.
        activation: name of the activation without its constants.
        chain: the workloads that an operator Chain computes one after another.
    """

    op: str
    inputs: tuple[Tensor | None, ...]
    constants: frozenset[int]
    outputs: tuple[Tensor, ...]
    attributes: Mapping[str, Any]
    activation: str
    chain: tuple[Workload, ...] = ()

    def has(self, index: int) -> bool:
        """Whether input `index` is present."""
        return index < len(self.inputs) and self.inputs[index] is not None

    @property
    def macs(self) -> int:
        """Multiply-accumulates, as `Layer.macs` counts them."""
        if self.chain:
            return sum(link.macs for link in self.chain)
        shapes = [None if t is None else t.shape for t in self.inputs]
        return multiply_accumulates(self.op, shapes, self.outputs[0].shape, self.attributes)

    @property
    def read_bytes(self) -> int:
        """Bytes of the run-time inputs."""
        return sum(t.bytes for i, t in enumerate(self.inputs) if t and i not in self.constants)

    @property
    def written_bytes(self) -> int:
        """Bytes of the outputs."""
        return sum(t.bytes for t in self.outputs)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the constants."""
        own = sum(t.bytes for i, t in enumerate(self.inputs) if t and i in self.constants)
        return own + sum(link.weight_bytes for link in self.chain)


@lru_cache(maxsize=8192)
def parse_workload(text: str) -> Workload | None:
    """The workload of a store's key; None if the key is not of a layer (a transfer) or is invalid."""
    if not text.startswith("{"):
        return None
    try:
        return _workload(json.loads(text))
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def transfer_workload(tensor: TensorType) -> str:
    """The store's key of a tensor's transfer. Delayed transfers are measured apart."""
    delay = transfer_delay_us()
    return f"{_TRANSFER}{tensor}{f' delayed by {delay:g} us' if delay else ''}"


def transfer_bytes(text: str) -> int | None:
    """Bytes of the transferred tensor; None if the key is not of a transfer."""
    try:
        return _tensor(text.removeprefix(_TRANSFER)).bytes if text.startswith(_TRANSFER) else None
    except ValueError:
        return None


def _workload(raw: Mapping[str, Any]) -> Workload:
    chain = tuple(_workload(json.loads(link)) for link in raw.get("chain", ()))
    if chain and raw["op"] != FUSION_GROUP:
        raise ValueError("only a chain consists of layers")
    return Workload(
        op=str(raw["op"]),
        inputs=tuple(None if t is None else _tensor(t) for t in raw["inputs"]),
        constants=frozenset(map(int, raw["constants"])),
        outputs=tuple(map(_tensor, raw["outputs"])),
        attributes={k: tuple(v) if isinstance(v, list) else v for k, v in raw["attributes"].items()},
        activation=str(raw["activation"]).partition("(")[0],
        chain=chain,
    )


def _tensor(text: str) -> Tensor:
    match = _TYPE.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is no type of a tensor")
    shape = tuple(int(size) for size in match["shape"].split(",") if size)
    return Tensor(shape, max(1, int(match["bits"] or _BITS_OF_OTHERS) // 8))
