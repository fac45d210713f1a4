"""The options of `nnstretch.compile`, `nnstretch.stretch` and the commands.

An option is one field of a dataclass here: its type, default, help and spelling on the command line. The Python calls
(`nnstretch.api.calls`) and the commands (`nnstretch.cli.options.with_options`) derive their parameters from the fields.

Light on purpose: `nnstretch --help` imports it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, Field, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

from nnstretch.errors import UsageError
from nnstretch.support.durations import parse_milliseconds
from nnstretch.support.progress import Progress

if TYPE_CHECKING:
    from nnstretch.branching.search.limits import SearchLimits

TOLERANCE = 1e-4
"""Default of `CompileOptions.tolerance`."""

_Class = TypeVar("_Class", bound=type)


@dataclass(frozen=True)
class Option:
    """Help for a field, and its spelling on the command line.

    Attributes:
        help: shown by `--help` and in the docstrings of the Python calls.
        flags: of the command line; empty for a field that only Python has.
        metavar: what the value is called in `--help`.
        minimum: least value of a number.
        text: type of the value on the command line, where that is not the field's.
        parse: makes the field's value from that of the command line.
        shown: the default that `--help` shows; None: the field's own; "": none.
        panel: title of the group of options in `--help`.
    """

    help: str
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    minimum: float | None = None
    text: Any = None
    parse: Callable[[Any], Any] | None = None
    shown: str | None = None
    panel: str | None = None


def declared_options(kind: type) -> dict[str, tuple[Field[Any], Any, Option]]:
    """Each field of an options class by name, with its type and its `Option`."""
    hints = get_type_hints(kind, localns=_later_types(), include_extras=True)
    return {f.name: (f, hints[f.name].__origin__, hints[f.name].__metadata__[0]) for f in fields(kind)}


def described(kind: type, indent: str) -> str:
    """The fields of an options class as the entries of a docstring's section."""
    entries = (f"{name}: {option.help}" for name, (_, _, option) in declared_options(kind).items())
    return "\n".join(
        textwrap.fill(entry, 110, initial_indent=indent, subsequent_indent=f"{indent}    ") for entry in entries
    )


def _documented(kind: _Class) -> _Class:
    kind.__doc__ = f"{kind.__doc__}\n\n    Attributes:\n{described(kind, ' ' * 8)}\n"
    return kind


def _later_types() -> dict[str, Any]:
    """Names of types whose modules load torch; only type checkers need them."""
    return {"SearchLimits": object}


def _shapes(texts: Sequence[str] | None) -> Mapping[str, tuple[int, ...]] | None:
    from nnstretch.frontends.input_shapes import parse_shapes

    return parse_shapes(texts) if texts else None


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",")) if text else ()


