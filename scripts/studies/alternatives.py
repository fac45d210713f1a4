"""Branches networks for processors of this machine and compares each with its strongest alternatives, as a Markdown table.

    .venv/bin/python scripts/studies/alternatives.py resnet34 resnet50 -p cpu:0,opencl:0@1 --image-size 224 -o table.md

For each network, `nnstretch stretch` searches a design and `nnstretch bench --design` measures the best-ranked one. NET is a
zoo name or FILE.py:FACTORY; NET=DESIGN.json measures a design that exists, as in
`scripts/quickstart.py:network=out/quickstart/measure/design.json`. The commands run in processes of their own, and their
results are kept in the work folder: an interrupted comparison continues, and a network that fails ends no other.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nnstretch.bench.kept_answers import CommandError, kept_answer
from nnstretch.cli.console import exit_status
from nnstretch.devices.base.spec import usable_cores
from nnstretch.devices.cpu.processor import cpu_model
from nnstretch.report.tables.text import interval_text, ms_text
from nnstretch.support.settings import write_text

FAILED = 1
"""Exit status if a network failed."""
UNBRANCHED = ("original", "control")
"""The networks that the branched one is compared with, each run in every way of `WAYS`."""
WAYS = ("fastest processor", "all cores", "split", "ONNX Runtime")
_GAIN = ("branched", "× best alternative (95 % interval)", "best alternative")
COLUMNS = ("network", *(f"{network}: {way}" for network in UNBRANCHED for way in WAYS), *_GAIN)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compares, prints and writes; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="+", metavar="NET", help="zoo name or FILE.py:FACTORY, or NET=DESIGN.json")
    parser.add_argument("-p", "--processors", required=True, metavar="LIST", help="such as cpu:0,opencl:0@1")
    parser.add_argument(
        "--image-size", metavar="N", help="side of zoo networks' images in pixels; factories say theirs"
    )
    parser.add_argument("--min-macs", default="0.95", help="as of nnstretch stretch (default: %(default)s)")
    parser.add_argument("--rounds", default="10", help="as of nnstretch bench (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="run no designs and tune nothing, to see that all works")
    parser.add_argument("--work", type=Path, default=Path("out/alternatives"), metavar="DIR", help="kept results")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="the table; always printed, too")
    options = parser.parse_args(arguments)
    return exit_status(lambda: compare_all(options))


def compare_all(options: argparse.Namespace) -> int:
    """Compares every network and shows the table; the table is written after each network."""
    results: dict[str, dict[str, Any] | None] = {}
    for number, network in enumerate(options.networks, 1):
        began = time.perf_counter()
        print(f"[{number}/{len(options.networks)}] {network}", file=sys.stderr)
        try:
            results[network] = compared(network, options)
        except CommandError as error:
            print(f"  {error}", file=sys.stderr)
            results[network] = None
        print(f"  {time.perf_counter() - began:.0f} s", file=sys.stderr)
        if options.output is not None:
            write_text(options.output, table(results, options.processors))
    print(table(results, options.processors), end="")
    return FAILED if None in results.values() else 0


def compared(network: str, options: argparse.Namespace) -> dict[str, Any]:
    """The comparison of one network, from an earlier call with the same options if there was one.

    Raises:
        CommandError: the search or the measurement failed.
        FileError: a kept result cannot be read or belongs to other options.
    """
    spec, _, design = network.partition("=")
    size = [] if options.image_size is None or ".py" in spec else ["--image-size", options.image_size]
    folder = options.work / re.sub(r"[^\w.-]+", "-", "-".join([network, *size[1:]]))
    search = ["stretch", spec, "-p", options.processors, *size, "--min-macs", options.min_macs, "--top", "2"]
    search += [
        "--even-if-slower",
        "-o",
        str(folder / "designs"),
        "--json",
        *(["--no-measure"] if options.quick else []),
    ]
    if not design:
        design = kept_answer(folder / "search.json", search, announce)["designs"][0]["file"]
    measure = ["bench", spec, "--design", design, "-p", options.processors, *size, "--rounds", options.rounds, "--json"]
    return kept_answer(folder / "comparison.json", [*measure, *(["--no-tune"] if options.quick else [])], announce)


def announce(command: str) -> None:
    """Says which command runs."""
    print(f"  {command}", file=sys.stderr)


def table(results: Mapping[str, Mapping[str, Any] | None], processors: str) -> str:
    """The Markdown table, with a row per network."""
    rows = [COLUMNS, ("---", *["---:"] * (len(COLUMNS) - 2), "---"), *(cells(n, r) for n, r in results.items())]
    note = f"Median milliseconds on {processors} ({cpu_model()}, {len(usable_cores())} cores)."
    return "".join(f"| {' | '.join(row)} |\n" for row in rows) + f"\n{note}\n"


def cells(network: str, answer: Mapping[str, Any] | None) -> tuple[str, ...]:
    """A row of the table; None stands for a network that failed."""
    if answer is None:
        return (network, *["–"] * (len(COLUMNS) - 2), "failed")
    best, between = answer["best_alternative"], answer["intervals"].get("speedup_best_alternative")
    return (
        network,
        *(cell for unbranched in UNBRANCHED for cell in unbranched_cells(unbranched, answer)),
        ms_text(answer["branched_ms"]),
        f"{answer['speedup_best_alternative']:.2f}× ({interval_text(between, '.2f')})",
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
