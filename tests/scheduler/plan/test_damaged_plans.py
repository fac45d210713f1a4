"""Altered plans in packages with valid checksums: refused with one line, or run safely."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.compiler.compile import plan_model
from nnstretch.compiler.processors import build_processors
from nnstretch.errors import NNStretchError, PackageError
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.plan.schema import Plan
from nnstretch.scheduler.plan.validate import validate
from nnstretch.scheduler.runtime.session import PlanSession
from tests.kits.graphs.graphs import RandomNetwork

CORES = sorted(os.sched_getaffinity(0))
NETWORK = RandomNetwork(104, processors=2, nodes=12, size=8)
Path = tuple[str | int, ...]

INTEGERS = st.sampled_from([0, 1, -1, 7, 2**31, 2**40, 2**63 - 1, 2**70]) | st.integers(-100, 5000)
ANYTHING = st.one_of(INTEGERS, st.none(), st.text(max_size=3), st.just([]), st.just({}), st.booleans(), st.floats())


@cache
def compiled() -> Compiled:
    return plan_model(NETWORK.graph(), build_processors(f"cpu:{CORES[0]},cpu:{CORES[-1]}"), tune=False)


@cache
def places() -> list[Path]:
    return [place for place in _places(json.loads(compiled().plan.to_json())) if place]


def _places(part: Any, here: Path = ()) -> Iterator[Path]:
    yield here
    for key, inner in part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ():
        yield from _places(inner, (*here, key))


def altered(*changes: tuple[Path, Any]) -> str:
    raw = json.loads(compiled().plan.to_json())
    for place, value in changes:
        part = raw
        for key in place[:-1]:
            part = part[key]
        part[place[-1]] = value
    return json.dumps(raw)


@pytest.mark.skipif(len(CORES) < 2, reason="two processors need two cores")
@given(data=st.data())
@settings(max_examples=150)
def test_the_engine_trusts_no_plan(data: st.DataObject) -> None:
    place = data.draw(st.sampled_from(places()))
    text, message = altered((place, data.draw(INTEGERS | ANYTHING))), ""
    try:
        with PlanSession(replace(compiled(), plan=Plan.from_json(text))) as session:
            session.run(None, session.zeros(), deadline=60.0)
    except NNStretchError as error:
        message = str(error)
    assert "\n" not in message


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("steps", 0, "arguments"), [2**70]),
        (("steps", 0, "layer"), None),
        (("buffers", 0, "index"), "x"),
        (("buffers", 0, "bytes"), None),
        (("inputs", 0, "type", "dtype"), "float33"),
        (("queues", 0, "processor"), 7),
        (("steps", 0, "cost_ms"), 10**400),
        (("steps", 0, "launch"), {"source": "a", "defines": [], "global_size": [1] * 6, "local_size": None}),
    ],
)
def test_values_of_other_types(place: Path, value: object) -> None:
    with pytest.raises(PackageError, match=r"plan is damaged: .*; compile it again"):
        Plan.from_json(altered((place, value)))


@pytest.mark.parametrize("shape", [[-1], [-2, -3], [1 << 45]])
@pytest.mark.parametrize("end", ["inputs", "outputs"])
def test_impossible_shapes_of_inputs_and_outputs(end: str, shape: list[int]) -> None:
    with pytest.raises(PackageError, match=r"plan is inconsistent: .*; compile it again"):
        validate(Plan.from_json(altered(((end, 0, "type", "shape"), shape))))


def test_another_version_names_the_source_and_the_remedy() -> None:
    with pytest.raises(PackageError, match=r"^p\.json has plan version 1, .*; write it again with `tune`$"):
        Plan.from_json(altered((("version",), 1)), "p.json", "write it again with `tune`")
