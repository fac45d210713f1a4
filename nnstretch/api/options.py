"""The options of `nnstretch.compile`, `nnstretch.stretch` and the commands.

An option is one field of a dataclass here: its type, default, help, spelling on the command line, and the commands that offer
it. The Python calls (`with_options`) and the commands (`nnstretch.cli.options.with_options`) derive their parameters from the
fields.

Light on purpose: `nnstretch --help` imports it.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, Field, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from nnstretch.devices.registry import ENGINES, specifications
from nnstretch.errors import UsageError
from nnstretch.support.durations import parse_milliseconds
from nnstretch.support.progress import Progress
from nnstretch.support.type_check import check_fields

if TYPE_CHECKING:
    from nnstretch.branching.search.limits import SearchLimits

TOLERANCE = 1e-4
"""`CompileOptions.largest_error` of float32 where no tolerance is given."""

BFLOAT16_TOLERANCE = 5e-3
"""Smallest tolerance at which CPU routines may multiply numbers rounded to bfloat16, which has 8 bits where float16 has 11."""

FLOAT16_TOLERANCE = 3e-3
"""Smallest tolerance at which CPU routines may multiply numbers rounded to float16, and add some of these products in it."""

HYBRID = "hybrid"
_BFLOAT16 = "bfloat16"
DTYPES = ("float32", _BFLOAT16, "int8", HYBRID)
"""Values of `CompileOptions.dtype`."""

_Class = TypeVar("_Class", bound=type)


@dataclass(frozen=True)
class Option:
    """Help for a field, its spelling on the command line, and the commands that offer it.

    Attributes:
        help: shown by `--help` and in the docstrings of the Python calls.
        spelling: flags and metavar, such as "--processors -p LIST"; empty for a field that only Python has.
        commands: names of the commands that offer it; "*" for all that have options of the class.
        minimum: least value of a number.
        text: type of the value on the command line, where that is not the field's.
        parse: makes the field's value from that of the command line.
        shown: the default that `--help` shows, where that is not the field's.
        panel: title of the group of options in `--help`.
        of_packages: whether a package, whose plans are fixed, takes it or is not affected by it.
    """

    help: str
    spelling: str
    commands: tuple[str, ...] = ()
    minimum: float | None = None
    text: Any = None
    parse: Callable[[Any], Any] | None = None
    shown: str | None = None
    panel: str | None = None
    of_packages: bool = False

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags of the spelling."""
        return tuple(word for word in self.spelling.split() if word.startswith("-"))

    def is_of(self, command: str) -> bool:
        """Whether a command, which has options of the class, offers it."""
        return not {"*", command}.isdisjoint(self.commands)

    @property
    def metavar(self) -> str | None:
        """What `--help` calls the value, where the spelling says so."""
        return " ".join(self.spelling.split()[len(self.flags) :]) or None


def _option(spelling: str, commands: str, help: str, *, default: Any = None, **more: Any) -> Any:
    """A field of an options class, with its default and its `Option`; commands are separated by spaces."""
    return field(default=default, metadata={"option": Option(help, spelling, tuple(commands.split()), **more)})


def declared_options(kind: type) -> dict[str, tuple[Field[Any], Any, Option]]:
    """Each field of an options class by name, with its type and its `Option`."""
    hints = get_type_hints(kind, localns={"SearchLimits": object})  # its module loads torch
    return {f.name: (f, hints[f.name], f.metadata["option"]) for f in fields(kind)}


def _described(kind: type) -> str:
    """The fields of an options class as the entries of a docstring's section."""
    entries = (f"{name}: {option.help}" for name, (_, _, option) in declared_options(kind).items())
    return "\n".join(textwrap.fill(entry, 110, initial_indent=" " * 8, subsequent_indent=" " * 12) for entry in entries)


def _documented(kind: _Class) -> _Class:
    kind.__doc__ = f"{kind.__doc__}\n\n    Attributes:\n{_described(kind)}\n"
    return kind


