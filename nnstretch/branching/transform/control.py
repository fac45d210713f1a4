"""The single-branch control: the original network scaled in width to a branched network's MACs (equal-MACs control).

A branched network gains over its control by concurrency; the control gains over the original by fewer MACs.
Reporting both separates the two effects.
"""

from __future__ import annotations

from torch import Tensor, nn

from nnstretch.branching.channels.scaling import DEFAULT_MULTIPLE, best_groups, importance_scores
from nnstretch.branching.design.equal_macs import equal_macs_counts, whole_plan
from nnstretch.branching.tracing.trace import trace
from nnstretch.branching.transform.inherit import scaled_copy


def single_branch_control(
    module: nn.Module, example_input: Tensor, target_macs: int, multiple: int = DEFAULT_MULTIPLE
) -> nn.Module:
    """`module` scaled uniformly in width to `target_macs`, with inherited weights and in its training mode.

    Above the original's MACs the most important channels are repeated, which does not change the function.

    Args:
        module: a network that can be branched; it is not changed.
        example_input: an `N,C,H,W` batch that it accepts.
        target_macs: multiply-accumulates for one sample.
        multiple: channels are rounded to multiples of this; it is halved until the target is met.

    Raises:
        DesignError: the network cannot be traced, or no width has MACs within 1 % of the target.
    """
    traced = trace(module, example_input)
    plan = whole_plan(traced)
    counts = equal_macs_counts(plan, target_macs, multiple)
    selection = {
        group.index: best_groups(scores, count)
        for group, scores, count in zip(plan.groups, importance_scores(plan), counts, strict=True)
    }
    control, _ = scaled_copy(plan, selection)
    return control.train(traced.training)
