"""Shows where branching pays: every transfer between processors is made slower, step by step, and processors unequal.

    .venv/bin/python scripts/meeting_cost.py resnet34 -p cpu:0,cpu:1 --image-size 224 --speeds 1,1 --speeds 1,0.5 \
        -o meeting.md -o meeting.svg

For each delay the engine adds it to every transfer between processors (NNSTRETCH_TRANSFER_DELAY_US), as queues of phones
take 0.1 to 1 ms. `--speeds` gives each processor a relative speed (NNSTRETCH_CORE_SPEEDS): after its part of a layer, a
thread of a core at half speed waits for as long as the part took. That models a core with half the clock. Layer by layer
it takes twice as long; transfers, barriers between threads and shared memory keep their time.

For each pair of delay and speeds, `nnstretch stretch` searches the best branched design, which measures everything with
that delay and these speeds, and `nnstretch bench --design` measures it beside the original and the equal-MACs control: on
the best processor, split over the processors layer by layer or in bands, and on all cores as one processor. Cores of
unlike speed divide each layer of that pool by their speeds. Then the search answers twice whether branching pays: beside
the pool, and without it (--no-pool). An answer without branches is one of the measured ways, and has no time of its own.

There are two tables for each choice of speeds. The first has every alternative that this machine has. The second is for
processors that cannot be pooled, as a CPU and a GPU. "Ahead by" compares the branched network with the fastest other way.
"Search" is what the search returns, with the fastest other way over it. What the search returns without branches
has the original's MACs. It is compared with the original in other ways, and with the branched network's time scaled to
these MACs. Commands run in processes of their own. Their answers are kept in the work folder, so that an interrupted
series continues.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nnstretch.bench.kept_answers import CommandError, kept_answer
from nnstretch.cli.console import exit_status
from nnstretch.cli.outputs import check_endings
from nnstretch.devices.base.spec import parse_processors, usable_cores
from nnstretch.devices.cpu.processor import cpu_model
from nnstretch.errors import UsageError
from nnstretch.report.charts.transfer_delay import DelayPanel, DelayRow, transfer_delay_picture
from nnstretch.report.tables.text import interval_text, ms_text
from nnstretch.support.settings import LEAST_CORE_SPEED, MOST_TRANSFER_DELAY_US, write_text
from nnstretch.support.words import counted

DELAYS = (0, 100, 200, 500, 1000, 2000)
"""Microseconds."""
BRANCHED, ONE, SPLIT, ALL_CORES = "branched", "one processor", "split", "all cores"
NETWORKS = ("control", "original")
QUICK_SIZE = "64"
NOISE = 0.97
"""An answer is behind if the fastest other way takes less than this share of its time."""

Ways = Mapping[str, float]
"""Way to run the network -> median milliseconds."""
Speeds = tuple[float, ...]


class Case(NamedTuple):
    """What was measured with one delay and one choice of speeds.

    Attributes:
        measured: the answer of `nnstretch bench --design`.
        pooled, apart: the way that the search returns, with and without all cores as one processor among the alternatives.
        is_branched: whether the measured design has branches; False if there is none within the limits.
    """

    measured: Mapping[str, Any]
    pooled: str
    apart: str
    is_branched: bool


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints and writes; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", metavar="NET", help="zoo name or FILE.py:FACTORY")
    parser.add_argument("-p", "--processors", required=True, metavar="LIST", help="such as cpu:0,cpu:1")
    parser.add_argument("--delays", default=",".join(map(str, DELAYS)), metavar="US", help="default: %(default)s")
    parser.add_argument(
        "--speeds",
        action="append",
        metavar="LIST",
        help="relative speed of each processor, 1 for full speed, as in 1,0.5; repeated for more tables (default: 1 for all)",
    )
    parser.add_argument("--image-size", metavar="SIZE", help="as of nnstretch stretch")
    parser.add_argument("--rounds", default="10", help="as of nnstretch bench (default: %(default)s)")
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"images of {QUICK_SIZE} pixels, run no designs, tune nothing: to see that all works",
    )
    parser.add_argument("--work", type=Path, default=Path("out/meeting-cost"), metavar="DIR", help="kept answers")
    parser.add_argument("-o", "--output", type=Path, action="append", default=[], metavar="FILE", help=".md, .svg")
    options = parser.parse_args(arguments)
    return exit_status(lambda: run(options))


def run(options: argparse.Namespace) -> None:
    """Measures all cases; writes what there is after each."""
    check_endings(options.output, "meeting costs are", (".md", ".svg"))
    delays = delays_of(options.delays)
    found: dict[Speeds, dict[float, Case]] = {}
    for speeds in speeds_of(options.speeds, options.processors):
        for delay in delays:
            found.setdefault(speeds, {})[delay] = measured(options, speeds, delay)
            write(options, found)
    print(tables(options, found), end="")


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


def speeds_of(texts: Sequence[str] | None, processors: str) -> list[Speeds]:
    """The speeds of lists such as 1,0.5, one for each processor; full speed without lists.

    Raises:
        UsageError: a text is no such list, or a processor that is no group of cores is slowed.
    """
    specs = parse_processors(processors)
    found: list[Speeds] = []
    for text in texts or [",".join("1" for _ in specs)]:
        try:
            speeds = tuple(float(word) for word in text.split(","))
        except ValueError:
            speeds = ()
        if len(speeds) != len(specs) or not all(LEAST_CORE_SPEED <= speed <= 1 for speed in speeds):
            raise UsageError(
                f"--speeds {text}: give {counted(len(specs), 'number')} from {LEAST_CORE_SPEED} to 1, one for each processor "
                f"of {processors}"
            )
        slowed = [str(spec) for spec, speed in zip(specs, speeds, strict=True) if speed < 1 and spec.kind != "cpu"]
        if slowed:
            raise UsageError(f"--speeds {text}: {slowed[0]} cannot be slowed, only groups of cores such as cpu:1 can")
        found.append(speeds)
    return list(dict.fromkeys(found))


def environment_of(processors: str, speeds: Speeds, delay: float) -> dict[str, str]:
    """The variables that make transfers and cores slow."""
    specs = parse_processors(processors)
    cores = [f"{core}:{speed:g}" for spec, speed in zip(specs, speeds, strict=True) if speed < 1 for core in spec.cores]
    return {"NNSTRETCH_TRANSFER_DELAY_US": f"{delay:g}", "NNSTRETCH_CORE_SPEEDS": ",".join(cores)}


def measured(options: argparse.Namespace, speeds: Speeds, delay: float) -> Case:
    """What one delay and one choice of speeds give.

    Raises:
        CommandError: a search for a network with or without branches, or the measurement, failed.
    """
    folder = options.work / "-".join(f"{speed:g}" for speed in speeds) / f"{delay:g}us"
    environment = environment_of(options.processors, speeds, delay)
    image_size = options.image_size or (QUICK_SIZE if options.quick else None)
    size = [] if image_size is None else ["--image-size", image_size]
    common = [options.network, "-p", options.processors, *size, "--json"]
    search = ["stretch", *common, "--top", "1", "--best-effort", *(["--no-measure"] if options.quick else [])]

    def searched(name: str, *more: str) -> dict[str, Any]:
        command = [*search, *more, "-o", str(folder / name)]
        return kept_answer(folder / f"{name}.json", command, announce, environment)

    try:
        design = searched("branched", "--even-if-slower")["designs"][0]
    except CommandError as error:  # no design is within the limits
        print(f"  {error}; the network stays unbranched", file=sys.stderr)
        design = None
    # The first search ran the designs; these two compare its answer with the network without branches.
    pooled, apart = searched("pooled"), searched("apart", "--no-pool")
    design = design or pooled["designs"][0]
    bench = ["bench", *common, "--design", design["file"], "--rounds", options.rounds]
    bench += ["--no-tune"] if options.quick else []
    answer = kept_answer(folder / "comparison.json", bench, announce, environment)
    return Case(answer, chosen(pooled), chosen(apart), bool(design["meeting_points"]))


def chosen(search: Mapping[str, Any]) -> str:
    """The way that a search returns: branched, or the original, where the search says that it runs best."""
    place = search["faster_unbranched"]
    if place is None:
        return BRANCHED
    how = SPLIT if "," in place else ONE if place in search["original_ms"] else ALL_CORES
    return f"original, {how}"


def announce(command: str) -> None:
    """Says which command runs."""
    print(f"  {command}", file=sys.stderr)


def ways_of(case: Case, *, pool: bool) -> dict[str, float]:
    """Milliseconds of every way to run the network; the single processor is the faster one.

    Args:
        case: what was measured.
        pool: with all cores as one processor.
    """
    answer = case.measured
    found = {BRANCHED: float(answer["branched_ms"])} if case.is_branched else {}
    for network in NETWORKS:
        found[f"{network}, {SPLIT}"] = float(answer[f"{network}_split_ms"])
        found[f"{network}, {ONE}"] = min(answer[f"{network}_ms"].values())
        if pool:
            found[f"{network}, {ALL_CORES}"] = float(answer[f"{network}_all_cores_ms"])
    return found


def lead(ways: Ways) -> float | None:
    """Milliseconds of the fastest other way over those of the branched network; None without one."""
    own = ways.get(BRANCHED)
    return None if own is None else min(ms for way, ms in ways.items() if way != BRANCHED) / own


def answer_lead(case: Case, *, pool: bool) -> float:
    """As `lead`, for what the search returns; without branches it is compared at the original's MACs."""
    ways, answer = ways_of(case, pool=pool), case.pooled if pool else case.apart
    if answer == BRANCHED:
        return lead(ways) or 1.0
    design = case.measured["design"]
    originals = {way: ms for way, ms in ways.items() if way.startswith("original")}
    scaled = [ways[BRANCHED] / min(1.0, design["macs"] / design["original_macs"])] if BRANCHED in ways else []
    others = [ms for way, ms in originals.items() if way != answer]
    return float(min([*others, *scaled]) / originals[answer])


