"""Compares the latency of two commits of this repository on this machine.

Both commits are checked out in a temporary folder and use the packages of the present environment. For each case (a model, a
set of processors and a number of threads), each commit compiles and tunes the model in a process of its own, with a cache of
its own. Then the two processes are timed in turns while the other one is stopped. The result of a case is the ratio B/A of
the medians of the rounds, with its 95 % interval (bootstrap). A case is "slower" if the whole interval lies above 1.02, and
"wrong" if an output differs by more than 5e-4 of its range. Tuning times are compared too, but do not count.

Exit status: 0; 1 if a case is slower or wrong, or fails in one of the commits; 2 after a wrong argument; 130 if interrupted.

    scripts/bench_regression A B [MODEL…] [--processors cpu] [--processors cpu:0,opencl:0@1] [--threads 1,2] [--json] [-o FILE]
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Literal, NoReturn, Self

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console

from nnstretch.bench.comparison.subject import check_exists, subject
from nnstretch.bench.timing.statistics import geometric_mean, interval, resampled, significant
from nnstretch.devices.base.spec import parse_processors, usable_cores
from nnstretch.errors import NNStretchError, UsageError
from nnstretch.graph.reference import relative_error
from nnstretch.report.tables.text import interval_text, plain_table
from nnstretch.support.settings import cache_dir, write_text

ROOT = Path(__file__).resolve().parents[1]
CHILD = Path(__file__).resolve().with_name("_regression_child.py")
MODELS = (
    *("resnet18", "resnet50", "mobilenetv2", "squeezenet1_1", "googlenet"),
    *("regnet_x_1_6gf", "efficientnet_lite4", "densenet121"),
)
"""Zoo names that stand for all kinds of kernels: dense, 1x1, depthwise and grouped convolutions, concats, pools, sums."""
SLOWER = 1.02
"""Ratio of latencies above which the whole interval must lie for "slower"; below 1/SLOWER it is "faster"."""
TUNES_SLOWER = 1.25
"""Ratio of tuning times from which on there is a warning."""
TOLERANCE = 5e-4
"""Largest difference of an output that is accepted, as a share of the output's range."""
LETTERS = ("a", "b")
PAUSE = 0.02  # seconds between turns
PATIENCE = 5.0  # seconds that a process has to end by itself
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Slices = dict[str, list[np.ndarray]]
"""Letter -> for each round the seconds of all runs."""
Verdict = Literal["same", "faster", "slower", "wrong", "failed"]


@dataclass(frozen=True)
class Commit:
    """One of the two commits.

    Attributes:
        name: as the caller wrote it.
        hash: the full hash.
        subject: the first line of its message.
    """

    name: str
    hash: str
    subject: str


@dataclass(frozen=True)
class Checkout:
    """A commit that is checked out: the folder to import the package from, and the cache folder."""

    imports: Path
    cache: Path


@dataclass(frozen=True)
class Case:
    """What is compared. `threads` is None where no CPU is among the processors."""

    model: str
    processors: str
    threads: int | None

    def __str__(self) -> str:
        threads = "" if self.threads is None else f", {self.threads} thread{'s' * (self.threads != 1)}"
        return f"{Path(self.model).name} on {self.processors}{threads}"


@dataclass(frozen=True)
class Files:
    """What both commits read.

    Attributes:
        model: the model as ONNX.
        small: a model of one layer as ONNX.
        feeds: inputs of the model as .npz; outputs are written beside it.
        inputs: the names of the inputs.
    """

    model: Path
    small: Path
    feeds: Path
    inputs: tuple[str, ...]

    def outputs(self, letter: str) -> Path:
        """Where the commit of that letter writes its outputs, as .npz."""
        return self.feeds.with_name(f"outputs-{letter}.npz")


@dataclass(frozen=True)
class Settings:
    """Rounds, and seconds of each turn in a round."""

    rounds: int
    seconds: float


@dataclass(frozen=True)
class Side:
    """What was measured of one commit.

    Attributes:
        p50_ms: median over the rounds of the median latency in milliseconds.
        tuning_s: seconds that compiling and tuning took.
        start_s: seconds before that for imports, the engine and the processors.
    """

    p50_ms: float
    tuning_s: float
    start_s: float


