"""The result of an equal-MACs comparison, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from nnstretch.bench.ablation.breakdown import BranchTime
from nnstretch.bench.timing import CONFIDENCE, Interval, Latency, disturbance, perfect_split, significant, widest
from nnstretch.scheduler.runtime.timeline import Timeline
from nnstretch.support.measures import TOP1, Measure
from nnstretch.support.other_programs import OtherPrograms

if TYPE_CHECKING:
    from nnstretch.branching.design.design import Design
    from nnstretch.scheduler.plan.compiled import PlacementReport

GOOD_PREDICTION = 0.1
"""Largest relative error of a good prediction."""

BRANCHED = "branched"
"""`network` of the rows of the branched network; the other rows are its alternatives."""

CONCURRENT, SERIAL = "concurrent", "one after another"
"""`how` of the rows whose branches ran at the same time, and without overlap."""

ALONE, SPLIT, BOUND = "alone", "split layer by layer", "perfect split, a bound"
"""`how` of rows that ran on one processor, whose layers the scheduler placed on several, and of the perfect split."""

PLACED = "placed on "
"""Begins the `how` of rows whose layers the scheduler placed on one of several processors, which it names."""


@dataclass(frozen=True)
class AblationRow:
    """One line of the table.

    Attributes:
        network: "original", "branched" or "control".
        how: description of the run: alone, all CPU cores, split layer by layer, concurrent, one after another.
        processors: as written, separated by commas.
        macs, parameters: exact counts.
        score: the measure in percent, if known.
        latency: of measured runs; None in simulated rows and in that of the bound.
        computed_ms: the latency of a simulated run, or the perfect split, in these rows only.
        interval_ms: confidence interval of the median, or of the perfect split.
    """

    network: str
    how: str
    processors: str
    macs: int
    parameters: int
    score: float | None
    latency: Latency | None
    computed_ms: float | None = None
    interval_ms: Interval | None = None

    @property
    def is_bound(self) -> bool:
        """Whether it is the perfect split, which is no run."""
        return self.how == BOUND

    @property
    def is_branched(self) -> bool:
        """Whether it is the run of the branched network that all others are compared with."""
        return self.network == BRANCHED and self.how != SERIAL

    @property
    def p50_ms(self) -> float:
        """The median latency, the simulated one, or the bound."""
        found = self.latency.p50_ms if self.latency else self.computed_ms
        assert found is not None
        return found


@dataclass(frozen=True)
class SimulatedSource:
    """The profile that latencies were simulated from.

    Attributes:
        profile: its name or path, as in `sim:PROFILE/NAME`.
        identity: short hash of its figures.
        description: what it says of the machine and of the source of its figures.
    """

    profile: str
    identity: str
    description: str

    def __str__(self) -> str:
        return f"latencies are simulated, from the profile {self.profile}"


@dataclass(frozen=True)
class MeasuredBranch:
    """Measured latency of one branch, and its predicted latency alone on its processor."""

    time: BranchTime
    predicted_ms: float | None

    @property
    def error(self) -> float | None:
        """Relative error of the prediction: (measured alone - predicted) / predicted."""
        return None if not self.predicted_ms else self.time.alone_ms / self.predicted_ms - 1


def with_predictions(times: Sequence[BranchTime], design: Design | None) -> tuple[MeasuredBranch, ...]:
    """Times of branches with what a design predicts for them; None: there are no predictions."""
    predicted: dict[tuple[int, int], float | None] = {}
    for number, some in enumerate(design.branches if design else ()):
        predicted.update({(number, i): branch.predicted_ms for i, branch in enumerate(some)})
    return tuple(MeasuredBranch(time, predicted.get((time.segment, time.branch))) for time in times)


def how_placed(report: PlacementReport | None) -> str:
    """`how` of a row whose layers the scheduler placed; None: it was asked for no placement."""
    return SPLIT if report is None or report.pays else f"{PLACED}{report.fastest} alone"


@dataclass(frozen=True)
class Ablation:
    """The rows of the comparison and the figures derived from them.

    Latencies are medians in milliseconds, speedups their ratios. Simulated latencies have no intervals, and what a profile
    does not have (all cores of a CPU, ONNX Runtime, outputs) is None.

    Attributes:
        processors: one branch ran on each.
        rows: in display order.
        original_ms, control_ms: latency of original and control on each processor alone.
        original_all_cores_ms, control_all_cores_ms: on all cores of the CPU.
        original_split_ms, control_split_ms: on the same processors, with layers placed and split by the scheduler. If one
            processor alone is predicted to be as fast, that processor computes all layers.
        onnxruntime_ms, control_onnxruntime_ms: ONNX Runtime on all cores of the CPU, with the original and the control; None if
            it failed for the reason in onnxruntime_error.
        branched_ms, branched_serial_ms: branches at the same time, and one after another; the same value for a network
            without branches on one processor.
        max_rel_error: largest error of our outputs against ONNX Runtime's, relative to the output's range.
        timeline, serial_timeline: traced runs of the branched network.
        intervals: confidence intervals of the fields above and the properties below, by name.
        predicted_ms: latency that the design predicts.
        branches: measured latencies, and predicted ones where the design has them.
        causes: milliseconds by cause that add up to the measured latency (`nnstretch.bench.ablation.breakdown`).
        idle: processors on which nothing was computed in one of the runs.
        other_programs: what they used while the rows were measured; None if that is not known.
        simulated: the profile of the processors; None if latencies are measured.
        measure: of the scores of the rows.
    """

    processors: tuple[str, ...]
    rows: tuple[AblationRow, ...]
    original_ms: Mapping[str, float]
    original_all_cores_ms: float | None
    original_split_ms: float
    onnxruntime_ms: float | None
    onnxruntime_error: str
    branched_ms: float
    branched_serial_ms: float
    control_ms: Mapping[str, float]
    control_all_cores_ms: float | None
    control_split_ms: float
    control_onnxruntime_ms: float | None
    max_rel_error: float | None
    timeline: Timeline
    serial_timeline: Timeline
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    predicted_ms: float | None = None
    branches: tuple[MeasuredBranch, ...] = ()
    causes: Mapping[str, float] = field(default_factory=dict)
    idle: tuple[str, ...] = ()
    other_programs: OtherPrograms | None = None
    simulated: SimulatedSource | None = None
    measure: Measure = TOP1

    @property
    def origin(self) -> str:
        """Where latencies come from, in one word."""
        return "measured" if self.simulated is None else "simulated"

    @property
    def branched_row(self) -> AblationRow:
        """The run of the branched network. A network without branches is in its place where branching does not pay."""
        return next(row for row in self.rows if row.is_branched)

    @property
    def perfect_split_ms(self) -> float:
        """1 / Σ (1 / tᵢ) over the processors' control latencies."""
        return perfect_split(list(self.control_ms.values()))

    @property
    def best_alternative(self) -> AblationRow:
        """The fastest row of another network, by ONNX Runtime or by our engine."""
        others = [row for row in self.rows if row.network != BRANCHED and not row.is_bound]
        return min(others, key=lambda row: row.p50_ms)

    @property
    def speedup_best_alternative(self) -> float:
        """Latency of the best alternative / latency of the branched network; below 1 if branching does not pay."""
        return self.best_alternative.p50_ms / self.branched_ms

    @property
    def speedup(self) -> float:
        """Latency of the original on the fastest single processor / latency of the branched network."""
        return min(self.original_ms.values()) / self.branched_ms

    @property
    def speedup_equal_macs(self) -> float:
        """Latency of the control on the fastest single processor / latency of the branched network."""
        return min(self.control_ms.values()) / self.branched_ms

    @property
    def split_share(self) -> float:
        """Perfect split / latency of the branched network."""
        return self.perfect_split_ms / self.branched_ms

    @property
    def widest_interval(self) -> float | None:
        """The largest half width of the rows' intervals, as a share of their middles (`nnstretch.bench.timing.WIDE`)."""
        return widest(row.interval_ms for row in self.rows)

    @property
    def well_predicted(self) -> float | None:
        """Share of the branches predicted within `GOOD_PREDICTION`; None without predictions."""
        errors = [abs(branch.error) for branch in self.branches if branch.error is not None]
        return sum(error <= GOOD_PREDICTION for error in errors) / len(errors) if errors else None

    def to_json(self) -> dict[str, Any]:
        """The figures in the object that `bench --design FILE --json` prints; `from_json` reads them."""
        one = significant

        def known(value: float | None) -> float | None:
            return None if value is None else one(value)

        return {
            "simulated": None if self.simulated is None else asdict(self.simulated),
            "processors": list(self.processors),
            "original_ms": {name: one(ms) for name, ms in self.original_ms.items()},
            "original_all_cores_ms": known(self.original_all_cores_ms),
            "original_split_ms": one(self.original_split_ms),
            "onnxruntime_ms": known(self.onnxruntime_ms),
            "onnxruntime_error": self.onnxruntime_error,
            "branched_ms": one(self.branched_ms),
            "branched_serial_ms": one(self.branched_serial_ms),
            "control_ms": {name: one(ms) for name, ms in self.control_ms.items()},
            "control_all_cores_ms": known(self.control_all_cores_ms),
            "control_split_ms": one(self.control_split_ms),
            "control_onnxruntime_ms": known(self.control_onnxruntime_ms),
            "perfect_split_ms": one(self.perfect_split_ms),
            "speedup_best_alternative": one(self.speedup_best_alternative),
            "best_alternative": _alternative_json(self.best_alternative),
            "speedup": one(self.speedup),
            "speedup_equal_macs": one(self.speedup_equal_macs),
            "split_share": one(self.split_share),
            "max_rel_error": known(self.max_rel_error),
            "measure": self.measure._asdict(),
            "rows": [_row_json(row, self.measure) for row in self.rows],
            "confidence": CONFIDENCE,
            "intervals": {name: [one(low), one(high)] for name, (low, high) in self.intervals.items()},
            **disturbance(self.widest_interval, self.other_programs),
            "predicted_ms": known(self.predicted_ms),
            "well_predicted": self.well_predicted,
            "branches": [_branch_json(branch) for branch in self.branches],
            "causes": [{"cause": name, "ms": one(ms)} for name, ms in self.causes.items()],
            "idle": list(self.idle),
            "timelines": {CONCURRENT: self.timeline.to_json(), SERIAL: self.serial_timeline.to_json()},
        }

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> Ablation:
        """The figures of an answer, with the digits that it has.

        Raises:
            KeyError, TypeError, ValueError: fields are missing or have other types.
        """
        measure = Measure(**fields.get("measure", TOP1._asdict()))  # answers of earlier versions lack it
        rows, source = tuple(_row(row, measure) for row in fields["rows"]), fields.get("simulated")
        timelines = fields["timelines"]
        return Ablation(
            processors=tuple(fields["processors"]),
            rows=rows,
            **{name: fields[name] for name in _AS_THEY_ARE},
            intervals={name: (low, high) for name, (low, high) in fields["intervals"].items()},
            branches=tuple(_branch(branch) for branch in fields["branches"]),
            causes={cause["cause"]: cause["ms"] for cause in fields["causes"]},
            idle=tuple(fields["idle"]),
            other_programs=OtherPrograms.from_json(fields.get("other_programs")),  # answers of earlier versions lack it
            simulated=None if source is None else SimulatedSource(**source),
            timeline=Timeline.from_json(timelines[CONCURRENT]),
            serial_timeline=Timeline.from_json(timelines[SERIAL]),
            measure=measure,
        )


