"""The machine's data caches, and the one that holds a network's weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from nnstretch.devices.base.routine import PLAIN
from nnstretch.graph.layer import Layer
from nnstretch.scheduler.measurement.store.rows import CacheState

_FOLDER = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_OWN, _SHARED = 1 << 20, 32 << 20  # bytes, if the system does not report them
_FILLED = 0.5
"""Usable share of a cache; other cores, other processes and the layer itself take the rest."""
_MOST_SHARED = 64 << 20
"""Usable bytes of a shared cache: a virtual machine sees the cache of the whole server."""
_NEGLIGIBLE = 16 << 10
"""Weights of fewer bytes take the same time from every cache."""
_POOLS = frozenset({"MaxPool", "AveragePool", "GlobalPool"})


@dataclass(frozen=True)
class CacheSizes:
    """Bytes of the largest cache that a core has to itself, and of the largest that cores share."""

    own: int
    shared: int


@cache
def cache_sizes(folder: Path = _FOLDER) -> CacheSizes:
    """Cache sizes of the first core by the system, or typical sizes if it has none."""
    sizes: dict[int, int] = {}
    for index in sorted(folder.glob("index*")):
        try:
            kind, level, size = ((index / name).read_text().strip() for name in ("type", "level", "size"))
            if kind != "Instruction":
                sizes[int(level)] = int(size[:-1]) * _UNITS[size[-1]]
        except (OSError, ValueError, KeyError, IndexError):
            continue
    own = sizes.get(2, _OWN)
    return CacheSizes(own, max(sizes.get(3, _SHARED if not sizes else own), own))


def network_state(working_set: int, sizes: CacheSizes | None = None) -> CacheState:
    """Where a layer finds its weights in a network that touches `working_set` bytes between two runs of the layer.

    Args:
        working_set: bytes of weights and activations.
        sizes: cache sizes; this machine's if None.
    """
    sizes = sizes or cache_sizes()
    if working_set <= _FILLED * sizes.own:
        return "warm"
    return "l3" if working_set <= _FILLED * min(sizes.shared, _MOST_SHARED) else "memory"


def layer_state(layer: Layer, network: CacheState, sizes: CacheSizes | None = None) -> CacheState:
    """The cache state in a layer's key; layers with negligible weights do not distinguish shared cache and memory.

    Args:
        layer: the layer.
        network: where the network's weights are.
        sizes: cache sizes; this machine's if None.
    """
    negligible = layer.weight_bytes < _NEGLIGIBLE and not writes_afar(layer, sizes)
    return "l3" if network == "memory" and negligible else network


def writes_afar(layer: Layer, sizes: CacheSizes | None = None) -> bool:
    """Whether an output of a layer is `written_afar` on a machine with these caches; on this one if None."""
    own = (sizes or cache_sizes()).own
    return any(written_afar(layer.op, PLAIN.bytes(t), own) for t in layer.outputs)


def written_afar(op: str, size: int, own: int) -> bool:
    """Whether an output goes to memory that is in no cache, in a network whose weights do not stay in caches.

    Large outputs do. Small ones reuse the memory of earlier layers, except for pools: most are among the first layers, whose
    inputs are larger than their outputs and occupy the memory.

    Args:
        op: operator of the layer.
        size: bytes of the output.
        own: bytes of the core's own caches.
    """
    return op in _POOLS or size > own // 2
