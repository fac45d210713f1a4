"""The front door: `nnstretch.compile` and `nnstretch.stretch`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, Unpack, overload

from nnstretch.errors import UsageError
from nnstretch.scheduler.runtime.session import PlanSession
from nnstretch.support.progress import Progress

if TYPE_CHECKING:
    import onnx_ir as ir
    import torch

    from nnstretch.branching.search.limits import SearchLimits
    from nnstretch.branching.stretch import StretchResult
    from nnstretch.scheduler.runtime.adaptive.session import AdaptiveSession
    from nnstretch.scheduler.runtime.streams.session import StreamSession

    Model: TypeAlias = str | Path | ir.Model | torch.nn.Module


class CompileOptions(TypedDict, total=False):
    """What `compile` takes by name, whatever kind of session is asked for; meanings and defaults stand there."""

    dtype: str
    threads: int | None
    tune: bool
    shapes: dict[str, tuple[int, ...]] | None
    batch: int | None
    engines: Sequence[str]
    tolerance: float
    progress: Progress | None


@overload
def compile(
    model: Model,
    example_input: Any = ...,
    processors: str = ...,
    *,
    streams: None = ...,
    plans: None = ...,
    policy: None = ...,
    **options: Unpack[CompileOptions],
) -> PlanSession: ...


@overload
def compile(
    model: Model, example_input: Any = ..., processors: str = ..., *, streams: int, **options: Unpack[CompileOptions]
) -> StreamSession: ...


@overload
def compile(
    model: Model,
    example_input: Any = ...,
    *,
    plans: Sequence[str],
    policy: str | None = ...,
    **options: Unpack[CompileOptions],
) -> AdaptiveSession: ...


@overload
def compile(
    model: Model, example_input: Any = ..., processors: str = ..., *, policy: str, **options: Unpack[CompileOptions]
) -> AdaptiveSession: ...


def compile(
    model: Model,
    example_input: Any = None,
    processors: str = "cpu",
    dtype: str = "float32",
    threads: int | None = None,
    tune: bool = True,
    *,
    shapes: dict[str, tuple[int, ...]] | None = None,
    batch: int | None = None,
    engines: Sequence[str] = (),
    tolerance: float = 1e-4,
    streams: int | None = None,
    progress: Progress | None = None,
    plans: Sequence[str] | None = None,
    policy: str | None = None,
) -> PlanSession | AdaptiveSession | StreamSession:
    """Makes a model runnable on processors.

    Args:
        model: an ONNX file, a package (.nns, whose plan is used as it is), a zoo name, `module.py:factory`, an onnx_ir model or
            a torch module (which needs `example_input`).
        example_input: a tensor, or a tuple of tensors, of the shapes to compile for (torch modules).
        processors: as in `cpu:0-3,opencl:0@4` (`nnstretch.devices.base.spec`).
        dtype: "float32".
        threads: at most so many cores of the first CPU.
        tune: measure routines (reusing what was measured before) and choose the fastest; else choose by estimates.
        shapes: input name -> shape, for models with dynamic shapes.
        batch: images per run, for models by name and for inputs whose first dimension is dynamic.
        engines: other engines, "ort" (ONNX Runtime) and "litert" (LiteRT), that compute layers, or runs of layers, on the first
            CPU where tuning measures them to be faster; what is compiled needs them to run then.
        tolerance: error that a routine may have, relative to its output's range, where tuning measures routines. From 1e-3 on
            OpenCL devices may store data as float16.
        streams: for throughput instead of latency: so many inputs are on their way at a time, on processors and cores as is
            predicted to be fastest.
        progress: told how far measuring has come.
        plans: instead of `processors`, those of each of several plans, as in `["cpu:0", "opencl:0@1", "cpu:0,opencl:0@1"]`. A
            design is placed on the processors of the plan that has the most of them.
        policy: which of several plans a run takes: "adaptive" (the fastest at the moment; meant where plans are given), "fixed"
            (the first one, others while it fails) or "deadline=12ms" (the one with the fewest processors that takes no longer).
            Without it a package of several plans runs the first one whose processors are here.

    Returns:
        A session with ONNX Runtime's call signature: `session.run(None, {"x": x})`. With `streams`, one that has
        `run_many([feeds, …])` and `submit(feeds)`, too; with `plans` or a `policy` one that changes between plans
        (`nnstretch.scheduler.runtime.adaptive.session.AdaptiveSession`).

    Raises:
        NNStretchError: what was found, what was wanted, and what to do.
    """
    from nnstretch.compiler.compile import compile_model
    from nnstretch.compiler.loading import load_any
    from nnstretch.compiler.processors import build_processors

    if dtype != "float32":
        raise UsageError(f"dtype {dtype!r} is not supported; use float32")
    if streams is not None and (plans is not None or policy is not None):
        raise UsageError("streams are for throughput, plans and policy for one run at a time; leave one of them out")
    if isinstance(model, str | Path) and str(model).endswith(".nns"):
        return _open_package(Path(model), streams, policy)
    if plans is not None and processors != "cpu":
        raise UsageError("processors and plans both say what to run on; give one of them")
    loaded = load_any(model, example_input, shapes, batch)
    if plans is not None or policy is not None:
        from nnstretch.compiler.several_plans import compile_plans

        return compile_plans(
            loaded,
            [processors] if plans is None else plans,
            policy=policy or "adaptive",
            threads=threads,
            engines=engines,
            tolerance=tolerance,
            tune=tune,
            progress=progress,
        )
    usable = build_processors(processors, threads, engines, tolerance)
    if streams is None:
        return compile_model(loaded, usable, tune=tune, progress=progress)
    from nnstretch.compiler.streams import arrangements
    from nnstretch.scheduler.runtime.streams.session import StreamSession

    return StreamSession.fastest(arrangements(loaded, usable, streams, tune=tune, progress=progress))


def _open_package(path: Path, streams: int | None, policy: str | None) -> PlanSession | AdaptiveSession | StreamSession:
    """A session for a package, as it was compiled."""
    if policy is not None:
        from nnstretch.scheduler.runtime.adaptive.session import AdaptiveSession

        return AdaptiveSession.load(path, policy)
    if streams is None:
        return PlanSession.load(path)
    from nnstretch.compiler.streams import load_streams

    return load_streams(path, streams)


def stretch(
    module: torch.nn.Module,
    example_input: torch.Tensor,
    processors: str = "cpu,opencl",
    *,
    limits: SearchLimits | None = None,
    learned: bool | None = None,
    multiple: int | None = None,
    designs: int = 1,
    pareto: bool = False,
    trials: bool = True,
    merge: str = "concat",
    progress: Progress | None = None,
    **changed: float,
) -> Sequence[StretchResult]:
    """Finds branchings of a trained module for processors, best first.

    Args:
        module: any module that can be traced; left as it is.
        example_input: one input of the shape to run at, N,C,H,W.
        processors: one branch is made for each, in this order.
        limits: what designs must meet; the usual limits if None.
        learned: latencies of layers that were never measured are predicted from those that were, and only the best designs are
            measured layer by layer (needs xgboost); by default if xgboost is installed.
        multiple: scaled layers have multiples of so many channels; the block of the processors' layout if None.
        designs: how many to return at most.
        pareto: spread them over the front of latency and MACs instead of giving the fastest ones.
        trials: run the best design, and share its work out anew after what every branch took (not on simulated processors).
        merge: how branches meet: "concat"; "concat+1x1", where a 1x1 convolution makes each branch's share of the original
            channels; "add", where one makes all of them in every branch and they are summed.
        progress: told how far measuring has come.
        changed: fields of `limits` to change, as in `alpha=0.1, min_macs=0.9` (`nnstretch.branching.SearchLimits`).

    Returns:
        Results whose `module` is a torch module with inherited weights and whose `design` is data.
    """
    from nnstretch.branching.design.accounting import working_set
    from nnstretch.branching.design.design import parse_merge
    from nnstretch.branching.search.limits import SearchLimits
    from nnstretch.branching.stretch import stretch as search
    from nnstretch.compiler.costs import latency_predictor
    from nnstretch.compiler.processors import build_processors
    from nnstretch.latency.design_runs import design_trial

    usable = build_processors(processors)
    predicting = latency_predictor(usable, learned=learned, working_set=working_set(module, example_input))

    return search(
        module,
        example_input,
        predicting,
        len(usable.named),
        replace(limits or SearchLimits(), **changed),
        multiple=usable.host.blocked.block if multiple is None else multiple,
        designs=designs,
        pareto=pareto,
        runner=design_trial(usable, example_input, predicting) if trials else None,
        progress=progress,
        merge=parse_merge(merge),
    )
