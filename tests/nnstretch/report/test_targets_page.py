"""The page of measurements on targets, and the gain of a branched network there."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from nnstretch.bench.targets.gain import gain_over_alternatives
from nnstretch.bench.targets.measure import Measured, TargetRun
from nnstretch.bench.targets.models import TargetModel
from nnstretch.devices.targets.probe import Probe
from nnstretch.devices.targets.results import ModelResult
from nnstretch.report.documents.targets import targets_document
from nnstretch.report.documents.writers import html
from nnstretch.report.tables.targets import device_facts, few_runs_text
from tests.kits.boards.fake_runner import PROBE


def measured(name: str, p50_ms: float | None, *, spread: float = 0.0, runs: int = 0, **more: object) -> Measured:
    """A model's measurement whose runs vary by a share of the median."""
    samples = np.random.default_rng(len(name)).normal(p50_ms or 0.0, spread * (p50_ms or 0.0), runs).tolist()
    entry = {"file": "m.nnm", "p50_ms": p50_ms, "samples_ms": samples, **more}
    return Measured(TargetModel(name, Path("m.nnm")), ModelResult.from_json(entry), None, {})


def test_the_gain_is_that_over_the_fastest_alternative() -> None:
    slow, fast, branched = (
        measured("slow", 9.0, spread=0.01, runs=100),
        measured("fast", 3.0, spread=0.01, runs=90),
        measured("branched", 2.0, spread=0.01, runs=200),
    )
    gain = gain_over_alternatives([slow, fast, measured("failed", None, error="why"), branched])
    assert gain is not None
    assert (gain.alternative.model.name, gain.speedup) == ("fast", 1.5)
    assert gain.ends is not None
    low, high = gain.ends
    assert 1.45 < low < 1.5 < high < 1.55
    assert gain.to_json()["speedup_best_alternative_interval"] == pytest.approx([low, high], rel=1e-3)


def test_few_runs_have_no_interval_and_failures_no_gain() -> None:
    fast, branched, failed = measured("fast", 3.0, runs=90), measured("branched", 2.0, runs=3), measured("no", None)
    gain = gain_over_alternatives([fast, branched])
    assert gain is not None
    assert gain.ends is None
    assert gain.to_json()["speedup_best_alternative_interval"] is None
    assert gain_over_alternatives([fast, failed]) is None
    assert gain_over_alternatives([failed, branched]) is None
    assert gain_over_alternatives([branched]) is None


class _Tags(HTMLParser):
    """Open tags of a page, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        """Nothing is opened."""

    def handle_endtag(self, tag: str) -> None:
        assert tag == self.open.pop()

    def handle_data(self, data: str) -> None:
        self.text += data


def page_of(*runs: TargetRun) -> str:
    """The page of an answer, as it is read from a file."""
    return html(targets_document("", json.loads(json.dumps({"targets": [run.to_json() for run in runs]}))))


def test_the_page_says_what_devices_are_and_what_failed() -> None:
    seconds = [{"s": n, "p50_ms": 3 + n / 10, "khz": 2_000_000 - n, "temperature_c": 40 + n} for n in range(9)]
    steps = [{"step": "<k>", "queue": q, "begin": 1000 * q, "end": 1000 * q + 900} for q in (0, 1)]
    queues = [{"kind": "cpu", "cores": [0, 1]}, {"kind": "opencl", "device": "GPU"}]
    models = [
        measured("a & b", 3.0, sustained=seconds, queues=queues),
        measured("c", None, error="it <failed>"),
        measured("branched", 2345.6, timeline=steps, queues=queues),
    ]
    run = TargetRun("ssh:board", models, Probe.from_json(PROBE), "thermal limit", gain=gain_over_alternatives(models))
    page = _Tags()
    page.feed(page_of(run, TargetRun("adb:x", failure="there is no device x")))
    assert page.open == []
    for words in (
        *("0.00×", "as fast as the best alternative", "a & b", "it <failed>", "aarch64 Linux", "thermal limit"),
        *("adb:x", "there is no device x", "mean clock in GHz", "opencl (GPU)", "2346", "Sustained runs"),
    ):
        assert words in page.text, words
    assert "One run of branched on ssh:board" in page.text
    page.feed(page_of(TargetRun("ssh:board", models[:2], Probe.from_json(PROBE))))
    assert "3 ms" in page.text
    assert "Models on devices" in page.text


def test_percentiles_of_few_runs_are_said_to_be_so() -> None:
    once, often = measured("once", 9.0).result.raw, measured("often", 3.0).result.raw
    assert once is not None
    assert often is not None
    models = [
        Measured(TargetModel(name, Path("m.nnm")), ModelResult.from_json({**entry, "runs": count}), None, {})
        for name, entry, count in (("once", once, 1), ("thrice", once, 3), ("often", often, 10))
    ]
    said = "p50, p90 and p99 are those of 1 run of once, 3 runs of thrice; --budget 1 has 10 of each"
    run = TargetRun("qemu:aarch64", models)
    assert few_runs_text(run) == f"qemu:aarch64: {said}"
    assert few_runs_text(TargetRun("qemu:aarch64", models[2:])) == ""
    assert few_runs_text(run, "--runs").endswith("; --runs 10 has 10 of each")
    slow = replace(models[0], result=replace(models[0].result, p50_ms=2500.0))
    assert few_runs_text(replace(run, measured=[slow])).endswith("1 run of once; --budget 30 has 10 of each")
    assert said in page_of(run)
    document = targets_document("made", {"targets": [run.to_json()]})
    assert any(said in section.text for section in document.sections)


def test_a_static_runner_does_not_say_what_the_device_lacks() -> None:
    why = "this program is linked statically and cannot open OpenCL"
    static = Probe.from_json({**PROBE, "libc": "musl", "opencl_error": why})
    assert dict(device_facts(static))["OpenCL"].startswith("not looked for: ")
    dynamic = Probe.from_json({**PROBE, "libc": "glibc", "opencl_error": "no OpenCL library is found"})
    assert dict(device_facts(dynamic))["OpenCL"] == "no OpenCL library is found"
