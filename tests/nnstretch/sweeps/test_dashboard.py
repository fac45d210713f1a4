"""optuna-dashboard reads the journals of sweeps. It is no dependency: the test runs where the program is in the path."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import torch

import nnstretch as nns
from nnstretch.branching.search.limits import SearchLimits
from tests.kits.networks.tiny_branching import SIDE, original

PROGRAM = shutil.which("optuna-dashboard")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="needs optuna-dashboard")


@pytest.fixture
def address(folder: Path) -> Iterator[str]:
    """The API of a dashboard of "sweep.journal", on this machine only."""
    assert PROGRAM is not None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [PROGRAM, "--host", "127.0.0.1", "--port", str(port), "--server", "wsgiref", "sweep.journal"]
    limits = nns.StretchOptions(limits=SearchLimits(alpha=1e4, beta=1e4, min_macs=0.01, max_segment=1.0))
    image = torch.randn(1, 1, SIDE, SIDE)
    nns.sweep(original(), image, "sim:phone/cpu,sim:phone/gpu", trials=6, warm_start=0, options=limits)
    with Path("log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield f"http://127.0.0.1:{port}/api"
    finally:
        server.terminate()
        server.wait(10)


def answer(address: str) -> dict[str, Any]:
    """A JSON object of the API, which may not answer yet."""
    for attempt in range(100):
        try:
            with urlopen(address, timeout=10) as found:  # noqa: S310 - of this machine
                return dict(json.load(found))
        except URLError:
            if attempt == 99:
                raise AssertionError(Path("log").read_text()) from None
            time.sleep(0.2)
    raise AssertionError("unreachable")


def test_its_api_has_the_study_its_trials_and_notes(address: str) -> None:
    (summary,) = answer(f"{address}/studies")["study_summaries"]
    assert summary["study_name"] == "sweep"
    assert summary["directions"] == ["minimize", "maximize"]
    study = answer(f"{address}/studies/{summary['study_id']}")
    trials = study["trials"]
    assert len(trials) == 6
    assert {trial["state"] for trial in trials} <= {"Complete", "Pruned"}
    complete = [trial for trial in trials if trial["state"] == "Complete"]
    assert all(len(trial["values"]) == 2 and trial["params"] for trial in complete)
    assert {one["key"] for trial in trials for one in trial["user_attrs"]} >= {"design", "limits"}
