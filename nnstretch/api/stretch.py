"""`nnstretch.stretch`: from a trained module to ranked branched modules."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import ParamSpec, Protocol, overload

import torch

from nnstretch.api.options import StretchOptions, with_options
from nnstretch.branching.design.accounting import working_set
from nnstretch.branching.design.blueprint import blueprint
from nnstretch.branching.design.design import parse_merge
from nnstretch.branching.latency.network_layers import original_layers
from nnstretch.branching.search.kept_refinement import refinement_file
from nnstretch.branching.search.options import SearchOptions
from nnstretch.branching.stretch import StretchResult
from nnstretch.branching.stretch import stretch as search
from nnstretch.compiler.costs import latency_predictor
from nnstretch.compiler.design_runs import UnbranchedRunner, design_runner
from nnstretch.compiler.placed_prediction import placed_predictor
from nnstretch.compiler.pool import pool_of
from nnstretch.compiler.processors import Processors, build_processors
from nnstretch.errors import UsageError
from nnstretch.frontends.resolve import load_module
from nnstretch.frontends.torch_module import export
from nnstretch.scheduler.costmodel.predictor import ProfilePredictor
from nnstretch.support.extras import extras_named
from nnstretch.support.progress import silent
from nnstretch.support.rare_collections import rare_collections
from nnstretch.support.settings import transfer_delay_us

_Fields = ParamSpec("_Fields")


class _Stretch(Protocol[_Fields]):
    """A call that takes the fields of an options class, or the options."""

    @overload
    def __call__(
        self,
        module: torch.nn.Module | str | Path,
        example_input: torch.Tensor | None = None,
        *args: _Fields.args,
        **kwargs: _Fields.kwargs,
    ) -> Sequence[StretchResult]: ...

    @overload
    def __call__(
        self,
        module: torch.nn.Module | str | Path,
        example_input: torch.Tensor | None = None,
        *,
        options: StretchOptions,
    ) -> Sequence[StretchResult]: ...


def _typed(
    fields: Callable[_Fields, StretchOptions],
) -> Callable[[Callable[..., Sequence[StretchResult]]], _Stretch[_Fields]]:
    return with_options(StretchOptions)


@_typed(StretchOptions)
@extras_named()
def stretch(
    module: torch.nn.Module | str | Path, example_input: torch.Tensor | None = None, *, options: StretchOptions
) -> Sequence[StretchResult]:
    """Finds branched designs of a trained module for processors, best first: the one that ran before those that are predicted.

    Args:
        module: any module that can be traced, which is not changed; or an ONNX or TFLite file, which becomes one with its
            weights, `module.py:factory`, or a zoo name.
        example_input: one input of the shape to run at, N,C,H,W. None for a file or name: noise of the shape that it is for.
        options: all of these together.

    Returns:
        Results whose `module` is a torch module with inherited weights, and whose `design` is data. If branching is not
        predicted to be ahead, the only design has no meeting points; `report.unbranched` and `report.branched_ms` say by how
        much.

    Raises:
        NNStretchError: what was found, what was wanted, and what to do.
    """
    if isinstance(module, str | Path):
        module, image = load_module(str(module))
        example_input = image if example_input is None else example_input
    if not isinstance(module, torch.nn.Module):
        raise UsageError(
            f"module is of type {type(module).__name__}; give a torch Module, an ONNX or TFLite file, "
            "FILE.py:FACTORY or the name of a zoo network"
        )
    if not isinstance(example_input, torch.Tensor):
        raise UsageError(f"example_input is of type {type(example_input).__name__}; give a torch Tensor")
    options.search_limits()  # refuses numbers out of range before processors are opened
    with rare_collections():
        return stretch_on(module, example_input, options, build_processors(options.processors))


def stretch_on(
    module: torch.nn.Module, example_input: torch.Tensor, options: StretchOptions, usable: Processors
) -> Sequence[StretchResult]:
    """As `stretch`, for processors that are open; designs run only on those of this machine."""
    limits, merge = options.search_limits(), parse_merge(options.merge)
    touched = working_set(module, example_input)
    quick = options.learned is not False
    predicting = latency_predictor(usable, learned=options.learned, working_set=touched, quick=quick)
    progress = options.progress or silent
    progress(0, 0, "tracing the network")
    multiple = usable.host.blocked.block if options.multiple is None else options.multiple
    prepared = blueprint(module, example_input, multiple, merge)
    if isinstance(predicting, ProfilePredictor):
        predicting.prepare(original_layers(prepared), progress)
    fingerprints = [processor.fingerprint for processor in (usable.host, *usable.named)]
    conditions = (*fingerprints, transfer_delay_us(), limits, options.best_effort, options.learned)
    runner = design_runner(usable, example_input, predicting) if options.measure else None
    exported = cache(lambda: export(module, example_input))  # for every way to run it without branches
    wanted = SearchOptions(
        len(usable.named),
        limits,
        options.designs,
        options.pareto,
        runner=runner,
        plan_runner=None if runner is None else UnbranchedRunner(runner, exported),
        kept=None if runner is None else refinement_file(prepared, conditions),
        fresh=options.fresh,
        time_limit=math.inf if options.time_limit is None else options.time_limit,
        best_effort=options.best_effort,
        even_if_slower=options.even_if_slower,
        placed_seconds=placed_predictor(usable, exported, predicting),
        pool=pool_of(usable, learned=options.learned, working_set=touched, quick=quick) if options.pool else None,
        progress=progress,
    )
    return search(prepared, predicting, wanted)
