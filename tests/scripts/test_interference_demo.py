"""The demonstration with real disturbances says what happened, draws it, and leaves nothing running."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from tests.kits.graphs.graphs import RandomNetwork

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "studies" / "interference_demo.py"
CORES = sorted(os.sched_getaffinity(0))


def demo(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=250, cwd=cwd)


@pytest.mark.skipif(len(CORES) < 2, reason="two processors need two cores")
def test_the_demonstration(tmp_path: Path) -> None:
    onnx.save(RandomNetwork(4, processors=2, nodes=14, size=8).model, tmp_path / "net.onnx")
    first, second = f"cpu:{CORES[0]}", f"cpu:{CORES[-1]}"
    options = (
        "--processors",
        f"{first},{second}",
        "--seconds",
        "0.3",
        "--no-tune",
        "-o",
        "demo.svg",
        "--json",
        "--title",
        "a net",
    )
    done = demo("net.onnx", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert list(report["undisturbed_ms"]) == [f"{first},{second}", first, second]
    assert [phase["disturbed"] for phase in report["phases"]] == ["", first, "", second, ""]
    for row in report["summary"]:
        assert row["changing"]["runs"] > 0
        assert row["fixed"]["mean_ms"] > 0
        assert row["plan"] in report["undisturbed_ms"]
    assert {plan for _, _, plan, _ in report["fixed"]} == {f"{first},{second}"}
    ends = [phase["end"] for phase in report["phases"]]
    assert ends == sorted(ends)
    text = (tmp_path / "demo.svg").read_text()
    assert text.startswith("<svg ") and text.endswith("</svg>")
    assert text.count('class="run ') == len(report["changing"]) + len(report["fixed"])
    assert 'aria-label="a net: ' in text
    legend = re.findall(r'translate\(([\d.]+),([\d.]+)\)"><[^<]*/><text[^>]*>([^<]*)<', text)
    assert len(legend) == 6
    assert all(float(x) + 17 + 7 * len(entry) < 976 for x, _, entry in legend), "no text runs over the edge"
    assert len(re.findall(">[^<]* disturbed<", text)) == 2


def test_processors_that_cannot_be_disturbed(tmp_path: Path) -> None:
    done = demo("squeezenet", "--processors", f"cpu:{CORES[0]}", cwd=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "two processors" in line