def winner(ways: Ways) -> str:
    """Who wins: the branched network if it is ahead of all other ways, else how the control is fastest."""
    if (lead(ways) or 0.0) > 1:
        return BRANCHED
    controls = {way: ms for way, ms in ways.items() if way.startswith("control")}
    return min(controls, key=lambda way: controls[way]).removeprefix("control, ")


def tables(options: argparse.Namespace, found: Mapping[Speeds, Mapping[float, Case]]) -> str:
    """The Markdown tables: two for each choice of speeds."""
    note = f"Median milliseconds of {options.network} on {options.processors} ({cpu_model()}, {len(usable_cores())} cores).\n"
    parts = []
    for speeds, cases in found.items():
        for pool in (True, False):
            kind = "every alternative" if pool else "processors that cannot be pooled, as a CPU and a GPU"
            title = f"**Speeds {text_of(speeds)}, {kind}**\n"
            parts.append(f"{title}\n{table(cases, pool=pool)}\n{summary(cases, pool=pool)}\n")
    return "\n".join([*parts, note])


def table(cases: Mapping[float, Case], *, pool: bool) -> str:
    """The Markdown table of a choice of speeds, with a row per delay."""
    names = [BRANCHED, *(name for name in ways_of(next(iter(cases.values())), pool=pool) if name != BRANCHED)]
    rows = [("delay µs", *names, "ahead by", "who wins", "search"), ("---:",) * (len(names) + 4)]
    for delay, case in cases.items():
        ways, gain = ways_of(case, pool=pool), lead(ways_of(case, pool=pool))
        between = case.measured["intervals"].get("speedup_best_alternative") if pool else None
        ahead = "–" if gain is None else f"{gain:.2f}×" + (f" ({interval_text(between, '.2f')})" if between else "")
        times = [ms_text(ways[name]) if name in ways else "–" for name in names]
        answer = f"{case.pooled if pool else case.apart}, {answer_lead(case, pool=pool):.2f}×"
        rows.append((f"{delay:g}", *times, ahead, winner(ways), answer))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def summary(cases: Mapping[float, Case], *, pool: bool) -> str:
    """Sentences on where branching is ahead, and on how far the search's answer is behind."""
    ahead = [f"{delay:g}" for delay, case in cases.items() if (lead(ways_of(case, pool=pool)) or 0.0) > 1]
    leads = {delay: answer_lead(case, pool=pool) for delay, case in cases.items()}
    worst = min(leads, key=lambda delay: leads[delay])
    where = f"at delays of {', '.join(ahead)} µs" if ahead else "at no delay"
    behind = "never" if leads[worst] >= NOISE else "at some delays"
    return (
        f"The branched network is ahead of every alternative {where}. What the search returns is {behind} behind the fastest "
        f"alternative by more than {1 - NOISE:.0%}; at worst it is {leads[worst]:.2f}×, at {worst:g} µs.\n"
    )


def text_of(speeds: Speeds) -> str:
    """Speeds for people, such as 1 : 0.5."""
    return " : ".join(f"{speed:g}" for speed in speeds)


def write(options: argparse.Namespace, found: Mapping[Speeds, Mapping[float, Case]]) -> None:
    """Writes the tables and the chart that were asked for."""
    panels = [
        DelayPanel(
            f"{options.network} on {options.processors}, speeds {text_of(speeds)}",
            {delay: chart_row(case) for delay, case in cases.items()},
        )
        for speeds, cases in found.items()
    ]
    for path in options.output:
        if path.suffix == ".md":
            write_text(path, tables(options, found))
        else:
            write_text(path, transfer_delay_picture(panels, BRANCHED))


def chart_row(case: Case) -> DelayRow:
    """What the chart shows of a case."""
    ways, apart = ways_of(case, pool=True), ways_of(case, pool=False)
    said = {"fastest": winner(ways), "fastest, no pool": winner(apart)}
    return DelayRow(ways, said, case.pooled)


if __name__ == "__main__":
    sys.exit(main())
