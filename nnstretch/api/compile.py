"""`nnstretch.compile`: from a model in any form to a session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, overload

import onnx_ir as ir

from nnstretch.api.options import CompileOptions, with_options
from nnstretch.compiler.compile import compile_model
from nnstretch.compiler.processors import build_processors
from nnstretch.compiler.saved_plan import compile_with_plan
from nnstretch.compiler.several_plans import arrangements, compile_plans, load_streams
from nnstretch.devices.targets.workers import open_target
from nnstretch.frontends.resolve import load_any
from nnstretch.scheduler.runtime.adaptive.session import AdaptiveSession
from nnstretch.scheduler.runtime.arrangement import choose
from nnstretch.scheduler.runtime.base_session import Session
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
    if options.streams is None:
        return compile_model(graph, usable, tune=options.tune, progress=options.progress)
    found = arrangements(graph, usable, options.streams, tune=options.tune, progress=options.progress)
    return StreamSession(choose(found))


def open_package(path: Path, options: CompileOptions) -> Session:
    """A session for a package. Options that were fixed when it was made are refused.

    Raises:
        UsageError: such an option is given.
        FileError, PackageError: it cannot be read, is damaged or too new, or has sources that are not trusted.
        NNStretchError: it cannot run here.
    """
    options.check_package(path)
    open_target(options.target)
    if options.policy is not None:
        return AdaptiveSession.load(path, options.policy, trusted_sources=options.trusted_sources)
    if options.streams is not None:
        return load_streams(path, options.streams, trusted_sources=options.trusted_sources)
    return PlanSession.load(path, trusted_sources=options.trusted_sources)
