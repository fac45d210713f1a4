"""The answer of an equal-MACs comparison: its figures, and what they were made with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nnstretch.bench.ablation.result import Ablation
    from nnstretch.branching.design.design import Design


def comparison_answer(
    model: str,
    ablation: Ablation,
    design: Design,
    machine: Mapping[str, Any] | None,
    *,
    unbranched: str | None = None,
    histories: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
) -> dict[str, Any]:
    """The object that `bench --design FILE --json` prints, from which its page is made.

    Args:
        model: name of the network.
        ablation: the figures.
        design: the branching.
        machine: the result of `nnstretch.bench.timing.describe_machine`; None for simulated latencies.
        unbranched: why the network is the original, without branches; None if it is branched.
        histories: network -> its training, epoch by epoch (the fields of `EpochRecord`).
    """
    return {
        "model": model,
        **ablation.to_json(),
        "machine": None if machine is None else dict(machine),
        "design": json.loads(design.to_json()),
        "unbranched": unbranched,
        "histories": {name: list(records) for name, records in (histories or {}).items()},
    }
