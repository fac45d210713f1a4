"""Output of the commands and scripts: the answer on the standard output, everything else on the standard error."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
import warnings
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

from nnstretch.errors import NNStretchError, StoppedError
from nnstretch.support.json_text import json_text
from nnstretch.support.progress import Progress, silent
from nnstretch.support.stderr_lines import want_stderr_lines

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_PIPE_WIDTH = 200  # columns of output that is no terminal
_LONGEST = 48  # characters of what is being done, beside the bar
_BETWEEN_LINES = 15.0  # seconds, at least, between the lines that say what is being done where there is no bar
PROGRESS_MARK = "… "
"""Begins these lines."""


class Reporter:
    """Writes a command's answer and notes. Made by `reporting`."""

    def __init__(self, answer: IO[str], *, as_json: bool) -> None:
        self._answer = answer
        self.as_json = as_json

    def show(self, *renderables: RenderableType) -> None:
        """Prints tables or text, unless the answer is JSON."""
        if not self.as_json:
            for renderable in renderables:
                self._console(self._answer).print(renderable)

    def finish(self, answer: Mapping[str, Any]) -> None:
        """Prints the answer as one JSON object, with what it was made with, if `--json` is given."""
        if self.as_json:
            from nnstretch.compiler.environment import with_environment

            self._answer.write(f"{json_text(with_environment(answer))}\n")
            self._answer.flush()

    def part(self, answers: list[Mapping[str, Any]]) -> Reporter:
        """A reporter for a part of the work, whose answers are added to a list instead of being printed."""
        return _PartReporter(self._answer, as_json=self.as_json, answers=answers)

    def note(self, text: str) -> None:
        """Prints a note on the standard error, unless it is empty."""
        if text:
            self._console(sys.stderr).print(text, highlight=False)

    def command(self, text: str) -> None:
        """Prints a command to copy on the standard error, in one line however narrow the terminal is."""
        self._console(sys.stderr).print(f"  {text}", highlight=False, soft_wrap=True)

    @contextmanager
    def progress(self, title: str) -> Iterator[Progress]:
        """A progress bar on the standard error while the block runs; a line now and then if that is no terminal."""
        if not sys.stderr.isatty():
            yield self._progress_lines(title)
            return
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (
            TextColumn("{task.description}", style="bold", markup=False),
            TimeElapsedColumn(),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),  # of what is being done: other parts of the work have other numbers
            TextColumn("{task.fields[what]}", style="dim", markup=False),
        )
        with Bar(*columns, console=self._console(sys.stderr), transient=True) as bar:
            task = bar.add_task(title, total=None, what="")

            def advance(done: int, total: int, what: str) -> None:
                short = what if len(what) <= _LONGEST else f"…{what[-_LONGEST + 1 :]}"
                bar.update(task, completed=done, total=total or None, what=short)

            yield advance

    def _progress_lines(self, title: str) -> Progress:
        """Progress as notes; work that takes long has the first."""
        last = time.monotonic()

        def advance(done: int, total: int, what: str) -> None:
            nonlocal last
            if time.monotonic() - last >= _BETWEEN_LINES:
                last = time.monotonic()
                count = f" ({done} of {total})" if total else ""
                self.note(f"{PROGRESS_MARK}{title}: {what}{count}")

        return advance

    @staticmethod
    def _console(file: IO[str]) -> Console:
        from rich.console import Console

        # Names of files, layers and models are shown as they are, whatever they look like.
        width = None if file.isatty() else _PIPE_WIDTH
        return Console(file=file, soft_wrap=False, width=width, markup=False, emoji=False)


class _PartReporter(Reporter):
    def __init__(self, answer: IO[str], *, as_json: bool, answers: list[Mapping[str, Any]]) -> None:
        super().__init__(answer, as_json=as_json)
        self._answers = answers

    def finish(self, answer: Mapping[str, Any]) -> None:
        self._answers.append(answer)


def silent_reporter() -> Reporter:
    """A reporter that shows nothing, for all but one of several processes."""
    return _SilentReporter(io.StringIO(), as_json=False)


class _SilentReporter(Reporter):
    def show(self, *renderables: RenderableType) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def command(self, text: str) -> None:
        pass

    @contextmanager
    def progress(self, title: str) -> Iterator[Progress]:
        yield silent


@contextmanager
def reporting(*, as_json: bool) -> Iterator[Reporter]:
    """A reporter for one command.

    While the block runs, what libraries print goes to the standard error, and their warnings nowhere; our own
    warnings become lines there.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = _show_warning
        answer = sys.stdout
        with contextlib.redirect_stdout(sys.stderr):
            yield Reporter(answer, as_json=as_json)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: Any = None,
    line: str | None = None,
) -> None:
    if category.__module__.startswith("nnstretch"):
        print(f"warning: {' '.join(str(message).split())}", file=sys.stderr)


def script_parser(text: str | None) -> ArgumentParser:
    """A command line with `--json` for a script. Its docstring describes it (first line) and shows a call."""
    lines = (text or "").splitlines()
    calls = [line.strip() for line in lines if "scripts/" in line and line.startswith(" ")]
    parser = ArgumentParser(description=next(iter(lines), None), epilog=f"Called as: {calls[0]}" if calls else None)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def print_answer(answer: dict[str, Any], show: Callable[[dict[str, Any]], None], *, as_json: bool) -> None:
    """Prints the answer of a script by `show`, or as one JSON object."""
    if as_json:
        print(json.dumps(answer))
    else:
        show(answer)


def exit_status(work: Callable[[], int | None]) -> int:
    """Runs a script's work and returns its status or 0; 2 after an error, printed in one line; 130 if interrupted.

    After a training that a signal has stopped it is 128 plus the signal's number.
    """
    want_stderr_lines()
    try:
        return work() or 0
    except StoppedError as error:
        print(error, file=sys.stderr)
        return error.status
    except NNStretchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
