"""Measures models over batch sizes and threads, and prints the throughput of each: a script to copy and change.

python scripts/latency_sweep.py MODEL… [--batches 1,4,16] [--threads 1,2] [--json]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

import nnstretch as nns
from nnstretch.cli.console import exit_status, print_answer, script_parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints; returns the exit status."""
    parser = script_parser(__doc__)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="ONNX files or zoo names")
    parser.add_argument("--batches", default="1,4", help="images per run (default: 1,4)")
    parser.add_argument("--threads", default="1", help="cores (default: 1)")
    parser.add_argument("--no-tune", action="store_true", help="select routines by estimates")
    given = parser.parse_args(arguments)

    def work() -> None:
        rows = []
        for model, threads, batch in product(given.models, numbers(given.threads), numbers(given.batches)):
            with nns.compile(model, batch=batch, threads=threads, tune=not given.no_tune) as session:
                seconds = float(np.median(session.time(budget=0.5)))
            rows.append(
                {
                    "model": model,
                    "threads": threads,
                    "batch": batch,
                    "ms": 1e3 * seconds,
                    "images_per_s": batch / seconds,
                }
            )
        print_answer({"results": rows}, lambda answer: show(answer["results"]), as_json=given.json)

    return exit_status(work)


def numbers(text: str) -> list[int]:
    """Whole numbers above 0, separated by commas.

    Raises:
        UsageError: they are not.
    """
    if not all(part.isdigit() and int(part) for part in text.split(",")):
        raise nns.UsageError(f"{text} is not understood; write whole numbers above 0, such as 1,2,4")
    return [int(part) for part in text.split(",")]


def show(rows: Sequence[dict[str, Any]]) -> None:
    """One line per combination."""
    for row in rows:
        print("{model}: {threads} threads, batch {batch}: {ms:.3f} ms, {images_per_s:.1f} images/s".format(**row))


if __name__ == "__main__":
    sys.exit(main())
