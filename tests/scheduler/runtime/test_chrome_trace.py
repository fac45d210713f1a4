"""Timelines in the Chrome trace format: the fields of every record, names of tracks, and slices that follow one another."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nnstretch.scheduler.runtime.timeline import Event, Timeline

NANOSECOND = 1e-3
"""In microseconds, the format's unit."""
METADATA = {"process_name": ("name", str), "thread_name": ("name", str), "thread_sort_index": ("sort_index", int)}
FIELDS = {"M": {"ph", "pid", "tid", "name", "args"}, "X": {"ph", "pid", "tid", "cat", "name", "ts", "dur", "args"}}


def check_record(record: dict[str, Any]) -> None:
    """The fields of a record as the Trace Event Format describes complete events and metadata."""
    assert set(record) - {"cname"} == FIELDS[record["ph"]]
    assert isinstance(record["name"], str)
    assert record["name"]
    assert all(type(record[number]) is int and record[number] > 0 for number in ("pid", "tid"))
    assert isinstance(record["args"], dict)
    if record["ph"] == "M":
        field, kind = METADATA[record["name"]]
        assert list(record["args"]) == [field]
        assert type(record["args"][field]) is kind
        return
    assert all(type(record[time]) in (int, float) and record[time] >= 0 for time in ("ts", "dur"))
    assert record["cat"] in ("step", "wait")
    assert all(isinstance(value, str | int | float) for value in record["args"].values())


def checked(timeline: Timeline) -> list[dict[str, Any]]:
    """The slices of a timeline's file, which must be valid and have named tracks."""
    trace = json.loads(timeline.to_chrome_json())
    assert set(trace) == {"traceEvents", "displayTimeUnit"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    records: list[dict[str, Any]] = trace["traceEvents"]
    for record in records:
        check_record(record)
    named = {(r["pid"], r["tid"]): r["args"]["name"] for r in records if r["name"] == "thread_name"}
    assert list(named.values()) == list(timeline.queues)
    assert {r["pid"] for r in records if r["name"] == "process_name"} == {r["pid"] for r in records}
    slices = [record for record in records if record["ph"] == "X"]
    assert {(one["pid"], one["tid"]) for one in slices} <= set(named)
    for track in named:
        mine = [one for one in slices if (one["pid"], one["tid"]) == track]
        for one, other in pairwise(mine):
            assert one["ts"] + one["dur"] <= other["ts"] + 0.5 * NANOSECOND
    return slices


TIMES = st.tuples(st.integers(0, 5000), st.integers(0, 3000))
EVENTS = st.builds(
    lambda queue, kind, times, name: Event(
        name, kind, queue, times[0], times[0] + times[1], "cpu:float32/direct", "Conv", 7
    ),
    st.integers(0, 2),
    st.sampled_from(["step", "wait"]),
    TIMES,
    st.sampled_from(["", "conv1", "wait"]),
)


@given(st.lists(EVENTS, max_size=12))
def test_any_timeline_is_a_valid_trace(events: list[Event]) -> None:
    timeline = Timeline(("cpu:0", "host", "opencl:0@1"), tuple(events), 9000)
    slices = checked(timeline)
    for queue in range(3):
        mine = [one for one in slices if one["tid"] == queue + 1]
        steps = [event for event in events if event.queue == queue and event.kind == "step"]
        assert sum(one["cat"] == "step" for one in mine) == len(steps)
        waits = [event for event in events if event.queue == queue and event.kind == "wait"]
        waited = {moment for event in waits for moment in range(event.begin, event.end)}
        busy = {
            moment for step in timeline.track(queue) if step.kind == "step" for moment in range(step.begin, step.end)
        }
        shown = sum(one["dur"] for one in mine if one["cat"] == "wait")
        assert abs(shown / NANOSECOND - len(waited - busy)) < 1


def test_a_wait_ends_where_the_device_computes() -> None:
    """The thread that serves a device waits while its kernels run."""
    events = (
        Event("wait", "wait", 0, 0, 3900),
        Event("right", "step", 0, 2100, 3400, "opencl:float32/direct", "Conv", 10**6),
    )
    shown = [(one["name"], one["ts"], one["dur"]) for one in checked(Timeline(("opencl:0",), events, 4000))]
    assert shown == [("wait", 0.0, 2.1), ("right", 2.1, 1.3), ("wait", 3.4, 0.5)]