def with_options(kind: type) -> Callable[[Callable[..., Any]], Any]:
    """Lets a function whose last parameter is `options` take the fields of the options class as arguments too.

    The fields follow the function's other parameters; the first ones may be given by position. A line `options:` in the
    function's docstring is followed by the description of every field.

    Args:
        kind: the options class.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        own = list(inspect.signature(function).parameters.values())
        fields_ = inspect.signature(kind).parameters.values()
        taken = [p.replace(annotation=declared_options(kind)[p.name][1]) for p in fields_]
        options = own[-1].replace(kind=inspect.Parameter.KEYWORD_ONLY, default=None)
        signature = inspect.Signature([*own[:-1], *taken, options])

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            _check_names(function.__name__, kwargs, signature.parameters, kind)
            given = signature.bind(*args, **kwargs).arguments
            chosen = given.pop("options", None)
            changed = {p.name: given.pop(p.name) for p in taken if p.name in given}
            if chosen is None:
                chosen = kind(**changed)
            elif not isinstance(chosen, kind):
                raise UsageError(f"options are of type {type(chosen).__name__}; give {kind.__name__}(…)")
            elif changed:
                raise UsageError(f"options and {', '.join(changed)} are given; give one, or use dataclasses.replace")
            return function(**given, options=chosen)

        call.__signature__ = signature  # type: ignore[attr-defined]
        head, line, tail = (function.__doc__ or "").partition("        options: all of these together.\n")
        call.__doc__ = f"{head}{_described(kind)}\n{line}{tail}"
        return call

    return decorate


def _check_names(function: str, given: Iterable[str], known: Collection[str], kind: type) -> None:
    """Refuses arguments that a function does not have.

    Raises:
        TypeError: names the argument that the command line calls so, or one that is spelt alike.
    """
    for name in given:
        if name not in known:
            flag = f"--{name.replace('_', '-')}"
            same = [field for field, (_, _, option) in declared_options(kind).items() if flag in option.flags]
            alike = same or difflib.get_close_matches(name, known, 1)
            meant = f"; did you mean {alike[0]!r}?" if alike else ""
            raise TypeError(f"{function}() has no argument {name!r}{meant}")


def _shapes(texts: Sequence[str] | None) -> Mapping[str, tuple[int, ...]] | None:
    from nnstretch.frontends.input_shapes import parse_shapes

    return parse_shapes(texts) if texts else None


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",")) if text else ()


def _plans(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(part.strip() for part in text.split(";"))


def _milliseconds(text: str | None) -> float | None:
    return None if text is None else parse_milliseconds(text)


_PROCESSORS = f"{' or '.join(specifications())}, separated by commas"
_FIXED_BY_A_PLAN = ("dtype", "threads", "engines", "streams", "plans", "policy")
_PROGRESS = "Called with (done, total, what) during long work."


@_documented
@dataclass(frozen=True)
class CompileOptions:
    """How `nnstretch.compile` and the commands make a model runnable."""

    processors: str = _option(
        "--processors -p LIST",
        "evaluate tune compile run",
        f"Processors to run on: {_PROCESSORS}. A package brings its own; leave this out.",
        default="cpu",
    )
    dtype: str | None = _option(
        "--dtype TYPE",
        "evaluate tune compile run bench",
        "Element type in which a quantised network is computed: int8, as its file says; float32, unrounded; hybrid, each "
        "layer in the faster of the two on its processor, with the measured costs of conversions. A network in float32 takes "
        f"float32, or bfloat16: CPUs may multiply bfloat16 where that is faster, as with --tolerance {BFLOAT16_TOLERANCE:g}.",
        shown="the file's",
    )
    threads: int | None = _option(
        "--threads -t N", "evaluate tune compile run", "Use at most N cores of the first CPU.", minimum=1
    )
    tune: bool = _option(
        "--tune/--no-tune",
        "evaluate compile run bench",
        "Measure routines that have no stored measurement; --no-tune selects by estimates, and the model "
        "may take several times as long.",
        default=True,
        of_packages=True,
    )
    _: KW_ONLY
    shapes: Mapping[str, tuple[int, ...]] | None = _option(
        "--shape x=1,3,224,224",
        "*",
        "Shapes of inputs with dynamic dimensions. The option may be repeated.",
        text=list[str] | None,
        parse=_shapes,
    )
    batch: int | None = _option(
        "--batch -b N",
        "tune compile export run bench",
        "Images per run, for a network by name and for a file whose inputs have a dynamic first dimension.",
        minimum=1,
    )
    engines: Sequence[str] = _option(
        "--engines LIST",
        "evaluate tune compile run",
        "External engines that compute layers, or groups of layers, where they are measured to be faster: "
        f"{', '.join(ENGINES)}. The compiled model needs them to run.",
        default=(),
        text=str | None,
        parse=_names,
    )
    tolerance: float | None = _option(
        "--tolerance E",
        "evaluate tune compile run bench",
        "Largest error of a routine, relative to its output's range, that tuning accepts. From 1e-3 on, OpenCL "
        f"devices may store float16; from {FLOAT16_TOLERANCE:g} on, CPUs may multiply float16, and from "
        f"{BFLOAT16_TOLERANCE:g} on bfloat16.",
        shown=f"{TOLERANCE:g}, and {BFLOAT16_TOLERANCE:g} with bfloat16",
    )
    plan: str | Path | None = _option(
        "--plan FILE",
        "compile run bench",
        "A plan that `nnstretch tune -o` wrote: use its processors and routines without measuring.",
        text=Path | None,
    )
    streams: int | None = _option(
        "--streams N",
        "run bench",
        "For throughput: compute N inputs at the same time, on the arrangement of processors and cores that is "
        "predicted to be fastest.",
        minimum=1,
        of_packages=True,
    )
    plans: Sequence[str] | None = _option(
        "--plans LIST;LIST",
        "compile run",
        "The processors of each of several plans; on the command line separated by semicolons: "
        "cpu:0;cpu:0,opencl:0. The branches of a design are numbered by the plan with the most "
        "processors.",
        text=str | None,
        parse=_plans,
    )
    policy: str | None = _option(
        "--policy NAME",
        "run",
        "Which of several plans a run takes: adaptive (the fastest at the moment), fixed (the first, others only "
        "while it fails) or deadline=12ms (the one with the fewest processors that meets it).",
        shown="adaptive if there are several",
        of_packages=True,
    )
    target: str = _option(
        "--target TARGET",
        "evaluate",
        "The machine to run on; local is this machine.",
        default="local",
        of_packages=True,
    )
    trusted_sources: bool = _option(
        "--trusted-sources",
        "run bench",
        "Refuse a package with programs: OpenCL sources that differ from the installed ones, or the library of a delegate "
        "(litert:PATH).",
        default=False,
        of_packages=True,
    )
    rebalance: bool = _option(
        "--rebalance",
        "compile run",
        "Run the plan for several processors, and share out its layers again by the times of its steps, until no faster plan "
        "is predicted; the plan that ran fastest is kept. Of a package that was compiled with --keep-model, too; a package of "
        "several plans measures these again.",
        default=False,
        of_packages=True,
    )
    keep_model: bool = _option(
        "--keep-model",
        "compile",
        "Keep the network in the package, as ONNX, so that `run --rebalance` can share out its layers again on another device.",
        default=False,
    )
    progress: Progress | None = _option("", "", _PROGRESS, of_packages=True)

    def __post_init__(self) -> None:
        check_fields(self, {name: hint for name, (_, hint, _) in declared_options(CompileOptions).items()})
        if self.dtype not in (None, *DTYPES):
            raise UsageError(f"dtype {self.dtype!r} is not supported; use {', '.join(DTYPES)}, or leave it out")
        if not 0 < self.largest_error < 1:
            raise UsageError(
                f"tolerance is {self.largest_error:g}; it must be a positive number below 1, a share of the output's range, "
                "such as 1e-4"
            )
        if self.dtype == _BFLOAT16 and self.largest_error < BFLOAT16_TOLERANCE:
            raise UsageError(
                f"dtype bfloat16 needs a tolerance of {BFLOAT16_TOLERANCE:g} or more, and {self.largest_error:g} is given; "
                "leave one of them out"
            )
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
        self._check_one_new_plan()

    def _check_one_new_plan(self) -> None:
        """Refuses what goes with no plan that is made for one run at a time.

        Raises:
            UsageError: it is given.
        """
        others = [name for name in ("plan", "plans", "streams") if getattr(self, name) is not None]
        for name in ("rebalance", "keep_model"):
            if getattr(self, name) and others:
                raise UsageError(
                    f"{name} is for one new plan for one run at a time; leave it or {' and '.join(others)} out"
                )

    @property
    def largest_error(self) -> float:
        """The tolerance, given or that of the type: largest error of a routine, relative to its output's range."""
        if self.tolerance is not None:
            return self.tolerance
        return BFLOAT16_TOLERANCE if self.dtype == _BFLOAT16 else TOLERANCE

    def check_package(self, package: str | Path, others: Sequence[str] = ()) -> None:
        """Refuses options that were fixed when a package was made.

        Args:
            package: its file, for the message.
            others: names of further options that were given and are fixed.

        Raises:
            UsageError: one of them is given.
        """
        declared = declared_options(CompileOptions).values()
        given = [f.name for f, _, option in declared if not option.of_packages and getattr(self, f.name) != f.default]
        if given := [*given, *others]:
            own = [f"{name}{_processors_text(Path(package))}" if name == "processors" else name for name in given]
            raise UsageError(
                f"{package} is a package, made with its own {' and '.join(own)}; leave these options out, or compile the "
                "model again"
            )