_AS_THEY_ARE = (
    *("original_ms", "original_all_cores_ms", "original_split_ms", "onnxruntime_ms", "onnxruntime_error"),
    *("control_ms", "control_all_cores_ms", "control_split_ms", "control_onnxruntime_ms"),
    *("branched_ms", "branched_serial_ms", "predicted_ms", "max_rel_error"),
)
"""Fields that are JSON values."""


def _interval(ends: Sequence[float] | None) -> Interval | None:
    return None if ends is None else (ends[0], ends[1])


def _row(fields: Mapping[str, Any], measure: Measure) -> AblationRow:
    """The row that `_row_json` wrote; only measured ones have a 90th percentile."""
    about = {name: fields[name] for name in ("network", "how", "processors", "macs", "parameters")}
    about["score"] = fields[measure.key]
    limits = _interval(fields["interval_ms"])
    if "p90_ms" not in fields:
        return AblationRow(**about, latency=None, computed_ms=fields["p50_ms"], interval_ms=limits)
    times = {name: fields[name] for name in ("p50_ms", "p90_ms", "min_ms", "spread")}
    return AblationRow(**about, latency=Latency(**times, interval_ms=limits), interval_ms=limits)


def _branch(fields: Mapping[str, Any]) -> MeasuredBranch:
    time = BranchTime(*(fields[name] for name in ("segment", "branch", "processor", "alone_ms", "beside_ms")))
    return MeasuredBranch(time, fields["predicted_ms"])


def _alternative_json(row: AblationRow) -> dict[str, Any]:
    found = _row_json(row, TOP1)
    return {name: found[name] for name in ("network", "how", "processors", "p50_ms", "interval_ms")}


def _branch_json(branch: MeasuredBranch) -> dict[str, Any]:
    time, error = branch.time, branch.error
    return {
        "segment": time.segment,
        "branch": time.branch,
        "processor": time.processor,
        "predicted_ms": branch.predicted_ms,
        "alone_ms": significant(time.alone_ms),
        "beside_ms": significant(time.beside_ms),
        "error": None if error is None else significant(error),
    }


def _row_json(row: AblationRow, measure: Measure) -> dict[str, Any]:
    times = {"p50_ms": significant(row.computed_ms)} if row.computed_ms is not None else {}
    return {
        "network": row.network,
        "how": row.how,
        "processors": row.processors,
        "macs": row.macs,
        "parameters": row.parameters,
        measure.key: row.score,
        **(row.latency.to_json() if row.latency else times),
        "interval_ms": None if row.interval_ms is None else [significant(ms) for ms in row.interval_ms],
    }
