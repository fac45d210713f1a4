"""Shows from which cost of a meeting point on branching pays: every transfer between processors is made slower, step by step.

    .venv/bin/python scripts/meeting_cost.py resnet34 -p cpu:0,cpu:1 --image-size 112 -o meeting.md -o meeting.svg

For each delay the engine adds it to every transfer between processors (NNSTRETCH_TRANSFER_DELAY_US), as queues of phones
take 0.1 to 1 ms. Then `nnstretch stretch` searches a design with this cost, and `nnstretch bench --design` measures it
beside the original and the equal-MACs control: on the fastest processor, on all cores as one processor, and placed and
split layer by layer with this cost. Table and chart name the fastest of these for each delay. Where branching is not
predicted to pay, the search's answer is the whole network, without branches, which then runs beside the alternatives; its
dots are hollow. The commands run in processes of their own, and their answers are kept in the work folder, so that an
interrupted series continues.
Unlike processors cannot be one pool of all cores: its lines in the chart are thin.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nnstretch.bench.kept_answers import CommandError, kept_answer
from nnstretch.cli.console import exit_status
from nnstretch.cli.outputs import check_endings
from nnstretch.devices.base.spec import usable_cores
from nnstretch.devices.cpu.processor import cpu_model
from nnstretch.errors import UsageError
from nnstretch.report.charts.transfer_delay import DelayRow, transfer_delay_picture
from nnstretch.report.tables.text import interval_text, ms_text
from nnstretch.support.settings import MOST_TRANSFER_DELAY_US, write_text

DELAYS = (0, 30, 100, 300, 1000, 2000)
"""Microseconds."""
ANSWER = "search's answer"
BRANCHED = "branched"
FIGURES = {
    ANSWER: "branched_ms",
    "control, split": "control_split_ms",
    "control, all cores": "control_all_cores_ms",
    "original, split": "original_split_ms",
    "original, all cores": "original_all_cores_ms",
}
"""Column -> field of the answer."""
ALONE = {"control, one processor": "control_ms", "original, one processor": "original_ms"}
"""Column -> field of the answer, with a value per processor."""
MEETINGS = "meeting_points"
"""Field that is added to the answer: of the design; 0 if it is the whole network."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints and writes; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", metavar="NET", help="zoo name or FILE.py:FACTORY")
    parser.add_argument("-p", "--processors", required=True, metavar="LIST", help="such as cpu:0,cpu:1")
    parser.add_argument("--delays", default=",".join(map(str, DELAYS)), metavar="US", help="default: %(default)s")
    parser.add_argument("--image-size", metavar="SIZE", help="as of nnstretch stretch")
    parser.add_argument("--rounds", default="10", help="as of nnstretch bench (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="run no designs and tune nothing, to see that all works")
    parser.add_argument("--work", type=Path, default=Path("out/meeting-cost"), metavar="DIR", help="kept answers")
    parser.add_argument("-o", "--output", type=Path, action="append", default=[], metavar="FILE", help=".md, .svg")
    options = parser.parse_args(arguments)
    return exit_status(lambda: run(options))


def run(options: argparse.Namespace) -> None:
    """Measures all delays; writes what there is after each."""
    check_endings(options.output, "meeting costs are", (".md", ".svg"))
    found: dict[float, Mapping[str, Any] | None] = {}
    for delay in delays_of(options.delays):
        try:
            found[delay] = measured(options, delay)
        except CommandError as error:
            print(f"  {error}; the network stays unbranched", file=sys.stderr)
            found[delay] = None
        write(options, found)
    print(table(options, found), end="")


def delays_of(text: str) -> list[float]:
    """The delays of a list such as 0,100,1000, ascending.

    Raises:
        UsageError: a text is none.
    """
    try:
        delays = sorted({float(word) for word in text.split(",")})
    except ValueError:
        delays = [-1.0]
    if not all(0 <= delay <= MOST_TRANSFER_DELAY_US for delay in delays):
        raise UsageError(f"--delays {text}: give microseconds from 0 to {MOST_TRANSFER_DELAY_US}, separated by commas")
    return delays


def measured(options: argparse.Namespace, delay: float) -> dict[str, Any]:
    """The comparison of the design that is found for a delay, with its number of meeting points.

    Raises:
        CommandError: there is no such design, or the measurement failed.
    """
    folder, environment = options.work / f"{delay:g}us", {"NNSTRETCH_TRANSFER_DELAY_US": f"{delay:g}"}
    size = [] if options.image_size is None else ["--image-size", options.image_size]
    common = [options.network, "-p", options.processors, *size, "--json"]
    search = ["stretch", *common, "--top", "1", *(["--no-measure"] if options.quick else []), "-o"]
    branch = [*search, str(folder / "branched"), "--even-if-slower"]
    try:
        found = kept_answer(folder / "branched.json", branch, announce, environment)
    except CommandError:  # no design is within the limits
        found = {}
    if not found or not pays(found):
        whole = [*search, str(folder / "whole")]
        found = kept_answer(folder / "whole.json", whole, announce, environment)
    design = found["designs"][0]
    bench = ["bench", *common, "--design", design["file"], "--rounds", options.rounds]
    bench += ["--no-tune"] if options.quick else []
    return {**kept_answer(folder / "comparison.json", bench, announce, environment), MEETINGS: design["meeting_points"]}


def pays(search: Mapping[str, Any]) -> bool:
    """Whether branches are predicted to be ahead of the network on one processor and split over the processors.

    The search compares them with all cores as one processor, too, which unlike processors cannot be.
    """
    alone = (ms for name, ms in search["alternatives_ms"].items() if name == "split" or name in search["original_ms"])
    return bool(search["branched_ms"] < min(alone))


def announce(command: str) -> None:
    """Says which command runs."""
    print(f"  {command}", file=sys.stderr)


def latencies(answer: Mapping[str, Any]) -> dict[str, float]:
    """Milliseconds of every way to run the network; the single processor is the faster one."""
    found = {name: float(answer[field]) for name, field in FIGURES.items()}
    return found | {name: min(answer[field].values()) for name, field in ALONE.items()}


def winner(answer: Mapping[str, Any]) -> str:
    """The fastest way to run the network; a whole answer of the search counts as the way that it stands for."""
    values = latencies(answer)
    own = values.pop(ANSWER)
    ways = {BRANCHED: own, **values} if answer[MEETINGS] else values
    return min(ways, key=lambda way: ways[way])


def table(options: argparse.Namespace, found: Mapping[float, Mapping[str, Any] | None]) -> str:
    """The Markdown table, with a row per delay."""
    names = [*FIGURES, *ALONE]
    gains = ("× best of one processor or split", "× best of all, with one pool of all cores (95 % interval)")
    rows = [("transfer + µs", *names, *gains, "it is", "fastest"), ("---:",) * (len(names) + 5)]
    for delay, answer in found.items():
        if answer is None:
            rows.append((f"{delay:g}", *["–"] * len(names), "1 (unbranched)", "1 (unbranched)", "–", "–"))
            continue
        values = latencies(answer)
        between = interval_text(answer["intervals"].get("speedup_best_alternative"), ".2f")
        gain = f"{answer['speedup_best_alternative']:.2f}× ({between})"
        times = [ms_text(values[name]) for name in names]
        kind = BRANCHED if answer[MEETINGS] else "whole"
        rows.append((f"{delay:g}", *times, f"{gain_over_separate(values):.2f}×", gain, kind, winner(answer)))
    note = f"Median milliseconds of {options.network} on {options.processors} ({cpu_model()}, {len(usable_cores())} cores)."
    return "".join(f"| {' | '.join(row)} |\n" for row in rows) + f"\n{note}\n"


def gain_over_separate(values: Mapping[str, float]) -> float:
    """The best of what unlike processors can do, too, over the search's answer: one of them, or layers split between them."""
    return min(values[name] for name in values if name != ANSWER and "all cores" not in name) / values[ANSWER]


def write(options: argparse.Namespace, found: Mapping[float, Mapping[str, Any] | None]) -> None:
    """Writes the table and the chart that were asked for."""
    measured = {delay: answer for delay, answer in found.items() if answer is not None}
    shown = {
        delay: DelayRow(latencies(answer), winner(answer), bool(answer[MEETINGS])) for delay, answer in measured.items()
    }
    for path in options.output:
        if path.suffix == ".md":
            write_text(path, table(options, found))
        elif shown:
            write_text(path, transfer_delay_picture(shown, ANSWER, f"{options.network} on {options.processors}"))


if __name__ == "__main__":
    sys.exit(main())
