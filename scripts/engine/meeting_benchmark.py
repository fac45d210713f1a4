"""Measures the cost of a join: a chain of tiny layers that alternates between two processors, against one processor alone.

The cost of a join is the additional time of the alternating chain over the mean of both single-processor chains,
divided by the number of
changes of processor. Each change launches a sub-graph and waits for it.

    .venv/bin/python scripts/engine/meeting_benchmark.py [-p cpu:0,cpu:1] [-p cpu:0,opencl:0@1] [--rounds 15] [--json]
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console
from rich.table import Table

from nnstretch.cli.console import exit_status, print_answer, script_parser
from nnstretch.compiler.compile import compile_model
from nnstretch.compiler.processors import build_processors
from nnstretch.errors import UsageError
from nnstretch.graph.metadata import PLACEMENT_KEY

LENGTH = 64
"""Layers of a chain; an even number."""
IMAGE = (1, 16, 4, 4)
RUNS = 40


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints; returns the exit status."""
    parser = script_parser(__doc__)
    parser.add_argument(
        "-p", "--processors", action="append", help="two, such as cpu:0,cpu:1; may be given again (default: cpu,opencl)"
    )
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args(arguments)
    return exit_status(lambda: run(options))


def run(options: argparse.Namespace) -> None:
    """Measures and prints all pairs."""
    if options.rounds < 1:
        raise UsageError(f"--rounds {options.rounds}: give 1 or more")
    pairs = [measure(text, options.rounds) for text in options.processors or ["cpu,opencl"]]
    print_answer({"pairs": pairs}, show, as_json=options.json)


def measure(text: str, rounds: int) -> dict[str, Any]:
    """Microseconds of a layer on each of two processors, and of a join: medians of rounds.

    Raises:
        UsageError: not two processors.
    """
    processors = build_processors(text)
    names = [p.name for p in processors.named]
    if len(names) != 2:
        raise UsageError(f"--processors {text} names {len(names)}; two meet, as in cpu:0,opencl:0@1")
    places = {"first": [0] * LENGTH, "second": [1] * LENGTH, "turns": [0, 1] * (LENGTH // 2)}
    times: dict[str, list[float]] = {kind: [] for kind in places}
    with ExitStack() as stack:
        sessions = {
            kind: stack.enter_context(compile_model(chain(where), processors, tune=False))
            for kind, where in places.items()
        }
        for _ in range(rounds):
            for kind, session in sessions.items():
                times[kind].append(statistics.median(session.time(warmup=3, runs=RUNS)))
    first, second, turns = (1e6 * statistics.median(times[kind]) for kind in places)
    return {
        "processors": names,
        "layer_us": [first / LENGTH, second / LENGTH],
        "meeting_us": (turns - (first + second) / 2) / (LENGTH - 1),
    }


def chain(places: Sequence[int]) -> ir.Model:
    """A chain of 1x1 convolutions of a tiny image, each placed on the processor of that number."""
    rng = np.random.default_rng(0)
    channels = IMAGE[1]
    nodes, weights = [], []
    for number, place in enumerate(places):
        values = rng.standard_normal((channels, channels, 1, 1)) / np.sqrt(channels)
        weights.append(numpy_helper.from_array(values.astype(np.float32), f"w{number}"))
        node = helper.make_node("Conv", [f"x{number}", f"w{number}"], [f"x{number + 1}"])
        note = node.metadata_props.add()
        note.key, note.value = PLACEMENT_KEY, str(place)
        nodes.append(node)
    begin = helper.make_tensor_value_info("x0", TensorProto.FLOAT, IMAGE)
    end = helper.make_tensor_value_info(f"x{len(places)}", TensorProto.FLOAT, None)
    model = helper.make_model(
        helper.make_graph(nodes, "chain", [begin], [end], weights),
        opset_imports=[helper.make_opsetid("", 20)],
        ir_version=10,
    )
    return ir.from_proto(onnx.shape_inference.infer_shapes(model))


def show(answer: dict[str, Any]) -> None:
    """A table of all pairs."""
    table = Table("processors", "a layer alone, µs", "a meeting point, µs")
    for pair in answer["pairs"]:
        alone = ", ".join(f"{us:.2f}" for us in pair["layer_us"])
        table.add_row(", ".join(pair["processors"]), alone, f"{pair['meeting_us']:.2f}")
    Console().print(table)


if __name__ == "__main__":
    raise SystemExit(main())