def _processors_text(package: Path) -> str:
    """The processors of a package in parentheses; empty for another file."""
    from nnstretch.package.format import is_package
    from nnstretch.scheduler.plan.packaging import processors_of_package

    return f" ({processors_of_package(package)})" if is_package(package) else ""


_LIMITS = "Limits"
_FAMILY = "by the network's family"


def _limit(flag: str, shown: str, help: str, **more: Any) -> Any:
    """A limit of the search."""
    return _option(flag, "stretch sweep_designs", help, shown=shown, panel=_LIMITS, **more)


@_documented
@dataclass(frozen=True)
class StretchOptions:
    """How `nnstretch.stretch` and the command search for branched designs."""

    processors: str = _option(
        "--processors -p LIST",
        "stretch sweep_designs",
        f"One branch is made for each processor, in this order: {_PROCESSORS}.",
        default="cpu,opencl",
    )
    _: KW_ONLY
    limits: SearchLimits | None = _option("", "", "Limits of the search, which the options below change.")
    alpha: float | None = _limit(
        "--alpha SHARE",
        "0.3",
        "Largest cost of a meeting point, as a share of the time of the segment before it.",
        minimum=0.0,
    )
    beta: float | None = _limit(
        "--beta SHARE",
        "0.8",
        "Largest time of a branch, as a share of the segment's time on the fastest processor.",
        minimum=0.0,
    )
    min_depth: float | None = _limit(
        "--min-depth SHARE", _FAMILY, "Least share of a segment's blocks that a branch keeps."
    )
    min_width: float | None = _limit(
        "--min-width SHARE", _FAMILY, "Least share of a segment's width that a branch has."
    )
    min_macs: float | None = _limit(
        "--min-macs SHARE", "0.8", "Least share of a segment's MACs that its branches have together."
    )
    max_segment: float | None = _limit(
        "--max-segment SHARE", "0.4", "Largest share of the network's MACs in one segment; branches meet at its end."
    )
    target_ms: float | None = _option(
        "--latency-target TIME",
        "stretch",
        "Latency in milliseconds, on the command line such as 12ms: find the designs with the most MACs that "
        "are predicted to meet it, instead of the fastest.",
        text=str | None,
        parse=_milliseconds,
    )
    designs: int = _option("--top K", "stretch", "Return at most K designs.", default=1, minimum=1)
    pareto: bool = _option(
        "--pareto", "stretch", "Return designs from the whole Pareto front of latency and MACs.", default=False
    )
    learned: bool | None = _option(
        "--learned/--measure-all",
        "stretch sweep_designs",
        "--learned measures some layers, predicts the others from them, and then measures the layers of the best designs; "
        "--measure-all measures every layer.",
        shown="learned where xgboost is installed",
    )
    multiple: int | None = _option(
        "", "", "Scaled layers have multiples of this many channels; None: the block of the layout."
    )
    measure: bool = _option(
        "--measure/--no-measure",
        "stretch",
        "Run the best design and rebalance its branches by their measured times; not on simulated processors.",
        default=True,
    )
    fresh: bool = _option(
        "--fresh",
        "stretch",
        "Run designs again, although the same search has run some before; measurements of layers are reused.",
        default=False,
    )
    time_limit: float | None = _option(
        "--timeout --time-limit SECONDS",
        "stretch",
        "Run no further designs after this many seconds of searching; layers are always measured and predicted first.",
        shown="none",
    )
    best_effort: bool = _option(
        "--best-effort",
        "stretch",
        "If no design is within --alpha and --beta, as while other programs run, search without these two limits.",
        default=False,
    )
    even_if_slower: bool = _option(
        "--even-if-slower",
        "stretch",
        "Return branched designs even if the network without branches is predicted to be as fast; otherwise it is then "
        "returned as a design without branches. Designs stay within --alpha, --beta and --min-macs (see --best-effort).",
        default=False,
    )
    pool: bool = _option(
        "--pool/--no-pool",
        "stretch",
        "Compare with all CPU cores as one processor, too. --no-pool leaves it out, where groups of cores stand for processors "
        "that cannot be one, as a CPU and a GPU.",
        default=True,
    )
    merge: str = _option(
        "--merge HOW",
        "stretch",
        "How branches meet: concat; concat+1x1 (a 1x1 convolution makes each branch's share of the original "
        "channels); add (a 1x1 convolution in every branch makes all of them, and they are summed).",
        default="concat",
    )
    progress: Progress | None = _option("", "", _PROGRESS)

    def __post_init__(self) -> None:
        check_fields(self, {name: hint for name, (_, hint, _) in declared_options(StretchOptions).items()})

    def search_limits(self) -> SearchLimits:
        """The limits of the search.

        Raises:
            DesignError: a limit is out of range.
            UsageError: `limits` are of another type.
        """
        from nnstretch.branching.search.limits import SearchLimits

        if self.limits is not None and not isinstance(self.limits, SearchLimits):
            raise UsageError(f"limits are of type {type(self.limits).__name__}; give SearchLimits(…)")
        given = {f.name: getattr(self, f.name, None) for f in fields(SearchLimits)}
        limits = replace(self.limits or SearchLimits(), **{n: value for n, value in given.items() if value is not None})
        limits.check()
        return limits