def _plans(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(part.strip() for part in text.split(";"))


def _milliseconds(text: str | None) -> float | None:
    return None if text is None else parse_milliseconds(text)


_PROCESSORS = (
    "cpu[:CORES[*RATIOS]], opencl[:INDEX][@CORES], litert[:DELEGATE][@CORES], ort[@CORES], separated by commas"
)


_FIXED_BY_A_PLAN = ("threads", "engines", "streams", "plans", "policy")


@_documented
@dataclass(frozen=True)
class CompileOptions:
    """How `nnstretch.compile` and the commands make a model runnable."""

    processors: Annotated[
        str,
        Option(
            f"Processors to run on: {_PROCESSORS}. A package brings its own; leave this out.",
            ("--processors", "-p"),
            metavar="LIST",
        ),
    ] = "cpu"
    dtype: Annotated[str, Option("Data type of the computation; float32.")] = "float32"
    threads: Annotated[
        int | None,
        Option("Use at most N cores of the first CPU.", ("--threads", "-t"), metavar="N", minimum=1, shown=""),
    ] = None
    tune: Annotated[
        bool,
        Option(
            "Measure routines that have no stored measurement; --no-tune selects by estimates.", ("--tune/--no-tune",)
        ),
    ] = True
    _: KW_ONLY
    shapes: Annotated[
        Mapping[str, tuple[int, ...]] | None,
        Option(
            "Shapes of inputs with dynamic dimensions. The option may be repeated.",
            ("--shape",),
            metavar="x=1,3,224,224",
            text=list[str] | None,
            parse=_shapes,
            shown="",
        ),
    ] = None
    batch: Annotated[
        int | None,
        Option(
            "Images per run, for a network by name and for a file whose inputs have a dynamic first dimension.",
            ("--batch", "-b"),
            metavar="N",
            minimum=1,
            shown="",
        ),
    ] = None
    engines: Annotated[
        Sequence[str],
        Option(
            "External engines that compute layers, or groups of layers, where they are measured to be faster: ort "
            "(ONNX Runtime), litert (LiteRT). The compiled model needs them to run.",
            ("--engines",),
            metavar="LIST",
            text=str | None,
            parse=_names,
            shown="",
        ),
    ] = ()
    tolerance: Annotated[
        float,
        Option(
            "Largest error of a routine, relative to its output's range, that tuning accepts. From 1e-3 on, OpenCL "
            "devices may store float16.",
            ("--tolerance",),
            metavar="E",
        ),
    ] = TOLERANCE
    plan: Annotated[
        str | Path | None,
        Option(
            "A plan that `nnstretch tune -o` wrote: use its processors and routines without measuring.",
            ("--plan",),
            metavar="FILE",
            text=Path | None,
            shown="",
        ),
    ] = None
    streams: Annotated[
        int | None,
        Option(
            "For throughput: compute N inputs at the same time, on the arrangement of processors and cores that is "
            "predicted to be fastest.",
            ("--streams",),
            metavar="N",
            minimum=1,
            shown="",
        ),
    ] = None
    plans: Annotated[
        Sequence[str] | None,
        Option(
            "The processors of each of several plans; on the command line separated by semicolons: "
            "cpu:0;opencl:0@1;cpu:0,opencl:0@1. The branches of a design are numbered by the plan with the most "
            "processors.",
            ("--plans",),
            metavar="LIST;LIST",
            text=str | None,
            parse=_plans,
            shown="",
        ),
    ] = None
    policy: Annotated[
        str | None,
        Option(
            "Which of several plans a run takes: adaptive (the fastest at the moment), fixed (the first, others only "
            "while it fails) or deadline=12ms (the one with the fewest processors that meets it).",
            ("--policy",),
            metavar="NAME",
            shown="adaptive if there are several",
        ),
    ] = None
    target: Annotated[
        str, Option("The machine to measure and run on; local is this machine.", ("--target",), metavar="TARGET")
    ] = "local"
    progress: Annotated[Progress | None, Option("Called with (done, total, what) during long work.")] = None

    def __post_init__(self) -> None:
        if self.dtype != "float32":
            raise UsageError(f"dtype {self.dtype!r} is not supported; use float32")
        if self.streams is not None and (self.plans is not None or self.policy is not None):
            raise UsageError(
                "streams are for throughput, plans and policy for one run at a time; leave one of them out"
            )
        if self.plans is not None and self.processors != "cpu":
            raise UsageError("processors and plans both say what to run on; give one of them")
        taken = [name for name in _FIXED_BY_A_PLAN if getattr(self, name)]
        if self.plan is not None and taken:
            raise UsageError(f"a plan fixes routines, processors and cores; leave {' and '.join(taken)} out")
        if self.plans is not None and not all(self.plans):
            raise UsageError(f"plans {';'.join(self.plans)!r} has an empty plan; name the processors of each plan")


_LIMITS = "Limits"


@_documented
@dataclass(frozen=True)
class StretchOptions:
    """How `nnstretch.stretch` and the command search for branched designs."""

    processors: Annotated[
        str,
        Option(f"One branch is made for each processor, in this order: {_PROCESSORS}.", ("--processors", "-p"), "LIST"),
    ] = "cpu,opencl"
    _: KW_ONLY
    limits: Annotated[SearchLimits | None, Option("Limits of the search, which the options below change.")] = None
    alpha: Annotated[
        float | None,
        Option(
            "Largest cost of a meeting point, as a share of the time of the segment before it.",
            ("--alpha",),
            minimum=0.0,
            shown="0.3",
            panel=_LIMITS,
        ),
    ] = None
    beta: Annotated[
        float | None,
        Option(
            "Largest time of a branch, as a share of the segment's time on the fastest processor.",
            ("--beta",),
            minimum=0.0,
            shown="0.8",
            panel=_LIMITS,
        ),
    ] = None
    min_depth: Annotated[
        float | None,
        Option(
            "Least share of a segment's blocks that a branch keeps.",
            ("--min-depth",),
            shown="by the network's family",
            panel=_LIMITS,
        ),
    ] = None
    min_width: Annotated[
        float | None,
        Option(
            "Least share of a segment's width that a branch has.",
            ("--min-width",),
            shown="by the network's family",
            panel=_LIMITS,
        ),
    ] = None
    min_macs: Annotated[
        float | None,
        Option(
            "Least share of a segment's MACs that its branches have together.",
            ("--min-macs",),
            shown="0.8",
            panel=_LIMITS,
        ),
    ] = None
    max_segment: Annotated[
        float | None,
        Option(
            "Largest share of the network's MACs in one segment; branches meet at its end.",
            ("--max-segment",),
            shown="0.4",
            panel=_LIMITS,
        ),
    ] = None
    target_ms: Annotated[
        float | None,
        Option(
            "Latency in milliseconds, on the command line such as 12ms: find the designs with the most MACs that "
            "are predicted to meet it, instead of the fastest.",
            ("--latency-target",),
            metavar="TIME",
            text=str | None,
            parse=_milliseconds,
            shown="",
        ),
    ] = None
    designs: Annotated[int, Option("Return at most K designs.", ("--top",), metavar="K", minimum=1)] = 1
    pareto: Annotated[
        bool, Option("Return designs from the whole Pareto front of latency and MACs.", ("--pareto",))
    ] = False
    learned: Annotated[
        bool | None,
        Option(
            "Predict layers from measured ones and measure the layers of the best designs, or measure every layer.",
            ("--learned/--measure-all",),
            shown="learned where xgboost is installed",
        ),
    ] = None
    multiple: Annotated[
        int | None, Option("Scaled layers have multiples of this many channels; None: the block of the layout.")
    ] = None
    measure: Annotated[
        bool,
        Option(
            "Run the best design and rebalance its branches by their measured times; not on simulated processors.",
            ("--measure/--no-measure",),
        ),
    ] = True
    merge: Annotated[
        str,
        Option(
            "How branches meet: concat; concat+1x1 (a 1x1 convolution makes each branch's share of the original "
            "channels); add (a 1x1 convolution in every branch makes all of them, and they are summed).",
            ("--merge",),
            metavar="HOW",
        ),
    ] = "concat"
    progress: Annotated[Progress | None, Option("Called with (done, total, what) during long work.")] = None

    def search_limits(self) -> SearchLimits:
        """The limits of the search.

        Raises:
            DesignError: a limit is out of range.
        """
        from nnstretch.branching.search.limits import SearchLimits

        given = {f.name: getattr(self, f.name, None) for f in fields(SearchLimits)}
        limits = replace(self.limits or SearchLimits(), **{n: value for n, value in given.items() if value is not None})
        limits.check()
        return limits
