"""Fairness of sessions that share their cores: two in one process, one thread each, and two processes at once.

Every session runs as often as possible for some seconds. The output shows the contention factor of a run, the
fairness (runs of the slowest / runs of
the fastest), and whether every output equals that of the session alone.

    .venv/bin/python scripts/engine/sharing_benchmark.py [--model squeezenet] [--processors cpu] [--seconds 3] [--json]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import nnstretch as nns
from nnstretch.bench.comparison.subject import plan_feeds
from nnstretch.cli.console import exit_status, print_answer, script_parser
from nnstretch.scheduler.runtime.session import PlanSession

SHARINGS = {"alone": (1, 1), "two sessions in one process": (1, 2), "two processes": (2, 1)}
"""Processes, and sessions in each."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints; returns the exit status."""
    parser = script_parser(__doc__)
    parser.add_argument("--model", default="squeezenet", help="ONNX file or zoo name")
    parser.add_argument("--processors", default="cpu", help="as for nnstretch compile")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--tune", action="store_true", help="measure which routines are fastest first")
    parser.add_argument("--serve", nargs=2, metavar=("PACKAGE", "SESSIONS"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    return exit_status(lambda: run(options))


def run(options: argparse.Namespace) -> None:
    """One of the processes, or the whole measurement."""
    if options.serve:
        serve(options.serve[0], int(options.serve[1]), options.seconds)
        return
    report = measure(options.model, options.processors, options.seconds, options.tune)
    print_answer(report, show, as_json=options.json)


def measure(model: str, processors: str, seconds: float, tune: bool) -> dict[str, Any]:
    """Per way to share: runs and median of each session, contention factor, evenness, and correctness."""
    report: dict[str, Any] = {"model": model, "processors": processors, "sharings": {}}
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "model.nns"
        with nns.compile(model, processors=processors, tune=tune) as session:
            session.save(package)
        for name, (processes, sessions) in SHARINGS.items():
            report["sharings"][name] = share(package, processes, sessions, seconds)
    alone = report["sharings"]["alone"]["p50_ms"][0]
    for found in report["sharings"].values():
        found["slowdown"] = max(found["p50_ms"]) / alone
        found["evenness"] = min(found["runs"]) / max(found["runs"])
    return report


def share(package: Path, processes: int, sessions: int, seconds: float) -> dict[str, Any]:
    """Runs a number of processes at once, each with a number of sessions."""
    command = [sys.executable, __file__, "--serve", str(package), str(sessions), "--seconds", str(seconds)]
    servers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(processes)
    ]
    pipes = [(server.stdin, server.stdout) for server in servers]
    for _, answer in pipes:
        assert answer is not None
        answer.readline()
    for start, _ in pipes:
        assert start is not None
        start.write("go\n")
        start.flush()
    found = [one for server in servers for one in json.loads(server.communicate()[0])]
    return {
        "runs": [one["runs"] for one in found],
        "p50_ms": [one["p50_ms"] for one in found],
        "right": all(one["right"] for one in found) and len({one["answer"] for one in found}) == 1,
    }


def serve(package: str, sessions: int, seconds: float) -> None:
    """One of the processes: reports that it is ready, waits for a line, and answers with the runs of its sessions."""
    loaded = [PlanSession.load(package) for _ in range(sessions)]
    feeds = plan_feeds(loaded[0].plan, 0, loaded[0].compiled.models)
    for session in loaded:
        session.run(None, feeds)
    print("ready", flush=True)
    sys.stdin.readline()
    barrier = threading.Barrier(sessions)

    def work(session: PlanSession) -> dict[str, Any]:
        expected = [y.tobytes() for y in session.run(None, feeds)]
        barrier.wait()
        times, right = [], True
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            begin = time.perf_counter()
            answers = session.run(None, feeds)
            times.append(time.perf_counter() - begin)
            right = right and [y.tobytes() for y in answers] == expected
        p50 = float(np.median(times)) * 1e3
        return {
            "runs": len(times),
            "p50_ms": p50,
            "right": right,
            "answer": hashlib.sha256(b"".join(expected)).hexdigest(),
        }

    with ThreadPoolExecutor(sessions) as pool:
        print(json.dumps(list(pool.map(work, loaded))))


def show(report: dict[str, Any]) -> None:
    """Prints a table."""
    table = Table(title=f"{report['model']} on {report['processors']}")
    for column in ("", "median, ms", "runs", "slowdown", "evenness", "right"):
        table.add_column(column, justify="left" if not column else "right")
    for name, found in report["sharings"].items():
        medians = ", ".join(f"{ms:.2f}" for ms in found["p50_ms"])
        runs = ", ".join(map(str, found["runs"]))
        table.add_row(
            name,
            medians,
            runs,
            f"{found['contention_factor']:.2f}",
            f"{found['evenness']:.2f}",
            "yes" if found["right"] else "NO",
        )
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
