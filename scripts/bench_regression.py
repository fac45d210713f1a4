"""Compares the latency of two commits of this repository on this machine.

Both commits are checked out in a temporary folder and use the packages of the present environment. For each case (a model, a
set of processors and a number of threads), each commit compiles and tunes the model in a process of its own, with a cache of
its own. Then the two processes are timed in turns while the other one is stopped. This is repeated with new processes and
empty caches, since routines that tuning takes and addresses of memory differ from process to process. The result of a case
is the ratio B/A, the geometric mean over the pairs of processes, with its 95 % interval (bootstrap over pairs and rounds). A
case is "slower" if the whole interval lies above 1.02, and "wrong" if an output differs by more than 5e-4 of its range.
Tuning times are compared too, but do not count. To see what differs without a cause, compare a commit with itself.

Exit status: 0; 1 if a case is slower or wrong, or fails in one of the commits; 2 after a wrong argument; 130 if interrupted.

    scripts/bench_regression A B [MODEL…] [--processors SET]… [--threads 1,2] [--pairs 3] [--rounds 10] [--json] [-o FILE]
"""

from __future__ import annotations

import json
import signal
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rich.console import Console

from nnstretch.bench.regression.cases import DEFAULT_MODELS, RegressionOptions, find_cases, parse_threads
from nnstretch.bench.regression.commits import LETTERS, Repository
from nnstretch.bench.regression.compare import compare_commits
from nnstretch.bench.regression.results import RegressionResult
from nnstretch.bench.timing import TimingOptions
from nnstretch.cli.console import exit_status, print_answer
from nnstretch.errors import UsageError
from nnstretch.report.tables.regression import means_line, regression_table
from nnstretch.support.settings import write_text

ROOT = Path(__file__).resolve().parents[1]
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compares and prints; returns the exit status."""
    return exit_status(lambda: run(make_parser().parse_intermixed_args(arguments)))


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """Ends the work. A second signal does not interrupt the removal of what was made."""
    for other in SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    raise KeyboardInterrupt


class OneLineParser(ArgumentParser):
    """A command line whose errors are those of the project."""

    def error(self, message: str) -> NoReturn:
        """Refuses the command line.

        Raises:
            UsageError: always.
        """
        raise UsageError(message)


def make_parser() -> ArgumentParser:
    """The command line."""
    text, _, call = (__doc__ or "").strip().rpartition("\n\n")
    usage = call.strip().removeprefix("scripts/")
    parser = OneLineParser("scripts/bench_regression", usage, text, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("a", metavar="A", help="commit that is compared with: hash, branch, tag, HEAD~1 …")
    parser.add_argument("b", metavar="B", help="commit that is judged")
    parser.add_argument(
        "models",
        metavar="MODEL",
        nargs="*",
        help=f"zoo name, ONNX file or FILE.py:FACTORY; `all` is the whole zoo (default: {', '.join(DEFAULT_MODELS)})",
    )
    parser.add_argument(
        "-p",
        "--processors",
        action="append",
        metavar="SET",
        help="as for nnstretch compile, such as cpu:0,opencl:0@1; given again, another set (default: cpu)",
    )
    parser.add_argument("--threads", default="1", metavar="N,…", help="cores of the first CPU of a set (default: 1)")
    parser.add_argument(
        "--pairs",
        type=int,
        default=3,
        metavar="N",
        help="pairs of processes, each of which tunes again (default: 3); with 1, the interval leaves out "
        "what differs between processes, often 2 %%",
    )
    parser.add_argument("--rounds", type=int, default=10, metavar="N", help="turns of each process (default: 10)")
    parser.add_argument("--seconds", type=float, default=0.2, metavar="S", help="seconds of a turn (default: 0.2)")
    parser.add_argument(
        "--keep-cache",
        type=Path,
        metavar="DIR",
        help="folder for the caches of the commits, to be used again: a commit found there is not tuned again",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the JSON object to a file, too")
    return parser


def run(given: Namespace) -> int:
    """Compares as the command line says and prints the answer; returns the exit status.

    Raises:
        UsageError: an option is wrong.
        NNStretchError: a model does not exist, or a file cannot be written.
    """
    options = RegressionOptions(given.pairs, TimingOptions(given.rounds, given.seconds), given.keep_cache)
    if given.output is not None and not given.output.absolute().parent.is_dir():
        raise UsageError(f"-o {given.output}: there is no folder {given.output.absolute().parent}")
    repository = Repository(ROOT)
    commits = repository.commit(given.a), repository.commit(given.b)
    cases = find_cases(given.models, given.processors or ["cpu"], parse_threads(given.threads))
    result = compare_commits(repository, commits, cases, options, partial(print, file=sys.stderr, flush=True))
    if given.output is not None:
        write_text(given.output, json.dumps(result.to_json(), indent=1) + "\n")
    print_answer(result.to_json(), lambda _: show(result), as_json=given.json)
    return result.status


def show(result: RegressionResult) -> None:
    """Prints the table, the geometric means, and the reasons of failures; warnings go to stderr."""
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    for letter, commit in zip(LETTERS, result.commits, strict=True):
        console.print(f"{letter.upper()}  {commit.hash[:12]}  {commit.subject}", markup=False)
    console.print(regression_table(result))
    if line := means_line(result):
        console.print(line)
    for one in result.cases:
        if one.errors:
            console.print(f"{one.case}: {one}", markup=False, soft_wrap=True)
        if one.warning:
            print(f"warning: {one.warning}", file=sys.stderr)


if __name__ == "__main__":
    for caught in SIGNALS:
        signal.signal(caught, interrupt)
    sys.exit(main())