@dataclass(frozen=True)
class Row:
    """The result of a case.

    Attributes:
        case: what was compared.
        sides: A and B, if both of them ran.
        errors: letter -> reason of a failure.
        ratios: bootstrap samples of the ratio B/A; empty after a failure.
        difference: the largest difference between outputs of A and B, as a share of the output's range.
    """

    case: Case
    sides: tuple[Side, Side] | None = None
    errors: Mapping[str, str] = field(default_factory=dict)
    ratios: np.ndarray = field(default_factory=lambda: np.empty(0))
    difference: float = 0.0

    @property
    def ratio(self) -> float | None:
        """Median latency of B over that of A."""
        return self.sides[1].p50_ms / self.sides[0].p50_ms if self.sides else None

    @property
    def tuning_ratio(self) -> float | None:
        """Tuning time of B over that of A."""
        return self.sides[1].tuning_s / self.sides[0].tuning_s if self.sides else None

    @property
    def ends(self) -> tuple[float, float] | None:
        """The interval of the ratio."""
        return interval(self.ratios) if self.sides else None

    @property
    def verdict(self) -> Verdict:
        """What follows; a wrong output comes before the speed."""
        if self.ends is None:
            return "failed"
        if not self.difference <= TOLERANCE:
            return "wrong"
        low, high = self.ends
        if low > SLOWER:
            return "slower"
        return "faster" if high < 1 / SLOWER else "same"

    def to_json(self) -> dict[str, Any]:
        """One entry of "results". A difference that is infinite, as for outputs of other shapes, is null."""
        sides: dict[str, Any] = {letter: {"error": reason} for letter, reason in self.errors.items()}
        for letter, side in zip(LETTERS, self.sides or (), strict=False):
            sides[letter] = {name: significant(value) for name, value in vars(side).items()}
        return {
            "model": self.case.model,
            "processors": self.case.processors,
            "threads": self.case.threads,
            "a": sides.get("a"),
            "b": sides.get("b"),
            "ratio": _rounded(self.ratio),
            "interval": [significant(end) for end in self.ends] if self.ends else None,
            "tuning_ratio": _rounded(self.tuning_ratio),
            "max_rel_difference": _rounded(self.difference if self.sides else None),
            "verdict": self.verdict,
        }


class FailureError(Exception):
    """A commit cannot compile or run a model. The message is the reason."""


class Parser(ArgumentParser):
    """A command line whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compares and prints; returns the exit status."""
    for number in SIGNALS:
        signal.signal(number, interrupt)
    try:
        return run(parse(arguments))
    except NNStretchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """Ends the work. A second signal does not interrupt the removal of what was made."""
    for other in SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    raise KeyboardInterrupt


