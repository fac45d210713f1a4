"""The machine's data caches, and which of them a network's weights lie in."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from nnstretch.devices.base.routine import PLAIN
from nnstretch.graph.layer import Layer
from nnstretch.scheduler.measurement.store.rows import CacheState

_FOLDER = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_OWN, _SHARED = 1 << 20, 32 << 20  # bytes, of a machine that does not say
_FILLED = 0.5
"""A cache holds what takes this share of it; other cores, other processes and what a layer itself needs take the rest."""
_MOST_SHARED = 64 << 20
"""Of a larger shared cache others use the rest: the cores of a virtual machine see the cache of a whole server."""
_NEGLIGIBLE = 16 << 10
"""Weights of fewer bytes cost the same wherever they lie."""
_POOLS = frozenset({"MaxPool", "AveragePool", "GlobalPool"})


@dataclass(frozen=True)
class CacheSizes:
    """Bytes of the largest cache that a core has to itself, and of the largest that cores share."""

    own: int
    shared: int


@cache
def cache_sizes(folder: Path = _FOLDER) -> CacheSizes:
    """What the system says of the first core's caches, or what is usual where it says nothing."""
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
    """Where a layer finds its weights in a network that goes through `working_set` bytes from one run to the next.

    Caches are those of this machine if no others are given.
    """
    sizes = sizes or cache_sizes()
    if working_set <= _FILLED * sizes.own:
        return "warm"
    return "l3" if working_set <= _FILLED * min(sizes.shared, _MOST_SHARED) else "memory"


def layer_state(layer: Layer, network: CacheState) -> CacheState:
    """The state that costs of a layer are known by: with hardly any weights it costs the same wherever they lie."""
    light = layer.weight_bytes < _NEGLIGIBLE and not writes_afar(layer)
    return "l3" if network == "memory" and light else network


def writes_afar(layer: Layer) -> bool:
    """Whether some result of a layer is `written_afar` on this machine."""
    own = cache_sizes().own
    return any(written_afar(layer.op, PLAIN.bytes(t), own) for t in layer.outputs)


def written_afar(op: str, size: int, own: int) -> bool:
    """Whether a result goes where nothing has been since the run before, if weights do not stay in caches either.

    Large ones do. Others follow where those of earlier layers were, but for pools: they are mostly among the first layers, and
    keep more than they write from being overwritten.

    Args:
        op: operator of the layer.
        size: bytes of the result.
        own: bytes of the core's own caches.
    """
    return op in _POOLS or size > own // 2
