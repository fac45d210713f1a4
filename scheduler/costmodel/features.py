"""Features of a point (workload, routine, parameters, cores, cache state): what the cost model's trees may ask about.

ACLTuner (appendix F) describes a task by its shapes and a candidate by algorithm, kernel and the work of each core. Here these
are joined by what follows from them and trees cannot work out by comparing: multiplications that the algorithm needs,
bytes that move, what is computed in vain at the edges of tiles, and how evenly units of work fall to threads.

===================  =====================================================================================================
feature              meaning
===================  =====================================================================================================
batch … groups       shapes, kernel, strides, pads and dilations of a convolution or pool; of a chain's first layer
second_*             outputs, kernel and stride of a chain's second layer
source, target       channels per vector of the layouts between which a reorder changes
bias, residual       1 where the layer has them
activation           number of the activation's kind
log_macs             log2 of the multiply-accumulates of the layer
log_read, …          log2 of 1 + bytes of activations read, of those written, and of weights
intensity            log2 of multiply-accumulates per byte
log_products         log2 of the multiplications that the algorithm makes, edges of tiles included; of a pool, the elements
                     that it looks at
log_prepared         log2 of 1 + bytes of weights as the routine reads them (Winograd encodes them)
pixel_waste          pixels computed over pixels wanted, less 1; Winograd: of whole tiles
output_waste         output channels computed over those wanted, less 1
input_waste          input channels stored over those that there are, less 1
tile_pixels, …       register tile: pixels, output channels, and the product of both
unit_bytes           log2 of the bytes that a unit of work reads and writes, about
log_units            log2 of the units of work that threads share
cores                threads
idle                 share of the threads' time that is left over where units do not divide by threads
state                where weights lie: 0 in the core's own caches, 1 in the shared cache, 2 in memory
balance              sum of the cores' ratios over cores times the largest: how unequal they are
log_passes           log2 of the passes over the output in which a sum over input channels is made
parameter NAME       a routine parameter, as it is
op NAME              1 for that operator
routine NAME         1 for that routine
===================  =====================================================================================================

What a workload does not have is NaN, which trees treat as a case of its own. Names in lower case come first, in the order
above; those of the last three kinds follow in alphabetical order, as many as the measurements in hand have.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nnstretch.devices.algorithms.winograd import Axis, Division
from nnstretch.devices.base.routine import REORDER, Parameters
from nnstretch.graph.activation import ActivationKind
from nnstretch.scheduler.costmodel.workload import Shape, Workload
from nnstretch.scheduler.measurement.store.rows import CACHE_STATES, CacheState

FEATURES_VERSION = 2
"""To be raised whenever a feature changes its meaning: models of another version are trained again."""

NAMES = (
    *("batch", "channels", "height", "width", "outputs", "out_height", "out_width"),
    *("kernel_height", "kernel_width", "stride", "pads", "dilation", "groups", "per_group"),
    *("second_outputs", "second_kernel", "second_stride"),
    *("source", "target", "bias", "residual", "activation"),
    *("log_macs", "log_read", "log_written", "log_weights", "intensity", "log_products", "log_prepared"),
    *("pixel_waste", "output_waste", "input_waste", "tile_pixels", "tile_outputs", "tile"),
    *("unit_bytes", "log_units", "cores", "idle", "state", "balance", "log_passes"),
)
"""Features that every candidate has, in order."""

_NAN = math.nan
_STRASSEN = 7 / 8  # products that one step leaves


@dataclass(frozen=True)
class Machine:
    """What a processor contributes to features.

    Attributes:
        cores: threads that share the work of a layer.
        block: channels per vector of the blocked layout.
        ratios: relative speeds of the cores; empty if they are equal.
    """

    cores: int
    block: int
    ratios: tuple[int, ...] = ()

    @property
    def balance(self) -> float:
        """1 for equal cores, less the more they differ."""
        return sum(self.ratios) / (len(self.ratios) * max(self.ratios)) if self.ratios else 1.0


@dataclass(frozen=True)
class _Grid:
    """How a routine cuts a convolution into tiles and units of work.

    Attributes:
        pixels, outputs: register tile.
        computed: pixels that are computed.
        products: multiplications per multiply-accumulate of the layer, without what edges of tiles add.
        weights: prepared weights over the layer's.
        units: units of work.
        passes: passes over the output.
    """

    pixels: float = _NAN
    outputs: float = _NAN
    computed: float = _NAN
    products: float = 1.0
    weights: float = 1.0
    units: float = _NAN
    passes: float = 1.0


def features(
    workload: Workload, routine: str, parameters: Parameters, machine: Machine, state: CacheState
) -> dict[str, float]:
    """The features of a point by name, in the order of the module's text.

    Args:
        workload: what is computed.
        routine: descriptor of the routine, as text.
        parameters: of the routine.
        machine: the processor's threads and vectors.
        state: where the layer's weights lie when it begins.
    """
    head = workload.chain[0] if workload.chain else workload
    shape = _shapes(head)
    grid = _grid(workload, routine, parameters, machine.block)
    own = (*_second(workload), *_layouts(workload), *_fused(workload))
    values = (*shape.values(), *own, *_amounts(workload, shape, grid, machine, state))
    found = dict(zip(NAMES, map(float, values), strict=True))
    found[f"op {workload.op}"] = 1.0
    found.update((f"parameter {name}", float(value)) for name, value in sorted(parameters.items()))
    found[f"routine {routine}"] = 1.0
    return found


def columns(candidates: Iterable[Mapping[str, float]]) -> tuple[str, ...]:
    """Names of all features of `candidates`, in the order of the module's text."""
    names = {name for candidate in candidates for name in candidate}
    return (*NAMES, *sorted(names - set(NAMES)))


