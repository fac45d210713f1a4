"""`nnstretch.stretch`: from a trained module to ranked branched modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ParamSpec, Protocol, overload

import torch

from nnstretch.api.calls import with_options
from nnstretch.api.options import StretchOptions
from nnstretch.branching.design.accounting import working_set
from nnstretch.branching.design.design import parse_merge
from nnstretch.branching.stretch import StretchResult
from nnstretch.branching.stretch import stretch as search
from nnstretch.compiler.costs import latency_predictor
from nnstretch.compiler.processors import build_processors
from nnstretch.latency.design_runs import design_runner

_Fields = ParamSpec("_Fields")


class _Stretch(Protocol[_Fields]):
    """A call that takes the fields of an options class, or the options."""

    @overload
    def __call__(
        self,
        module: torch.nn.Module,
        example_input: torch.Tensor,
        *args: _Fields.args,
        **kwargs: _Fields.kwargs,
    ) -> Sequence[StretchResult]: ...

    @overload
    def __call__(
        self, module: torch.nn.Module, example_input: torch.Tensor, *, options: StretchOptions
    ) -> Sequence[StretchResult]: ...


def _typed(
    fields: Callable[_Fields, StretchOptions],
) -> Callable[[Callable[..., Sequence[StretchResult]]], _Stretch[_Fields]]:
    return with_options(StretchOptions)


@_typed(StretchOptions)
def stretch(
    module: torch.nn.Module, example_input: torch.Tensor, *, options: StretchOptions
) -> Sequence[StretchResult]:
    """Finds branched designs of a trained module for processors, best first.

    Args:
        module: any module that can be traced; it is not changed.
        example_input: one input of the shape to run at, N,C,H,W.
        options: all of these together.

    Returns:
        Results whose `module` is a torch module with inherited weights, and whose `design` is data.

    Raises:
        NNStretchError: what was found, what was wanted, and what to do.
    """
    limits, merge = options.search_limits(), parse_merge(options.merge)
    usable = build_processors(options.processors)
    predicting = latency_predictor(usable, learned=options.learned, working_set=working_set(module, example_input))

    return search(
        module,
        example_input,
        predicting,
        len(usable.named),
        limits,
        multiple=usable.host.blocked.block if options.multiple is None else options.multiple,
        designs=options.designs,
        pareto=options.pareto,
        runner=design_runner(usable, example_input, predicting) if options.measure else None,
        progress=options.progress,
        merge=merge,
    )