def parse(arguments: Sequence[str] | None) -> Namespace:
    """The options.

    Raises:
        UsageError: they are wrong; the message is one line.
    """
    summary, *_, call = (__doc__ or "").strip().split("\n\n")
    body = (__doc__ or "").split("\n\n")[1:-1]
    parser = Parser(
        prog="scripts/bench_regression",
        usage=call.strip().removeprefix("scripts/"),
        description="\n\n".join((summary, *body)),
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("a", metavar="A", help="commit that is compared with: hash, branch, tag, HEAD~1 …")
    parser.add_argument("b", metavar="B", help="commit that is judged")
    parser.add_argument(
        "models",
        metavar="MODEL",
        nargs="*",
        help=f"zoo name, ONNX file or FILE.py:FACTORY; `all` is the whole zoo (default: {', '.join(MODELS)})",
    )
    parser.add_argument(
        "-p",
        "--processors",
        action="append",
        metavar="SET",
        help="as for nnstretch compile, such as cpu:0,opencl:0@1; given again, another set (default: cpu)",
    )
    parser.add_argument("--threads", default="1", metavar="N,…", help="cores of the first CPU of a set (default: 1)")
    parser.add_argument("--rounds", type=int, default=20, metavar="N", help="turns of each commit (default: 20)")
    parser.add_argument("--seconds", type=float, default=0.2, metavar="S", help="seconds of a turn (default: 0.2)")
    parser.add_argument(
        "--keep-cache",
        type=Path,
        metavar="DIR",
        help="folder for the caches of the commits, to be used again: a commit found there is not tuned again",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the JSON object to a file, too")
    return parser.parse_intermixed_args(arguments)


def run(options: Namespace) -> int:
    """Compares as the options say and prints the answer; returns the exit status.

    Raises:
        UsageError: an option is wrong.
        NNStretchError: a model does not exist, or a file cannot be written.
    """
    if options.rounds < 2:
        raise UsageError(f"--rounds {options.rounds}: give 2 or more")
    if not 0 < options.seconds < math.inf:
        raise UsageError(f"--seconds {options.seconds}: give a number above 0")
    if options.output is not None and not options.output.absolute().parent.is_dir():
        raise UsageError(f"-o {options.output}: there is no folder {options.output.absolute().parent}")
    commits = find_commit(options.a), find_commit(options.b)
    cases = find_cases(options.models, options.processors or ["cpu"], parse_threads(options.threads))
    with checked_out(commits, options.keep_cache) as checkouts:
        rows = compare_all(cases, checkouts, Settings(options.rounds, options.seconds))
    status = int(any(row.verdict in ("slower", "wrong", "failed") for row in rows))
    answer = {
        **{letter: vars(commit) for letter, commit in zip(LETTERS, commits, strict=True)},
        "rounds": options.rounds,
        "seconds": options.seconds,
        "results": [row.to_json() for row in rows],
        **means(rows),
        "status": status,
    }
    if options.output is not None:
        write_text(options.output, json.dumps(answer, indent=1) + "\n")
    if options.json:
        print(json.dumps(answer))
    else:
        show(rows, commits, answer)
    return status


def parse_threads(text: str) -> tuple[int, ...]:
    """Numbers of threads as in `1,2`, each once.

    Raises:
        UsageError: something else, or more threads than this process has cores.
    """
    cores = len(usable_cores())
    try:
        counts = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        counts = (0,)
    if min(counts) < 1:
        raise UsageError(f"--threads {text}: give numbers above 0, such as 1,2")
    if max(counts) > cores:
        raise UsageError(f"--threads {text}: this process has {cores} core{'s' * (cores != 1)}")
    return counts


def find_commit(name: str) -> Commit:
    """The commit of a name.

    Raises:
        UsageError: there is none, or the folder is no git repository.
    """
    if _git("rev-parse", "--git-dir", check=False).returncode:
        raise UsageError(f"{ROOT} is no git repository that can be read; clone the project with git")
    found = _git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", check=False)
    if found.returncode:
        raise UsageError(f"{name!r} is no commit of this repository; give a hash, a branch, a tag or such as HEAD~1")
    number = found.stdout.strip()
    return Commit(name, number, _git("log", "-1", "--format=%s", number).stdout.strip())


def find_cases(models: Sequence[str], processors: Sequence[str], threads: Sequence[int]) -> list[Case]:
    """All cases, model by model, each once.

    Raises:
        UsageError: processors are malformed, or a model is a package.
        NNStretchError: there is no such model.
    """
    wanted = list(dict.fromkeys(models or MODELS))
    if "all" in wanted:
        from nnstretch.zoo import names

        wanted = list(dict.fromkeys([*names(), *(model for model in wanted if model != "all")]))
    for model in wanted:
        check_exists(model)
        if model.endswith(".nns"):
            raise UsageError(f"{model} is a package, whose plan is used as it is; give the model that it was made of")
    pairs: dict[tuple[str, int | None], None] = {}
    for text in processors:
        cpu = next((spec for spec in parse_processors(text) if spec.kind == "cpu"), None)
        for count in threads:
            # More threads than the CPU has cores would repeat a case.
            pairs[text, None if cpu is None else min(count, len(cpu.cores))] = None
    return [Case(model, text, count) for model in wanted for text, count in pairs]


def _git(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Runs git in this repository, without its hooks.

    Raises:
        UsageError: it fails; the message is the last line that it wrote.
    """
    command = ["git", "-C", str(ROOT), "-c", "core.hooksPath=/dev/null", *arguments]
    # What a hook of another repository has set does not count here.
    environment = {k: v for k, v in os.environ.items() if k not in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")}
    try:
        # A session of its own: Ctrl-C does not end git in the middle of its work.
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, start_new_session=True, env=environment
        )
    except OSError as error:
        raise UsageError(f"cannot start git: {error.strerror}; install it") from error
    if check and done.returncode:
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise UsageError(f"git {arguments[0]} fails: {lines[-1]}")
    return done


@contextmanager
def checked_out(commits: Sequence[Commit], kept: Path | None) -> Iterator[tuple[Checkout, ...]]:
    """Checks the commits out, until the block ends.

    Args:
        commits: A and B.
        kept: folder for their caches; None for temporary ones.

    Raises:
        UsageError: git cannot check one out, or it holds no package.
        FileError: a cache folder cannot be made.
    """
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="nnstretch-regression-")).resolve()
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        made: list[Checkout] = []
        for letter, commit in zip(LETTERS, commits, strict=True):
            tree = folder / letter / "checkout"
            stack.callback(_remove_worktree, tree)
            tree.parent.mkdir()
            _git("worktree", "add", "--quiet", "--detach", "--force", str(tree), commit.hash)
            # A commit that is compared with itself has two caches.
            name = commit.hash if letter == "a" or commit.hash != commits[0].hash else f"{commit.hash}-again"
            cache = (kept.absolute() / name) if kept else folder / letter / "cache"
            made.append(Checkout(_import_folder(tree, commit), _make_cache(cache)))
        yield tuple(made)


def _remove_worktree(tree: Path) -> None:
    """Removes a worktree and what git knows of it, even if it is not complete."""
    if _git("worktree", "remove", "--force", "--force", str(tree), check=False).returncode:
        shutil.rmtree(tree, ignore_errors=True)
        _git("worktree", "prune", check=False)


def _import_folder(tree: Path, commit: Commit) -> Path:
    """A folder in which a checkout's folders have the names by which they are imported.

    Raises:
        UsageError: the checkout holds no package.
    """
    if not (tree / "nnstretch" / "__init__.py").is_file():
        raise UsageError(f"commit {commit.name} holds no package nnstretch")
    about = tree / "pyproject.toml"
    settings = tomllib.loads(about.read_text(encoding="utf-8")) if about.is_file() else {}
    folders: Mapping[str, str] = settings.get("tool", {}).get("setuptools", {}).get("package-dir", {})
    imports = tree.with_name("imports")
    imports.mkdir()
    (imports / "nnstretch").symlink_to(tree / "nnstretch")
    for package, source in sorted(folders.items()):
        link = imports.joinpath(*package.split("."))
        if package.startswith("nnstretch.") and not link.exists():
            link.symlink_to(tree / source)  # it lies in the checkout itself, in the folder of the package around it
    return imports


def _make_cache(cache: Path) -> Path:
    """A cache folder that shares nothing with other caches but the engine's builds, which are named by their sources.

    Raises:
        FileError, UsageError: it cannot be made.
    """
    engine = cache_dir("engine").resolve()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            (cache / "engine").symlink_to(engine)
    except OSError as error:
        raise UsageError(
            f"cannot make the cache folder {cache}: {error.strerror}; choose another --keep-cache"
        ) from error
    return cache


def compare_all(cases: Sequence[Case], checkouts: Sequence[Checkout], settings: Settings) -> list[Row]:
    """Compares case by case; says on stderr what is going on."""
    rows: list[Row] = []
    begin = time.monotonic()

    def say(text: str) -> None:
        place = f"[{len(rows) + 1}/{len(cases)}, {time.monotonic() - begin:.0f} s]"
        print(f"{place} {cases[len(rows)]}: {text}", file=sys.stderr, flush=True)

    for model in dict.fromkeys(case.model for case in cases):
        own = [case for case in cases if case.model == model]
        with ExitStack() as stack:
            say("the model is exported")
            try:
                files = stack.enter_context(exported(model))
            except NNStretchError as error:
                say(f"failed: {error}")
                rows += [Row(case, errors=dict.fromkeys(LETTERS, str(error))) for case in own]
                continue
            for case in own:
                row = compare(case, files, checkouts, settings, len(rows), say)
                say(row_text(row))
                rows.append(row)
    return rows


@contextmanager
def exported(model: str) -> Iterator[Files]:
    """The files of a model, until the block ends.

    Raises:
        NNStretchError: the model cannot be exported.
    """
    with subject(model, {}, seed=0) as made, tempfile.TemporaryDirectory(prefix="nnstretch-regression-") as name:
        folder = Path(name).resolve()
        files = Files(Path(made.onnx), folder / "small.onnx", folder / "feeds.npz", tuple(made.feeds))
        onnx.save(_small_model(), files.small)
        np.savez(files.feeds, *made.feeds.values())
        yield files


def compare(
    case: Case,
    files: Files,
    checkouts: Sequence[Checkout],
    settings: Settings,
    number: int,
    say: Callable[[str], None],
) -> Row:
    """Lets both commits compile a model and times them in turns.

    Args:
        case: the model, processors and threads.
        files: what both commits read.
        checkouts: A and B.
        settings: how long to measure.
        number: of the case. Which commit is tuned first and the bootstrap's seed depend on it.
        say: reports progress.
    """
    errors: dict[str, str] = {}
    slices: Slices = {}
    processes: dict[str, Process] = {}
    with ExitStack() as stack:
        for letter in LETTERS[:: -1 if number % 2 else 1]:
            say(f"{letter.upper()} compiles and tunes")
            checkout = checkouts[LETTERS.index(letter)]
            try:
                processes[letter] = stack.enter_context(Process(checkout, case, files, files.outputs(letter)))
            except FailureError as failure:
                errors[letter] = str(failure)
        if not errors:
            say(f"{settings.rounds} rounds are timed")
            slices = take_turns(processes, settings, errors)
    if errors:
        return Row(case, errors=errors)
    samples = resampled([slices[letter] for letter in LETTERS], seed=number)
    medians = [float(np.median([np.median(s) for s in slices[letter]])) * 1e3 for letter in LETTERS]
    first, second = (
        Side(p50, processes[letter].tuning, processes[letter].start)
        for letter, p50 in zip(LETTERS, medians, strict=True)
    )
    difference = largest_difference(*(files.outputs(letter) for letter in LETTERS))
    return Row(case, (first, second), ratios=samples[1] / samples[0], difference=difference)


def _small_model() -> onnx.ModelProto:
    """One convolution."""
    image = (1, 16, 8, 8)
    weight = numpy_helper.from_array(np.full((16, 16, 1, 1), 0.1, np.float32), "w")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, image) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Conv", ["x", "w"], ["y"])], "small", ends[:1], ends[1:], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def take_turns(processes: Mapping[str, Process], settings: Settings, errors: dict[str, str]) -> Slices:
    """Times both processes, round by round. The order changes from round to round; a failure goes to `errors`."""
    slices: Slices = {letter: [] for letter in LETTERS}
    for number in range(settings.rounds):
        for letter in LETTERS[:: -1 if number % 2 else 1]:
            time.sleep(PAUSE)
            try:
                slices[letter].append(processes[letter].time(settings.seconds))
            except FailureError as failure:
                errors[letter] = str(failure)
                return slices
    return slices


def largest_difference(first: Path, second: Path) -> float:
    """The largest difference between two files of outputs, as a share of the output's range; infinite for other shapes."""
    with np.load(first) as a, np.load(second) as b:
        if [y.shape for y in a.values()] != [y.shape for y in b.values()]:
            return math.inf
        return max((relative_error(b[name], a[name]) for name in a), default=0.0)


class Process:
    """A process of one commit with one model. A context manager.

    Between requests the process is stopped with all its threads, so that nothing in it spins while the other one is timed.

    Attributes:
        start: seconds for imports, the engine and the processors.
        tuning: seconds for compiling and tuning.
    """

    def __init__(self, checkout: Checkout, case: Case, files: Files, outputs: Path) -> None:
        """Starts the process, compiles the model and runs it once.

        Raises:
            FailureError: the commit cannot do that.
        """
        task = {
            "parent": os.getpid(),
            "imports": str(checkout.imports),
            "model": str(files.model),
            "small": str(files.small),
            "processors": case.processors,
            "threads": case.threads,
            "inputs": files.inputs,
            "feeds": str(files.feeds),
            "outputs": str(outputs),
        }
        path = [str(checkout.imports), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            "PYTHONPATH": os.pathsep.join(path),
            "PYTHONSAFEPATH": "1",  # the folder of the script and the working directory are no import folders
            "NNSTRETCH_CACHE_DIR": str(checkout.cache),
        }
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        # A session of its own: Ctrl-C reaches the parent alone, which then ends its processes.
        self._process = subprocess.Popen(
            [sys.executable, str(CHILD), json.dumps(task)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **environment},
            cwd=checkout.imports,
            start_new_session=True,
            text=True,
        )
        try:
            self.start = float(self._answer("prepared"))
            self.tuning = float(self._answer("tuned"))
            self._answer("ready")
            self._stop()
        except BaseException:
            self.kill()
            raise

    def time(self, seconds: float) -> np.ndarray:
        """Runs for about `budget` seconds; returns the seconds of each run.

        Raises:
            FailureError: a run fails, or the process has ended.
        """
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        try:
            self._process.stdin.write(f"{seconds}\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise FailureError(self._end_reason()) from error
        found = np.array(self._answer("seconds"))
        self._stop()
        return found

    def _answer(self, key: str) -> Any:
        """What the process says next.

        Raises:
            FailureError: that it failed, or nothing.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise FailureError(self._end_reason())
        message = json.loads(line)
        if "error" in message:
            raise FailureError(message["error"])
        return message[key]

    def _end_reason(self) -> str:
        """Why the process has ended: its signal, the last line that it wrote, or its status."""
        try:
            status = self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            return "it closed its pipe and hangs"
        if status < 0:
            return f"killed by signal {-status} ({signal.strsignal(-status)})"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), f"ended with status {status}")

    def _stop(self) -> None:
        """Stops the process with all that it has started, and returns when it has stopped or ended."""
        self._signal(signal.SIGSTOP)
        if self._process.returncode is None:
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def _signal(self, number: int) -> None:
        """Sends a signal to the process and all that it has started."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """Ends the process and all that it has started at once: nothing of it is needed any longer."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def means(rows: Sequence[Row]) -> dict[str, Any]:
    """The geometric means of the ratios over all cases that ran; null if none did."""
    measured = [row for row in rows if row.sides]
    if not measured:
        return {"geometric_mean": None, "geometric_mean_interval": None, "tuning_geometric_mean": None}
    samples = np.exp(np.mean(np.log([row.ratios for row in measured]), axis=0))
    return {
        "geometric_mean": _rounded(geometric_mean([row.ratio for row in measured if row.ratio])),
        "geometric_mean_interval": [significant(end) for end in interval(samples)],
        "tuning_geometric_mean": _rounded(geometric_mean([row.tuning_ratio for row in measured if row.tuning_ratio])),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else significant(value)


def row_text(row: Row) -> str:
    """The result of a case in one line."""
    if row.errors:
        return "; ".join(f"{letter.upper()} failed: {reason}" for letter, reason in sorted(row.errors.items()))
    return f"B/A {row.ratio:.3f} ({interval_text(row.ends, '.3f')}), {row.verdict}"


def show(rows: Sequence[Row], commits: Sequence[Commit], answer: Mapping[str, Any]) -> None:
    """Prints the table, the geometric means, and the reasons of failures; warnings go to stderr."""
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    for letter, commit in zip(LETTERS, commits, strict=True):
        console.print(f"{letter.upper()}  {commit.hash[:12]}  {commit.subject}", markup=False)
    columns = (">A ms", ">B ms", ">B/A", ">95 % interval", ">A tunes s", ">B tunes s", ">B/A", ">difference")
    table = plain_table("model", "processors", ">threads", *columns, "verdict", title="Latency and tuning time")
    for row in rows:
        case = row.case
        cells = [Path(case.model).name, case.processors, "–" if case.threads is None else str(case.threads)]
        if row.sides:
            first, second = row.sides
            cells += [f"{first.p50_ms:.3f}", f"{second.p50_ms:.3f}", f"{row.ratio:.3f}", interval_text(row.ends, ".3f")]
            cells += [f"{first.tuning_s:.1f}", f"{second.tuning_s:.1f}", f"{row.tuning_ratio:.2f}"]
            cells += [f"{row.difference:.0e}"]
        else:
            cells += ["–"] * len(columns)
        stands_out = row.verdict in ("slower", "wrong", "failed")
        table.add_row(*cells, row.verdict, style="bold" if stands_out else None)
    console.print(table)
    if answer["geometric_mean"] is not None:
        low, high = answer["geometric_mean_interval"]
        console.print(
            f"geometric mean of B/A: {answer['geometric_mean']:.3f} ({low:.3f}–{high:.3f}); "
            f"of tuning times {answer['tuning_geometric_mean']:.2f}"
        )
    for row in rows:
        if row.errors:
            console.print(f"{row.case}: {row_text(row)}", markup=False, soft_wrap=True)
    for row in rows:
        if row.tuning_ratio is not None and row.tuning_ratio > TUNES_SLOWER:
            print(f"warning: {row.case}: B tunes {row.tuning_ratio:.2f} times as long as A", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