def matrix(candidates: Sequence[Mapping[str, float]], names: Sequence[str]) -> NDArray[np.float32]:
    """One row per candidate with the features `names`: NaN for a parameter, 0 for an operator or routine that it has not."""
    absent = [_NAN if name in NAMES or name.startswith("parameter ") else 0.0 for name in names]
    rows = [[c.get(name, other) for name, other in zip(names, absent, strict=True)] for c in candidates]
    return np.array(rows, np.float32).reshape(len(candidates), len(names))


def _planes(shape: Shape) -> tuple[float, float, float, float]:
    """Batch, channels, height and width of any shape."""
    if len(shape) == 4:
        return shape[0], shape[1], shape[2], shape[3]
    if len(shape) == 2:
        return shape[0], shape[1], 1, 1
    return 1, math.prod(shape), 1, 1


def _pair(attribute: object) -> tuple[int, int]:
    return (int(attribute[0]), int(attribute[1])) if isinstance(attribute, tuple) and len(attribute) > 1 else (1, 1)


def _shapes(workload: Workload) -> dict[str, float]:
    first = workload.inputs[0]
    batch, channels, height, width = _planes(first.shape if first else ())
    _, outputs, out_height, out_width = _planes(workload.outputs[0].shape)
    weight = workload.inputs[1] if workload.op == "Conv" and workload.has(1) else None
    kernel = weight.shape[2:4] if weight else _pair(workload.attributes.get("kernel"))
    groups = workload.attributes.get("groups", 1)
    pads = workload.attributes.get("pads", ())
    return {
        "batch": batch,
        "channels": channels,
        "height": height,
        "width": width,
        "outputs": outputs,
        "out_height": out_height,
        "out_width": out_width,
        "kernel_height": kernel[0],
        "kernel_width": kernel[1],
        "stride": _pair(workload.attributes.get("strides"))[0],
        "pads": sum(pads) if isinstance(pads, tuple) else 0,
        "dilation": _pair(workload.attributes.get("dilations"))[0],
        "groups": groups,
        "per_group": channels / groups,
    }


def _second(workload: Workload) -> tuple[float, float, float]:
    if len(workload.chain) < 2:
        return _NAN, _NAN, _NAN
    shape = _shapes(workload.chain[1])
    return shape["outputs"], shape["kernel_height"], shape["stride"]


def _layouts(workload: Workload) -> tuple[float, float]:
    blocks = workload.attributes
    return (float(blocks["source"]), float(blocks["target"])) if workload.op == REORDER else (_NAN, _NAN)


def _fused(workload: Workload) -> tuple[float, float, float]:
    last = workload.chain[-1] if workload.chain else workload
    weighted = last.op in ("Conv", "Dense")
    kinds = {kind.name.lower(): float(kind) for kind in ActivationKind}
    return weighted and last.has(2), weighted and last.has(3), kinds.get(last.activation, _NAN)


def _log(value: float) -> float:
    return math.log2(value) if value > 0 else _NAN


def _amounts(
    workload: Workload, shape: Mapping[str, float], grid: _Grid, machine: Machine, state: CacheState
) -> tuple[float, ...]:
    pixels = shape["batch"] * shape["out_height"] * shape["out_width"]
    moved = workload.read_bytes + workload.written_bytes + workload.weight_bytes
    computed = grid.computed / pixels if pixels else _NAN
    outputs = _whole(shape["outputs"], grid.outputs) / shape["outputs"] if shape["outputs"] else _NAN
    products = (
        (workload.macs or _looked_at(workload, shape))
        * grid.products
        * (computed if computed > 0 else 1.0)
        * (outputs if outputs > 0 else 1.0)
    )
    each = max(1.0, math.ceil(grid.units / machine.cores)) * machine.cores if grid.units > 0 else _NAN
    return (
        _log(workload.macs),
        _log(1 + workload.read_bytes),
        _log(1 + workload.written_bytes),
        _log(1 + workload.weight_bytes),
        _log(workload.macs / moved) if moved else _NAN,
        _log(products),
        _log(1 + workload.weight_bytes * grid.weights),
        computed - 1,
        outputs - 1,
        _whole(shape["channels"], machine.block) / shape["channels"] - 1 if shape["channels"] else _NAN,
        grid.pixels,
        grid.outputs,
        grid.pixels * grid.outputs,
        _log(moved / grid.units) if grid.units > 0 else _NAN,
        _log(grid.units),
        machine.cores,
        1 - grid.units / each,
        CACHE_STATES.index(state),
        machine.balance,
        _log(grid.passes),
    )


