"""What measurement-guided refinement has found, kept in the cache directory: the same search again runs no design."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nnstretch.branching.design.blueprint import Blueprint
from nnstretch.branching.design.design import Design
from nnstretch.branching.design.from_choices import check_choices, check_head, choices_of, head_of
from nnstretch.branching.search.bounds_file import weights_digest
from nnstretch.errors import NNStretchError
from nnstretch.support.json_text import DAMAGED
from nnstretch.support.settings import searches_dir, write_text

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class KeptRefinement:
    """What a refinement has found.

    Attributes:
        design: the fastest one that ran.
        measured_ms: milliseconds of the tuned designs that ran, by id.
        corrections: as in `LatencyTable`.
        unbranched_ms: milliseconds of the plans without branches that ran, as in `PlanRuns`.
    """

    design: Design
    measured_ms: Mapping[str, float]
    corrections: Mapping[tuple[int, int], float]
    unbranched_ms: Mapping[str, float] = field(default_factory=dict)


def refinement_file(prepared: Blueprint, conditions: Sequence[object]) -> Path:
    """Where a search keeps what its refinement finds.

    Args:
        prepared: the network; its weights count, because they decide which blocks and channels are kept.
        conditions: whatever else decides what the refinement finds: processors, engine, limits.

    Raises:
        FileError: the cache directory cannot be made.
    """
    traced = prepared.traced
    about = [str(traced.graph.graph), str(tuple(traced.example_input.shape)), weights_digest(traced.graph)]
    about += [str(prepared.multiple), prepared.merge.value, *map(str, conditions)]
    digest = hashlib.sha256("\0".join(about).encode()).hexdigest()
    return searches_dir() / f"{digest[:32]}.json"


def read_refinement(path: Path, prepared: Blueprint) -> KeptRefinement | None:
    """What an earlier refinement has found; None if there was none, or if its file is damaged."""
    try:
        found = _parsed(json.loads(path.read_bytes()))
        check_choices(prepared, choices_of(found.design))
        check_head(prepared, head_of(found.design))
    except FileNotFoundError:
        return None
    except (OSError, NNStretchError, *DAMAGED) as error:
        log.warning("%s is no result of a search (%s); the designs run again", path, error)
        return None
    return found


def _parsed(fields: Mapping[str, Any]) -> KeptRefinement:
    """The file's fields, checked."""
    measured = {str(name): _positive(ms) for name, ms in fields["measured_ms"].items()}
    corrections = {(int(block), int(processor)): _positive(ratio) for block, processor, ratio in fields["corrections"]}
    plans = {str(place): _positive(ms) for place, ms in fields.get("unbranched_ms", {}).items()}
    return KeptRefinement(Design.from_json(json.dumps(fields["design"])), measured, corrections, plans)


def _positive(value: object) -> float:
    if not isinstance(value, float) or not 0 < value < math.inf:
        raise ValueError(f"{value!r} is no positive number")
    return value


def keep_refinement(path: Path, found: KeptRefinement) -> None:
    """Writes what a refinement has found, complete or not at all; without it, the next search runs designs again."""
    corrections = [(block, processor, ratio) for (block, processor), ratio in found.corrections.items()]
    fields = {
        "design": json.loads(found.design.to_json()),
        "measured_ms": found.measured_ms,
        "corrections": corrections,
        "unbranched_ms": dict(found.unbranched_ms),
    }
    try:
        write_text(path, json.dumps(fields, indent=1) + "\n")
    except NNStretchError as error:
        log.warning("the result of the search is not kept: %s", error)


def keep_plan_runs(path: Path, prepared: Blueprint, unbranched_ms: Mapping[str, float]) -> None:
    """Adds plans without branches that ran to what a refinement has found; does nothing where that was not kept.

    Args:
        path: of the refinement, which is that of the same search.
        prepared: the network.
        unbranched_ms: as in `PlanRuns`.
    """
    found = read_refinement(path, prepared)
    if found is not None:
        finite = {place: ms for place, ms in unbranched_ms.items() if math.isfinite(ms)}
        keep_refinement(path, replace(found, unbranched_ms=finite))
