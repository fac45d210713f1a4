"""`nnstretch.compile`: from a model in any form to a session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, overload

import onnx_ir as ir

from nnstretch.api.options import CompileOptions, with_options
from nnstretch.compiler.compile import compile_model, plan_model
from nnstretch.compiler.kept_model import KeptModel, kept_model
from nnstretch.compiler.processors import Processors, build_processors
from nnstretch.compiler.rebalance import rebalance_model
from nnstretch.compiler.saved_plan import compile_with_plan
from nnstretch.compiler.several_plans import arrangements, compile_plans, load_streams
from nnstretch.devices.base.spec import usable_cores
from nnstretch.devices.targets.workers import open_target
from nnstretch.errors import DeviceError, UsageError
from nnstretch.frontends.resolve import load_any
from nnstretch.package import read_package
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.plan.packaging import check_alike, check_no_libraries, check_trusted, unpackaged
from nnstretch.scheduler.plan.tuned_on import metadata_of_plan
from nnstretch.scheduler.runtime.adaptive.session import AdaptiveSession
from nnstretch.scheduler.runtime.arrangement import choose
from nnstretch.scheduler.runtime.base_session import Session
from nnstretch.scheduler.runtime.loading import place_queues
from nnstretch.scheduler.runtime.session import PlanSession
from nnstretch.scheduler.runtime.stream_session import StreamSession
from nnstretch.support.extras import extras_named

if TYPE_CHECKING:
    from nnstretch.frontends.resolve import Model

_Fields = ParamSpec("_Fields")


class _Compile(Protocol[_Fields]):
    """A call that takes the fields of an options class, or the options."""

    @overload
    def __call__(
        self, model: Model, example_input: Any = ..., *args: _Fields.args, **kwargs: _Fields.kwargs
    ) -> Session: ...

    @overload
    def __call__(self, model: Model, example_input: Any = ..., *, options: CompileOptions) -> Session: ...


def _typed(fields: Callable[_Fields, CompileOptions]) -> Callable[[Callable[..., Session]], _Compile[_Fields]]:
    return with_options(CompileOptions)


@_typed(CompileOptions)
@extras_named()
def compile(model: Model, example_input: Any = None, *, options: CompileOptions) -> Session:
    """Makes a model runnable.

    Args:
        model: an ONNX file, a package (.nns, which keeps its plans and processors: options
            that would change them are refused), a zoo name, `module.py:factory`, an
            onnx_ir model, an `onnx.ModelProto` or its bytes, or a torch module (which needs `example_input`). Layers of a
            branched network, such as `designs[0].module` of `stretch`, run on the processors of its design, in the order of
            `processors`.
        example_input: a tensor, or a tuple of tensors, of the shapes to compile for (torch modules).
        options: all of these together.

    Returns:
        A session, which is called as ONNX Runtime's are, by `session.run(None, {"x": x})`. With `streams` it computes several
        inputs at the same time (`run_many`, `submit`); with `plans` or a `policy` it changes between plans (`switches`).
        A package of several plans without a `policy` runs the first plan whose processors are here.

    Raises:
        NNStretchError: what was found, what was wanted, and what to do.
    """
    if isinstance(model, str | Path) and str(model).endswith(".nns"):
        return open_package(Path(model), options)
    shapes = None if options.shapes is None else dict(options.shapes)
    return compile_graph(load_any(model, example_input, shapes, options.batch), options)


def compile_graph(graph: ir.Model, options: CompileOptions) -> Session:
    """A session for an unoptimised graph, whose shapes and batch are those of the options already.

    Raises:
        NNStretchError: what was found, what was wanted, and what to do.
    """
    open_target(options.target)
    for name in ("rebalance", "keep_model"):
        if getattr(options, name) and options.policy is not None:
            raise UsageError(f"a policy is for several plans, and {name} for one; leave one of them out")
    if options.plan is not None:
        return PlanSession(compile_with_plan(graph, options))
    if options.plans is not None or options.policy is not None:
        return compile_plans(
            graph,
            [options.processors] if options.plans is None else options.plans,
            options.policy or "adaptive",
            options,
        )
    usable = build_processors(options)
    if options.rebalance or options.keep_model:
        return _rebalanced_or_kept(graph, usable)
    if options.streams is None:
        return compile_model(graph, usable, tune=options.tune, progress=options.progress)
    found = arrangements(graph, usable, options.streams, tune=options.tune, progress=options.progress)
    return StreamSession(choose(found))


def _rebalanced_or_kept(graph: ir.Model, processors: Processors) -> PlanSession:
    """A session for a graph that is rebalanced, or whose package keeps the graph, or both."""
    options = processors.options
    kept = KeptModel.of(graph, processors) if options.keep_model else None  # before passes change the graph
    if options.rebalance:
        compiled = rebalance_model(graph, processors, progress=options.progress)
    else:
        compiled = plan_model(graph, processors, tune=options.tune, progress=options.progress)
    return PlanSession(kept.kept_by(compiled) if kept else compiled)


def open_package(path: Path, options: CompileOptions) -> Session:
    """A session for a package. Options that were fixed when it was made are refused.

    Raises:
        UsageError: such an option is given.
        FileError, PackageError: it cannot be read, is damaged or too new, or has sources that are not trusted.
        NNStretchError: it cannot run here.
    """
    options.check_package(path)
    open_target(options.target)
    if options.rebalance:
        return rebalance_package(path, options)
    if options.policy is not None:
        return AdaptiveSession.load(path, options.policy, trusted_sources=options.trusted_sources)
    if options.streams is not None:
        return load_streams(path, options.streams, trusted_sources=options.trusted_sources)
    return PlanSession.load(path, trusted_sources=options.trusted_sources)


def rebalance_package(path: Path, options: CompileOptions) -> Session:
    """A session for a package whose plan is rebalanced here, or whose several plans are measured again.

    Raises:
        UsageError: the package has one plan and keeps no model.
        FileError, PackageError: it cannot be read, is damaged or too new, or has sources that are not trusted.
        NNStretchError: it cannot run here.
    """
    package = read_package(path)
    if options.trusted_sources:
        check_trusted(package, path)
    if len(package.plans) > 1:
        policy, trusted = options.policy or "adaptive", options.trusted_sources
        return AdaptiveSession.load(path, policy, trusted_sources=trusted, measure_again=True)
    if not package.model:
        raise UsageError(
            f"{path} has one plan and no model to share out again; compile the model with --keep-model, or for several "
            "plans with --plans"
        )
    if options.policy is not None:
        raise UsageError(f"{path} has one plan; leave the policy out")
    graph, own = kept_model(package, path, options)
    if options.trusted_sources:
        check_no_libraries(own.processors, path)
    (compiled,) = unpackaged(package).values()
    made = rebalance_model(
        graph,
        build_processors(own),
        packaged=compiled if _has_cores(compiled) else None,
        sources=package.sources,
        progress=options.progress,
    )
    if made.plan is compiled.plan:
        return PlanSession(made, package.sources)
    check_alike({"of the package": compiled, "of its model": made})
    about = {**package.metadata, **metadata_of_plan(made.plan)}
    return PlanSession(replace(made, metadata=about, kept_model=package.model))


def _has_cores(compiled: Compiled) -> bool:
    """Whether this process has the cores that a plan needs; otherwise another plan is made, and its own does not run."""
    try:
        place_queues(compiled.plan.queues, usable_cores())
    except DeviceError:
        return False
    return True