def _looked_at(workload: Workload, shape: Mapping[str, float]) -> float:
    """Elements that the windows of a pool look at, one after another; 0 for other operators."""
    if workload.op == "GlobalPool":
        return shape["batch"] * shape["channels"] * shape["height"] * shape["width"]
    taps = shape["kernel_height"] * shape["kernel_width"]
    return math.prod(workload.outputs[0].shape) * taps if workload.op in ("MaxPool", "AveragePool") else 0.0


def _whole(size: float, step: float) -> float:
    """`size` rounded up to whole steps; NaN without a step."""
    return math.ceil(size / step) * step if step > 0 else _NAN


def _ceil(size: float, step: float) -> int:
    return math.ceil(size / step) if step > 0 else 1


def _grid(workload: Workload, routine: str, parameters: Parameters, block: int) -> _Grid:
    """What the parameters of the routine's family say; an unknown family says nothing."""
    algorithm = routine.rpartition("/")[2]
    maker = _GRIDS.get(algorithm)
    links = workload.chain or (workload,)
    if maker is None or any(link.op != "Conv" for link in links):
        return _Grid()
    pointwise = next((link for link in links if _shapes(link)["groups"] == 1), links[0])
    return maker(_shapes(pointwise), _shapes(links[-1]), parameters, block)


def _direct_grid(shape: Mapping[str, float], _: Mapping[str, float], parameters: Parameters, block: int) -> _Grid:
    pixels = parameters.get("reg_n", parameters.get("pixels", 1))
    outputs = parameters.get("oc_bn", parameters.get("vectors", 1) * parameters.get("length", block))
    plane = shape["out_height"] * shape["out_width"]
    chunks = _ceil(_ceil(plane, pixels), parameters.get("tiles", 1))
    return _Grid(
        pixels,
        outputs,
        shape["batch"] * _whole(plane, pixels),
        units=shape["batch"] * chunks * _ceil(shape["outputs"], outputs),
        passes=_ceil(shape["per_group"], parameters.get("ic_bn", shape["per_group"])),
    )


def _strassen_grid(shape: Mapping[str, float], _: Mapping[str, float], parameters: Parameters, block: int) -> _Grid:
    pixels, outputs = parameters.get("pixels", 1), parameters.get("vectors", 1) * block
    plane = shape["out_height"] * shape["out_width"]
    chunks = _ceil(_ceil(plane, 2 * pixels), parameters.get("tiles", 1))
    panels = _ceil(_ceil(shape["outputs"], 2 * outputs), parameters.get("panels", 1))
    computed = shape["batch"] * _whole(plane, 2 * pixels)
    return _Grid(2 * pixels, outputs, computed, _STRASSEN, 10 / 8, shape["batch"] * chunks * panels)


def _winograd_grid(shape: Mapping[str, float], _: Mapping[str, float], parameters: Parameters, block: int) -> _Grid:
    alpha = parameters.get("alpha", parameters.get("m", 0) + 2)
    taps = parameters.get("taps", 3)
    if not 0 < taps < alpha:
        return _Grid()
    kernel = int(shape["kernel_height"]), int(shape["kernel_width"])
    division = Division(*(Axis(extent, int(shape["stride"]), alpha, taps) for extent in kernel))
    across, down = division.across.outputs, division.down.outputs
    outputs = parameters.get("vectors", 1) * block
    tiles = shape["batch"] * _ceil(shape["out_height"], down) * _ceil(shape["out_width"], across)
    panels = _ceil(_ceil(shape["outputs"], outputs), parameters.get("panels", 1))
    share = division.all_parts / math.prod(kernel)
    units = _ceil(tiles, parameters.get("block", tiles)) * panels
    pixels = down * across
    return _Grid(parameters.get("tiles", 1), outputs, tiles * pixels, share / pixels, share, units)


def _rows_grid(shape: Mapping[str, float], last: Mapping[str, float], parameters: Parameters, block: int) -> _Grid:
    pixels = parameters.get("pixels", 1)
    outputs = parameters.get("vectors", 1) * block
    rows = _ceil(last["out_height"], parameters.get("rows", parameters.get("band", last["out_height"])))
    computed = shape["batch"] * shape["out_height"] * _whole(shape["out_width"], pixels)
    return _Grid(pixels, outputs, computed, units=shape["batch"] * rows * _ceil(shape["outputs"], outputs))


_GRIDS = {
    "direct": _direct_grid,
    "planar": _rows_grid,
    "depthwise": _rows_grid,
    "expand_depthwise": _rows_grid,
    "depthwise_project": _rows_grid,
    "strassen": _strassen_grid,
    "winograd": _winograd_grid,
}
"""By the last part of a descriptor: how its parameters cut a convolution into units."""
