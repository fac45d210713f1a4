"""Profiles fitted to latencies of whole networks.

One latency per network says little about layers, so a fit has few unknowns. A processor has three: seconds of
a MAC, of a group of a grouped convolution, and of a byte. They are fitted by non-negative least squares of
the relative errors. A pair of processors has one, seconds of a transferred byte, which is searched for in
simulation; a transfer is not faster than the memory of either processor. The rest is assumed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from nnstretch.devices.base.spec import ProcessorSpec
from nnstretch.devices.simulated.processor import SimulatedProcessor, layer_kind, loss
from nnstretch.devices.simulated.profile import PairProfile, ProcessorProfile, SocProfile, Throughput
from nnstretch.errors import UsageError
from nnstretch.graph.layers import layers
from nnstretch.scheduler.plan.schema import Plan
from nnstretch.scheduler.planner import make_plan
from nnstretch.scheduler.simulation.costs import SimulatedCosts, costs_nothing
from nnstretch.scheduler.simulation.timing import ProfiledInterference, simulate

_IMMEASURABLE = 1e6
"""GMAC/s or GB/s of work that costs nothing by the measurements."""
_HALVINGS = 14


@dataclass(frozen=True, eq=False)
class Measurement:
    """The measured latency of a network.

    Attributes:
        model: an optimised graph whose nodes are placed on processors, if there are several.
        processors: their names, in the order in which nodes number them.
        seconds: of a run.
    """

    model: ir.Model
    processors: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class Assumptions:
    """Fixed fields of the fitted profile.

    `launch_us` is by processor, 0 for those not listed.
    """

    launch_us: Mapping[str, float] = field(default_factory=dict)
    sync_us: float = 0.0
    step: tuple[int, int] = (1, 1)
    half: tuple[float, float] = (0.0, 0.0)
    element_bytes: int = 4
    channel_multiple: int = 8
    description: str = ""


def fit_profile(measurements: Sequence[Measurement], given: Assumptions) -> SocProfile:
    """The profile with simulated latencies closest to the measured ones.

    Processors are fitted to networks that ran on one of them, pairs to networks that ran on both. A pair
    without measurements gets the lowest fitted bandwidth.

    Raises:
        UsageError: a processor has fewer networks than unknowns, or works in a pair and never alone.
    """
    alone: dict[str, list[Measurement]] = {}
    together: dict[tuple[str, ...], list[Measurement]] = {}
    for measured in measurements:
        if len(measured.processors) == 1:
            alone.setdefault(measured.processors[0], []).append(measured)
        else:
            together.setdefault(measured.processors, []).append(measured)
    processors = {name: _fit_processor(name, found, given) for name, found in alone.items()}
    soc = SocProfile(
        processors,
        tuple(PairProfile((a, b), given.sync_us, _IMMEASURABLE) for a, b in itertools.combinations(processors, 2)),
        given.element_bytes,
        given.channel_multiple,
        given.description,
    )
    rates = {}
    for both, found in together.items():
        if len(both) != 2 or not {*both} <= {*processors}:
            raise UsageError(
                f"networks were measured on {', '.join(both)} together; a fit needs pairs, and each of a pair alone too"
            )
        rates[frozenset(both)] = _fit_bandwidth(soc, both, found)
    lowest = min(rates.values(), default=_IMMEASURABLE)
    return replace(soc, pairs=tuple(replace(p, gb_per_s=rates.get(frozenset(p.processors), lowest)) for p in soc.pairs))


def simulated_seconds(soc: SocProfile, measured: Measurement) -> float:
    """Simulated seconds of the measured network under a profile."""
    return _simulated(soc, _plan(soc, measured), measured.processors)


def relative_errors(soc: SocProfile, measurements: Sequence[Measurement]) -> np.ndarray:
    """Simulated over measured seconds, less 1, of every network.

    Args:
        soc: a profile.
        measurements: networks; those that the profile is not fitted to show how it predicts.

    Returns:
        Errors, shape [number of measurements].
    """
    return np.array([simulated_seconds(soc, measured) / measured.seconds - 1 for measured in measurements])


# -- processors ----------------------------------------------------------------------------------------------------


def _fit_processor(name: str, measurements: Sequence[Measurement], given: Assumptions) -> ProcessorProfile:
    launch = given.launch_us.get(name, 0.0)
    launches, amounts = zip(*(_work(m.model, given) for m in measurements), strict=True)
    seconds = np.array([m.seconds for m in measurements])
    unknowns = int(np.count_nonzero(np.any(np.array(amounts) > 0, axis=0)))
    if unknowns > len(measurements):
        raise UsageError(
            f"{len(measurements)} networks were measured on {name} alone, but it has {unknowns} unknowns; measure more networks"
        )
    rows = np.array(amounts) / seconds[:, None]
    mac, group, byte = nonnegative_least_squares(rows, 1 - np.array(launches) * launch * 1e-6 / seconds)
    dense = Throughput(((1.0, _rate(mac)),), given.step, given.half)
    kinds = dict.fromkeys(("conv", "grouped", "depthwise", "dense"), dense)
    kinds["grouped"] = replace(dense, group_us=_rounded(group * 1e6))
    return ProcessorProfile(launch, kinds, {"any": _rate(byte)})


def _work(model: ir.Model, given: Assumptions) -> tuple[int, tuple[float, float, float]]:
    """Launches of a network, and its MACs (as many as would take as long with very many channels), groups and bytes."""
    count, macs, groups, size = 0, 0.0, 0, 0
    for layer in (node.layer for node in layers(model)):
        if costs_nothing(layer):
            continue
        count += 1
        size += given.element_bytes * sum(t.elements for t in (*layer.inputs, *layer.outputs) if t is not None)
        if layer.op in ("Conv", "Dense"):
            macs += layer.macs * loss(layer, given.step, given.half)
        if layer_kind(layer) == "grouped":
            groups += layer.integer("groups")
    return count, (macs, groups, size)


def _rate(seconds: float) -> float:
    """10^9 per second of what takes `seconds` each."""
    return _rounded(min(_IMMEASURABLE, 1e-9 / seconds)) if seconds > 0 else _IMMEASURABLE


def _rounded(value: float) -> float:
    """Rounded to four digits, the precision of such measurements."""
    return float(f"{value:.4g}")


def nonnegative_least_squares(rows: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The x >= 0 that makes |rows x - wanted| least; rows [n, k] of few columns, wanted [n].

    Exact: the answer is the unconstrained one over some of the columns, so all sets of columns are tried.
    """
    count = rows.shape[1]
    best, least = np.zeros(count), float(np.sum(wanted**2))
    scale = np.maximum(np.abs(rows).max(axis=0), np.finfo(float).tiny)
    for size in range(1, count + 1):
        for columns in map(list, itertools.combinations(range(count), size)):
            found = np.linalg.lstsq(rows[:, columns] / scale[columns], wanted, rcond=None)[0]
            if (found < 0).any():
                continue
            x = np.zeros(count)
            x[columns] = found / scale[columns]
            error = float(np.sum((rows @ x - wanted) ** 2))
            if error < least * (1 - 1e-9):
                best, least = x, error
    return best


