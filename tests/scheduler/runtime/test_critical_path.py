"""Where the time of a run went, of a run whose every nanosecond is written here."""

from __future__ import annotations

import pytest

from nnstretch.report.documents.timeline import timeline_document
from nnstretch.report.tables.runs import timeline_table, timeline_text
from nnstretch.scheduler.plan.schema import Plan, PlanQueue, PlanStep, PlanSubgraph
from nnstretch.scheduler.runtime.critical_path import QueueTime, critical_path_seconds, run_summary
from nnstretch.scheduler.runtime.timeline import Event, Timeline

# a ── c ── d, and b beside c; b and d on the first queue.
STEPS = {"a": (0, 0, 10), "c": (1, 11, 30), "b": (0, 12, 20), "d": (0, 35, 50)}
SUBGRAPHS = (PlanSubgraph(0, 0, 1), PlanSubgraph(1, 1, 1, (0,)), PlanSubgraph(0, 2, 1), PlanSubgraph(0, 3, 1, (1,)))
PLAN = Plan(
    block=4,
    queues=(PlanQueue("host", "cpu:0", (0,)), PlanQueue("host", "cpu:1", (1,))),
    inputs=(),
    outputs=(),
    buffers=(),
    steps=tuple(PlanStep(name, "Conv", "", "kernel", "", (), ()) for name in STEPS),
    subgraphs=SUBGRAPHS,
    host_bytes=0,
    shared_bytes=(),
    shared_queues=(),
    device_bytes={},
    constant_ranges={},
)
WAITS = (Event("wait", "wait", 1, 0, 11), Event("wait", "wait", 0, 20, 35))


def run(**changed: tuple[int, int, int]) -> Timeline:
    events = [Event(name, "step", *times) for name, times in {**STEPS, **changed}.items()]
    return Timeline(("cpu:0", "cpu:1"), tuple(sorted((*events, *WAITS), key=lambda e: (e.queue, e.begin))), 52)


def test_the_path_goes_through_what_was_waited_for() -> None:
    found = run_summary(PLAN, run())
    assert [(link.step.name, link.gap, link.is_transfer) for link in found.path] == [
        ("a", 0, False),
        ("c", 1, True),
        ("d", 5, True),
    ]
    assert found.critical_path == 10 + 19 + 15
    assert found.over_critical_path == pytest.approx(52 / 44)
    assert found.queues == (QueueTime("cpu:0", 33, 15, 4), QueueTime("cpu:1", 19, 11, 22))
    waits = [(w.step.name, w.awaited.name, w.duration, w.transfer) for w in found.waits]
    assert waits == [("d", "c", 15, 5), ("c", "a", 11, 1)]


def test_the_path_stays_on_the_queue_that_was_later() -> None:
    found = run_summary(PLAN, run(b=(0, 12, 33)))
    assert [(link.step.name, link.gap, link.is_transfer) for link in found.path] == [
        ("a", 0, False),
        ("b", 2, False),
        ("d", 2, False),
    ]
    assert found.critical_path == 10 + 21 + 15


def test_the_critical_path_is_that_of_the_times_given() -> None:
    assert critical_path_seconds(PLAN, [1.0, 2.0, 3.0, 4.0]) == pytest.approx(1 + 3 + 4)


def test_words_and_data_say_the_same() -> None:
    found = run_summary(PLAN, run())
    data = found.to_json()
    assert [step["layer"] for step in data["path"]] == ["a", "c", "d"]
    assert data["waits"][0]["awaited"] == {"processor": "cpu:1", "layer": "c"}
    assert data["queues"][0]["waiting_ms"] == pytest.approx(15e-6)
    assert timeline_table(found).row_count == 2
    first, path, *waits = timeline_text(found).splitlines()
    assert "18.2% longer than its critical path" in first
    assert "3 steps" in path
    assert "2 transfers; longest: c on cpu:1" in path
    assert [line.split(" ms")[1].split(",")[0] for line in waits] == [
        " before d for c on cpu:1",
        " before c for a on cpu:0",
    ]


def test_a_page_has_what_the_words_say() -> None:
    timeline = run()
    found = run_summary(PLAN, timeline)
    sections = {section.title: section for section in timeline_document("net", timeline, found).sections}
    assert list(sections) == ["Timeline", "Processors", "Waits", "Steps"]
    tables = {title: section.table.rows for title, section in sections.items() if section.table is not None}
    assert tables["Waits"] == [
        ("cpu:0", "d", "c on cpu:1", pytest.approx(15e-6), pytest.approx(5e-6)),
        ("cpu:1", "c", "a on cpu:0", pytest.approx(11e-6), pytest.approx(1e-6)),
    ]
    assert [row[0] for row in tables["Steps"]] == ["a", "c", "b", "d"]
    assert [row[:2] for row in tables["Processors"]] == [
        ("cpu:0", pytest.approx(33e-6)),
        ("cpu:1", pytest.approx(19e-6)),
    ]
    assert "18.2% longer than its critical path" in sections["Processors"].text
    without = timeline_document("net", timeline, None).sections
    assert [section.title for section in without] == ["Timeline", "Steps"]
