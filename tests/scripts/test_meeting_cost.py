"""The series of slower transfers: designs are searched and measured per delay, and kept."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from nnstretch.bench.kept_answers import CommandError, command_answer, kept_answer
from nnstretch.errors import FileError
from scripts import meeting_cost
from tests.kits.processes.pretending_commits import write_model
from tests.scripts.test_alternatives import answer, rows


def design_answer(meeting_points: int, faster_unbranched: str | None) -> dict[str, Any]:
    """An answer of `nnstretch stretch`."""
    return {
        "designs": [{"file": "best.json", "meeting_points": meeting_points}],
        "original_ms": {"cpu:0": 4.0, "cpu:1": 4.2},
        "faster_unbranched": faster_unbranched,
    }


def test_a_row_per_delay_and_a_table_per_speeds_with_and_without_the_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[tuple[Path, Sequence[str], Mapping[str, str]]] = []

    def kept(
        file: Path, command: Sequence[str], announce: Callable[[str], None], environment: Mapping[str, str]
    ) -> dict[str, Any]:
        commands.append((file, command, environment))
        delay = float(environment["NNSTRETCH_TRANSFER_DELAY_US"])
        if command[0] == "bench":
            design = {"macs": 8, "original_macs": 10}
            return answer(branched_ms=1.5 + delay / 1000, control_all_cores_ms=2.0, control_split_ms=2.4, design=design)
        if "--even-if-slower" in command and delay == 2000:
            raise CommandError("no design")
        if "--even-if-slower" in command:
            return design_answer(3, None)
        if "--no-pool" in command:
            return design_answer(*((0, "cpu:0,cpu:1") if delay == 2000 else (3, None)))
        return design_answer(*((3, None) if delay == 0 else (0, "cpu:0-1")))

    monkeypatch.setattr(meeting_cost, "kept_answer", kept)
    table, chart = tmp_path / "t.md", tmp_path / "t.svg"
    arguments = ["net", "-p", "cpu:0,cpu:1", "--delays", "2000,0,600", "--speeds", "1,1", "--speeds", "1,0.5"]
    assert meeting_cost.main([*arguments, "--work", "w", "-o", str(table), "-o", str(chart)]) == 0
    folders = dict.fromkeys(str(file.parent) for file, _, _ in commands)
    assert list(folders) == [f"w/{speeds}/{delay}us" for speeds in ("1-1", "1-0.5") for delay in (0, 600, 2000)]
    assert {environment["NNSTRETCH_CORE_SPEEDS"] for file, _, environment in commands if "1-0.5" in str(file)} == {
        "1:0.5"
    }
    assert {environment["NNSTRETCH_CORE_SPEEDS"] for file, _, environment in commands if "1-1" in str(file)} == {""}
    assert [file.stem for file, _, _ in commands[:4]] == ["branched", "pooled", "apart", "comparison"]

    found: list[list[dict[str, str]]] = []
    for part in table.read_text().split("**Speeds")[1:]:
        titles, _, *cells = rows(part)
        found.append([dict(zip(titles, row, strict=True)) for row in cells])
    assert len(found) == 4
    pooled, apart, *others = found
    assert others == [pooled, apart]
    assert [row["branched"] for row in pooled] == ["1.500", "2.100", "–"]
    assert [row["who wins"] for row in pooled] == ["branched", "all cores", "all cores"]
    assert [row["ahead by"] for row in pooled] == ["1.33× (1.10–1.30)", "0.95× (1.10–1.30)", "–"]
    # At 600 µs the pool computes the original in 3 ms, the split as well, and the branched network would at its MACs in 2.625.
    assert [row["search"] for row in pooled] == [
        "branched, 1.33×",
        "original, all cores, 0.88×",
        "original, all cores, 1.00×",
    ]
    assert "original, all cores" not in apart[0]
    assert [row["who wins"] for row in apart] == ["branched", "branched", "split"]
    assert [row["ahead by"] for row in apart] == ["1.60×", "1.14×", "–"]
    assert [row["search"] for row in apart] == ["branched, 1.60×", "branched, 1.14×", "original, split, 1.33×"]
    assert (
        "ahead of every alternative at delays of 0 µs. What the search returns is at some delays behind"
        in table.read_text()
    )
    assert "at delays of 0, 600 µs. What the search returns is never behind" in table.read_text()

    texts = [text.text for text in ET.fromstring(chart.read_text()).iter("{http://www.w3.org/2000/svg}text")]  # noqa: S314
    assert {"branched", "control, split", "fastest", "fastest, no pool", "0 µs", "600 µs", "2 ms"} <= set(texts)
    assert sum(" speeds 1 : 0.5" in (text or "") for text in texts) == 1
    rings = [shape for shape in ET.fromstring(chart.read_text()).iter() if shape.get("class") == "ring"]  # noqa: S314
    assert len(rings) == 6  # the search's answers


@pytest.mark.parametrize("speeds", ["1", "1,2", "1,x", "1,0", "1,nan", "1,1,1"])
def test_speeds_that_are_none(speeds: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert meeting_cost.main(["net", "-p", "cpu:0,cpu:1", f"--speeds={speeds}"]) == 2
    assert "give 2 numbers from 0.01 to 1" in capsys.readouterr().err


def test_devices_are_not_slowed(capsys: pytest.CaptureFixture[str]) -> None:
    assert meeting_cost.main(["net", "-p", "cpu:0,opencl:0@1", "--speeds", "1,0.5"]) == 2
    assert "opencl:0@1 cannot be slowed" in capsys.readouterr().err


@pytest.mark.parametrize("delays", ["", "1,x", "-1", "2e6", "nan"])
def test_delays_that_are_none(delays: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert meeting_cost.main(["net", "-p", "cpu:0,cpu:1", f"--delays={delays}"]) == 2
    assert "give microseconds from 0 to" in capsys.readouterr().err


def test_answers_are_kept_with_their_command_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def run(command: Sequence[str], env: Mapping[str, str], **options: object) -> subprocess.CompletedProcess[str]:
        assert command[:4] == [sys.executable, "-P", "-m", "nnstretch.cli.main"]
        return subprocess.CompletedProcess(command, 2 * (command[-1] == "bad"), f'{{"n": {env["N"]}}}')

    monkeypatch.setattr(subprocess, "run", run)
    file = tmp_path / "new" / "answer.json"
    for _ in range(2):
        assert kept_answer(file, ["zoo", "--json"], ran.append, {"N": "3"}) == {"n": 3}
    assert ran == ["N=3 nnstretch zoo --json"]
    for command, environment in ((["zoo"], {"N": "3"}), (["zoo", "--json"], {"N": "4"})):
        with pytest.raises(FileError, match="other options"):
            kept_answer(file, command, ran.append, environment)
    with pytest.raises(CommandError, match="status 2"):
        kept_answer(tmp_path / "b.json", ["bad"], ran.append, {"N": "1"})

    file.write_text("{")
    with pytest.raises(FileError, match="delete it"):
        kept_answer(file, ["zoo", "--json"], ran.append)


def test_a_command_runs_in_a_process_of_its_own_and_in_a_folder(tmp_path: Path) -> None:
    write_model(tmp_path / "net.onnx")
    command = ["compile", "net.onnx", "--no-tune", "--threads", "1", "-o", "net.nns", "--json"]
    assert command_answer(command, folder=tmp_path)["macs"] > 0
    assert (tmp_path / "net.nns").is_file()
    with pytest.raises(CommandError, match=r"`nnstretch evaluate nothing.nns` ended with status 2"):
        command_answer(["evaluate", "nothing.nns"], folder=tmp_path)
