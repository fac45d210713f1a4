"""Measures ONNX files beside other engines and prints a Markdown table with a row per model.

    .venv/bin/python scripts/studies/model_benchmark.py models/*.onnx --threads 1 -o table.md

`nnstretch bench` runs in a process of its own for every file, and its answers are kept in the work folder: an interrupted
benchmark continues, and a model that fails ends no other. A FILE.json is an answer of `nnstretch bench --json`, which is shown
without measuring. `scripts/studies/model_files.py` writes models of timm, torchvision and ultralytics.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nnstretch.bench.comparison.suite import summaries
from nnstretch.bench.engines import ENGINES
from nnstretch.bench.kept_answers import CommandError, kept_answer
from nnstretch.cli.console import exit_status
from nnstretch.errors import FileError
from nnstretch.report.tables.text import ms_text, number_text, threads_text
from nnstretch.support.settings import write_text

FAILED = 1
"""Exit status if a model failed."""
OURS = "nnstretch"
_SHOWN = ("model", "threads", "engines", "best_peer", "speedup", "max_rel_error", "fallback_layers")
"""What the table takes from a result."""
_TITLES = {OURS: OURS, "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "litert": "LiteRT"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints and writes; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("files", nargs="+", type=Path, metavar="FILE", help="models, or answers of nnstretch bench --json")
    add("--against", default="ort,openvino,litert,ncnn", help="as of nnstretch bench (default: %(default)s)")
    add("--threads", default="1", metavar="N[,N]", help="as of nnstretch bench (default: %(default)s)")
    add("--rounds", default="10", help="as of nnstretch bench (default: %(default)s)")
    add("--budget", default="10", metavar="SECONDS", help="as of nnstretch bench (default: %(default)s)")
    add("--no-tune", action="store_true", help="as of nnstretch bench, to see that all works")
    add("--work", type=Path, default=Path("out/models"), metavar="DIR", help="kept answers (default: %(default)s)")
    add("-o", "--output", type=Path, metavar="FILE", help="the tables; always printed, too")
    options = parser.parse_args(arguments)
    return exit_status(lambda: measure_all(options))


def measure_all(options: argparse.Namespace) -> int:
    """Measures every model and shows the tables; these are written after each model."""
    answers: dict[str, Mapping[str, Any] | None] = {}
    for number, file in enumerate(options.files, 1):
        began = time.perf_counter()
        print(f"[{number}/{len(options.files)}] {file}", file=sys.stderr)
        try:
            answers[str(file)] = answer_of(file, options)
        except CommandError as error:
            print(f"  {error}", file=sys.stderr)
            answers[str(file)] = None
        print(f"  {time.perf_counter() - began:.0f} s", file=sys.stderr)
        if options.output is not None:
            write_text(options.output, tables(answers))
    print(tables(answers), end="")
    return FAILED if any(answer is None or failed(answer) for answer in answers.values()) else 0


def answer_of(file: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The answer of `nnstretch bench` for a model, from an earlier call with the same options if there was one.

    Raises:
        CommandError: the measurement failed.
        FileError: a kept answer cannot be read or belongs to other options, or a given answer is none.
    """
    if file.suffix == ".json":
        return given_answer(file)
    command = ["bench", str(file), "--against", options.against, "--threads", options.threads]
    command += ["--rounds", options.rounds, "--budget", options.budget, *["--no-tune"] * options.no_tune, "--json"]
    kept = options.work / f"{file.stem}-{options.threads.replace(',', '-')}.json"
    return kept_answer(kept, command, lambda text: print(f"  {text}", file=sys.stderr))


def given_answer(file: Path) -> dict[str, Any]:
    """An answer that a user kept.

    Raises:
        FileError: it is none.
    """
    try:
        answer = dict(json.loads(file.read_bytes()))
        missing = [key for one in answer["results"] or [{}] for key in _SHOWN if key not in one]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FileError(f"cannot read {file} as an answer of nnstretch bench --json ({error!r})") from error
    if missing:
        raise FileError(f"{file} is no answer of nnstretch bench --json: a result has no {missing[0]!r}")
    return answer


def failed(answer: Mapping[str, Any]) -> bool:
    """Whether our engine did not run a model."""
    return any("p50_ms" not in one["engines"].get(OURS, {}) for one in answer["results"])


def tables(answers: Mapping[str, Mapping[str, Any] | None]) -> str:
    """A Markdown table for each number of threads, with its geometric mean and the models that lose to an engine."""
    results = [one for answer in answers.values() if answer for one in answer["results"]]
    lost = [Path(file).stem for file, answer in answers.items() if answer is None]
    parts = [
        "\n".join(table([one for one in results if one["threads"] == summary["threads"]], summary, lost))
        for summary in summaries(results)
    ]
    return "\n\n".join(parts or [f"All models failed: {', '.join(lost)}."]) + "\n"


def table(results: Sequence[Mapping[str, Any]], summary: Mapping[str, Any], lost: Sequence[str]) -> Iterator[str]:
    """The lines of a table for one number of threads; `lost` are models without an answer."""
    engines = [entry.name for entry in ENGINES if any(entry.name in one["engines"] for one in results)]
    titles = ["model", *(_TITLES.get(name, name) for name in engines), "× best", "error", "fallback layers"]
    yield f"On {threads_text(summary['threads'])}, p50 in ms:"
    yield ""
    for cells in (titles, ["---", *["---:"] * (len(titles) - 2), "---"], *(row(one, engines) for one in results)):
        yield f"| {' | '.join(cells)} |"
    for model in lost:
        yield f"| {model} | failed |{' |' * (len(titles) - 2)}"
    yield ""
    if summary["geometric_mean"] is None:
        yield "No other engine ran beside ours."
        return
    behind = [
        f"{Path(one['model']).stem} ({one['speedup']:.2f}× {one['best_peer']})"
        for one in sorted(results, key=lambda one: one["speedup"] or 1)
        if (one["speedup"] or 1) < 1
    ]
    count = summary["models"]
    yield f"Geometric mean over {count} model{'s' * (count != 1)}: {summary['geometric_mean']:.2f}× the best engine."
    yield f"Slower than the best engine: {', '.join(behind) or 'none'}."


def row(one: Mapping[str, Any], engines: Sequence[str]) -> list[str]:
    """The cells of a model: latencies, the fastest in bold, the gain, our error and our layers on ONNX Runtime."""
    times = {name: about["p50_ms"] for name, about in one["engines"].items() if "p50_ms" in about}
    fastest = min(times, key=times.__getitem__, default=None)
    shown = {name: ms_text(ms, 2) for name, ms in times.items()}
    cells = [f"**{shown[n]}**" if n == fastest else shown.get(n, "failed") for n in engines]
    gain = "–" if one["speedup"] is None else f"{one['speedup']:.2f} ({one['best_peer']})"
    fallback = one["fallback_layers"]
    return [
        Path(one["model"]).stem,
        *cells,
        gain,
        number_text(one["max_rel_error"], ".0e"),
        f"{len(fallback)}: {', '.join(fallback)}" if fallback else "none",
    ]


if __name__ == "__main__":
    sys.exit(main())
