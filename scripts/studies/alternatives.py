"""Branches networks for processors of this machine and compares each with its strongest alternatives, as a Markdown table.

    .venv/bin/python scripts/studies/alternatives.py resnet34 resnet50 -p cpu:0,opencl:0@1 --image-size 224 -o table.md

For each network, `nnstretch stretch` searches a design and `nnstretch bench --design` measures the best-ranked one. NET is a
zoo name or FILE.py:FACTORY; NET=DESIGN.json measures a design that exists, as in
`scripts/quickstart.py:network=out/quickstart/measure/design.json`. The commands run in processes of their own, and their
results are kept in the work folder: an interrupted comparison continues, and a network that fails ends no other.

With `--searches N`, every network is searched and measured N times, each from an empty store, and every search has a row.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nnstretch.bench.kept_answers import CommandError, kept_answer
from nnstretch.cli.console import exit_status
from nnstretch.devices.base.spec import is_simulated, usable_cores
from nnstretch.devices.cpu.processor import cpu_model
from nnstretch.devices.engine.build.engine_library import build_engine
from nnstretch.report.tables.text import interval_text, ms_text, share_text, times_text
from nnstretch.support.settings import cache_dir, write_text

FAILED = 1
"""Exit status if a network failed."""
UNBRANCHED = ("original", "control")
"""The networks that the branched one is compared with, each run in every way of `WAYS`."""
WAYS = ("fastest processor", "all cores", "split", "ONNX Runtime")
_GAIN = ("branched", "predicted", "× best alternative (95 % interval)", "at equal MACs", "of the perfect split")
COLUMNS = (
    "network",
    *(f"{network}: {way}" for network in UNBRANCHED for way in WAYS),
    *_GAIN,
    "search s",
    "best alternative",
)


class Comparison(NamedTuple):
    """What the two commands answered about one network.

    Attributes:
        search: the answer of `nnstretch stretch`; empty if the design was given.
        measured: the answer of `nnstretch bench --design`.
    """

    search: Mapping[str, Any]
    measured: Mapping[str, Any]


class Run(NamedTuple):
    """One search and measurement of a network.

    Attributes:
        network: zoo name, FILE.py:FACTORY, or one of these with =DESIGN.json.
        search: its number, from 1; None: one search only, from the store at hand.
    """

    network: str
    search: int | None

    @property
    def name(self) -> str:
        """How the table calls it."""
        return self.network if self.search is None else f"{self.network}, search {self.search}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Compares, prints and writes; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="+", metavar="NET", help="zoo name or FILE.py:FACTORY, or NET=DESIGN.json")
    parser.add_argument("-p", "--processors", required=True, metavar="LIST", help="such as cpu:0,opencl:0@1")
    parser.add_argument(
        "--image-size", metavar="SIZE", help="of zoo networks' images, as of nnstretch stretch; factories say theirs"
    )
    parser.add_argument("--min-macs", default="0.95", help="as of nnstretch stretch (default: %(default)s)")
    parser.add_argument("--searches", type=int, metavar="N", help="this many per network, each from an empty store")
    parser.add_argument("--rounds", default="10", help="as of nnstretch bench (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="run no designs and tune nothing, to see that all works")
    parser.add_argument("--work", type=Path, default=Path("out/alternatives"), metavar="DIR", help="kept results")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="the table; always printed, too")
    options = parser.parse_args(arguments)
    if options.searches is not None and options.searches < 1:
        parser.error("--searches must be at least 1")
    return exit_status(lambda: compare_all(options))


def compare_all(options: argparse.Namespace) -> int:
    """Compares every network and shows the table; the table is written after each row."""
    results: dict[str, Comparison | None] = {}
    numbers = [None] if options.searches is None else range(1, options.searches + 1)
    # Search after search: what disturbs the machine for minutes does not fall on all searches of one network.
    runs = [Run(network, number) for number in numbers for network in options.networks]
    for number, run in enumerate(runs, 1):
        began = time.perf_counter()
        print(f"[{number}/{len(runs)}] {run.name}", file=sys.stderr)
        try:
            results[run.name] = compared(run, options)
        except CommandError as error:
            print(f"  {error}", file=sys.stderr)
            results[run.name] = None
        print(f"  {time.perf_counter() - began:.0f} s", file=sys.stderr)
        if options.output is not None:
            write_text(options.output, table(results, options.processors))
    print(table(results, options.processors), end="")
    return FAILED if None in results.values() else 0


def compared(run: Run, options: argparse.Namespace) -> Comparison:
    """The comparison of one network, from an earlier call with the same options if there was one.

    Raises:
        CommandError: the search or the measurement failed.
        FileError: a kept result cannot be read or belongs to other options.
    """
    spec, _, design = run.network.partition("=")
    size = [] if options.image_size is None or ".py" in spec else ["--image-size", options.image_size]
    folder = options.work / re.sub(r"[^\w.-]+", "-", "-".join([run.name, *size[1:]]))
    environment = {} if run.search is None else {"NNSTRETCH_CACHE_DIR": str(empty_store(folder / "store"))}
    search = ["stretch", spec, "-p", options.processors, *size, "--min-macs", options.min_macs, "--top", "2"]
    search += ["--even-if-slower", "-o", str(folder / "designs"), "--json"]
    found: Mapping[str, Any] = {}
    if not design:
        command = [*search, *(["--no-measure"] if options.quick else [])]
        found = kept_answer(folder / "search.json", command, announce, environment)
        design = found["designs"][0]["file"]
    measure = ["bench", spec, "--design", design, "-p", options.processors, *size, "--rounds", options.rounds, "--json"]
    measure += ["--no-tune"] if options.quick else []
    return Comparison(found, kept_answer(folder / "comparison.json", measure, announce, environment))


def empty_store(folder: Path) -> Path:
    """A folder for NNSTRETCH_CACHE_DIR with the engine, which is built once, and without measurements and programs.

    The folder of an interrupted comparison is taken as it is.
    """
    if not folder.exists():
        build_engine()
        shutil.copytree(cache_dir("engine"), folder.absolute() / "engine")
    return folder.absolute()


def announce(command: str) -> None:
    """Says which command runs."""
    print(f"  {command}", file=sys.stderr)


def table(results: Mapping[str, Comparison | None], processors: str) -> str:
    """The Markdown table, with a row per network and search."""
    rows = [COLUMNS, ("---", *["---:"] * (len(COLUMNS) - 2), "---"), *(cells(n, r) for n, r in results.items())]
    where = "simulated" if is_simulated(processors) else f"medians; {cpu_model()}, {len(usable_cores())} cores"
    note = f"Milliseconds on {processors} ({where})."
    return "".join(f"| {' | '.join(row)} |\n" for row in rows) + f"\n{note}\n"


def cells(name: str, found: Comparison | None) -> tuple[str, ...]:
    """A row of the table; None stands for a network that failed."""
    if found is None:
        return (name, *["–"] * (len(COLUMNS) - 2), "failed")
    search, measured = found
    best, between = measured["best_alternative"], measured["intervals"].get("speedup_best_alternative")
    predicted = search["designs"][0]["predicted_ms"] if search else None
    return (
        name,
        *(cell for unbranched in UNBRANCHED for cell in unbranched_cells(unbranched, measured)),
        ms_text(measured["branched_ms"]),
        ms_text(predicted),
        f"{measured['speedup_best_alternative']:.2f}× ({interval_text(between, '.2f')})",
        times_text(measured["speedup_equal_macs"]),
        share_text(measured["split_share"]),
        f"{search['search_s']:.0f}" if search else "–",
        f"the {best['network']}, {best['how']}, on {best['processors']}",
    )


def unbranched_cells(network: str, answer: Mapping[str, Any]) -> tuple[str, ...]:
    """Latencies of the original or the control in the ways of `WAYS`; a split that keeps one processor names it."""
    name, alone_ms = min(answer[f"{network}_ms"].items(), key=lambda entry: entry[1])
    placed = [r["how"] for r in answer["rows"] if r["network"] == network and r["how"].startswith("placed")]
    return (
        f"{ms_text(alone_ms)} ({name})",
        ms_text(answer[f"{network}_all_cores_ms"]),
        " ".join([ms_text(answer[f"{network}_split_ms"]), *(f"({how})" for how in placed)]),
        ms_text(answer["onnxruntime_ms" if network == "original" else "control_onnxruntime_ms"]),
    )


if __name__ == "__main__":
    sys.exit(main())
