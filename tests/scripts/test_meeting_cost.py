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


def test_a_row_per_delay_with_the_fastest_way_and_none_without_a_design(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[tuple[Sequence[str], Mapping[str, str]]] = []

    def kept(
        file: Path, command: Sequence[str], announce: Callable[[str], None], environment: Mapping[str, str]
    ) -> dict[str, Any]:
        commands.append((command, environment))
        delay = float(environment["NNSTRETCH_TRANSFER_DELAY_US"])
        is_branched = "--even-if-slower" in command
        if command[0] == "stretch" and (delay == 2000 or (delay == 1500 and is_branched)):
            raise CommandError("no design")
        if command[0] == "stretch":
            found = {
                "designs": [{"file": "best.json", "meeting_points": 3 if is_branched else 0}],
                "original_ms": {"cpu:0": 4.0, "cpu:1": 4.2},
                "alternatives_ms": {"cpu:0": 4.0, "cpu:1": 4.2, "split": 3.3, "cpu:0-1": 2.0},
            }
            return found | {"branched_ms": 2.5 + delay / 1000}
        return answer(branched_ms=2.5 + delay / 1000)

    monkeypatch.setattr(meeting_cost, "kept_answer", kept)
    table, chart = tmp_path / "t.md", tmp_path / "t.svg"
    arguments = ["net", "-p", "cpu:0,cpu:1", "--delays", "2000,0,1000,1500,600", "-o", str(table), "-o", str(chart)]
    assert meeting_cost.main(arguments) == 0
    assert [environment["NNSTRETCH_TRANSFER_DELAY_US"] for _, environment in commands] == [
        *("0", "0", "600", "600", "1000", "1000", "1000", "1500", "1500", "1500", "2000", "2000"),
    ]
    titles, _, *measured = rows(table.read_text())
    found = [dict(zip(titles, row, strict=True)) for row in measured]
    assert [row["search's answer"] for row in found] == ["2.500", "3.100", "3.500", "4.000", "–"]
    assert found[0]["original, one processor"] == "4.000"
    gains = [row["× best of one processor or split"] for row in found]
    assert gains == ["1.20×", "0.97×", "0.86×", "0.75×", "1 (unbranched)"]
    assert [row["it is"] for row in found] == ["branched", "branched", "whole", "whole", "–"]
    # A whole network that the search chose is not counted beside the ways that it stands for.
    assert [row["fastest"] for row in found] == ["branched", *["control, split"] * 3, "–"]
    texts = [text.text for text in ET.fromstring(chart.read_text()).iter("{http://www.w3.org/2000/svg}text")]  # noqa: S314
    assert {"search's answer", "branched", "control, split", "fastest", "0 µs", "600 µs", "1 ms"} <= set(texts)
    hollow = [shape for shape in ET.fromstring(chart.read_text()).iter() if shape.get("class") == "ring"]  # noqa: S314
    assert len(hollow) == 2  # the whole answers


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