# -- pairs ---------------------------------------------------------------------------------------------------------


def _plan(soc: SocProfile, measured: Measurement) -> Plan:
    specs = [ProcessorSpec("sim", argument=f"fitted/{name}") for name in measured.processors]
    processors = [SimulatedProcessor(spec, soc) for spec in specs]
    return make_plan(measured.model, processors, processors[0], SimulatedCosts(soc)).plan


def _simulated(soc: SocProfile, plan: Plan, processors: Sequence[str]) -> float:
    return simulate(plan, ProfiledInterference(soc, dict(enumerate(processors)))).total * 1e-9


def _fit_bandwidth(soc: SocProfile, both: tuple[str, ...], measurements: Sequence[Measurement]) -> float:
    """GB/s between two processors, at most the memory bandwidth of the slower one."""
    pair = soc.pair(both[0], both[1])
    lowest = 1 / min(soc.processors[name].memory_gb_per_s["any"] for name in both)
    plans = [_plan(soc, measured) for measured in measurements]

    def error(nanoseconds: float) -> float:
        changed = replace(soc, pairs=(replace(pair, gb_per_s=_rate(nanoseconds * 1e-9)),))
        predicted = (_simulated(changed, plan, both) for plan in plans)
        return sum((p / m.seconds - 1) ** 2 for p, m in zip(predicted, measurements, strict=True))

    return _rate(_least(error, max(1.0, lowest), 1.0, lowest) * 1e-9)


def _least(error: Callable[[float], float], start: float, step: float, lowest: float) -> float:
    """A local minimum of `error` over numbers >= `lowest`: steps are taken while they help, then halved."""
    best, least = start, error(start)
    for _ in range(_HALVINGS):
        improved = True
        while improved:
            improved = False
            for tried in (best + step, max(lowest, best - step)):
                if tried != best and (found := error(tried)) < least:
                    best, least, improved = tried, found, True
        step /= 2
    return best
