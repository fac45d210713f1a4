"""Output of the commands: the answer on the standard output, everything else on the standard error."""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

from nnstretch.support.progress import Progress, silent

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_PIPE_WIDTH = 200  # columns of output that is no terminal
_LONGEST = 48  # characters of what is being done, beside the bar


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
        """Prints the answer as one JSON object, if `--json` is given."""
        if self.as_json:
            json.dump(answer, self._answer, indent=1, allow_nan=False)
            self._answer.write("\n")
            self._answer.flush()

    def note(self, text: str) -> None:
        """Prints a note on the standard error."""
        self._console(sys.stderr).print(text, highlight=False)

    @contextmanager
    def progress(self, title: str) -> Iterator[Progress]:
        """A progress bar on the standard error while the block runs, if that is a terminal."""
        if not sys.stderr.isatty():
            yield silent
            return
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[what]}", style="dim", markup=False),
        )
        with Bar(*columns, console=self._console(sys.stderr), transient=True) as bar:
            task = bar.add_task(title, total=None, what="")

            def advance(done: int, total: int, what: str) -> None:
                bar.update(task, completed=done, total=total or None, what=_shortened(what))

            yield advance

    @staticmethod
    def _console(file: IO[str]) -> Console:
        from rich.console import Console

        # Names of files, layers and models are shown as they are, whatever they look like.
        width = None if file.isatty() else _PIPE_WIDTH
        return Console(file=file, soft_wrap=False, width=width, markup=False, emoji=False)


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


def _shortened(what: str) -> str:
    return what if len(what) <= _LONGEST else f"…{what[-_LONGEST + 1 :]}"
