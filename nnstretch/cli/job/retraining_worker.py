"""Retrains one network of a job in a process of its own: `python -m nnstretch.cli.job.retraining_worker ARGUMENTS`.

ARGUMENTS is a JSON object: the number of the `parent`, with which the process ends, the `options` of the job, and the `name` of
the design, or "control". The products are those of the stage, in the job's folder. Frames on the standard output have a
`note`, progress (`done`, `total`, `what`), or where the training was `stopped` by a signal. Frames on the standard input have
the number of `threads` that the training may use from then on.
"""

from __future__ import annotations

import io
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING

from nnstretch.cli.console import Reporter, silent_reporter
from nnstretch.cli.job.shared_cores import Share
from nnstretch.cli.job.transform_and_train import TransformAndTrain
from nnstretch.cli.job.transform_options import TransformOptions
from nnstretch.cli.training import let_idle_threads_sleep
from nnstretch.errors import NNStretchError, StoppedError
from nnstretch.support.child_process import die_with_parent
from nnstretch.support.frames import read_frame, write_frame
from nnstretch.support.progress import Progress

if TYPE_CHECKING:
    from rich.console import RenderableType


class FrameReporter(Reporter):
    """Sends notes and progress to the parent."""

    def __init__(self, frames: IO[bytes]) -> None:
        super().__init__(io.StringIO(), as_json=False)
        self._frames = frames

    def show(self, *renderables: RenderableType) -> None:
        """Nothing: a retraining has no answer to print."""

    def note(self, text: str) -> None:
        """Sends a note."""
        write_frame(self._frames, {"note": text})

    @contextmanager
    def progress(self, title: str) -> Iterator[Progress]:
        """Sends progress while the block runs."""

        def advance(done: int, total: int, what: str) -> None:
            write_frame(self._frames, {"done": done, "total": total, "what": what})

        yield advance


class GivenThreads:
    """The share of the cores that the parent gives."""

    def __init__(self, frames: IO[bytes]) -> None:
        """Reads `frames`, the parent's, in a thread of its own until they end."""
        self._given: int | None = None
        self._frames = frames
        threading.Thread(target=self._read, daemon=True).start()

    def __call__(self, whole: int) -> int:
        """The threads that were given last; all of those at the beginning if none were."""
        return self._given or whole

    def _read(self) -> None:
        with suppress(EOFError):
            while True:
                self._given = int(read_frame(self._frames)[0]["threads"])


def retrain(options: TransformOptions, name: str, report: Reporter, share: Share) -> None:
    """Runs the stage of one network.

    Args:
        options: of a job whose model is trained and whose designs are found.
        name: of a design, or "control".
        report: gets progress and notes.
        share: of the cores that the training has.

    Raises:
        StoppedError: a signal asked for it.
        NNStretchError: what was found, what was wanted and what to do.
    """
    work = TransformAndTrain(options, silent_reporter(), share=share)
    original, designs = work.begun()
    work.networks.dataset  # noqa: B018 - what there is to say of the images has been said
    work.networks.report = report
    work.retrain_one(original, name, next((path for path in designs if path.stem == name), designs[0]))


def main() -> int:
    """Retrains the network; returns the exit status."""
    arguments = json.loads(sys.argv[1])
    die_with_parent(arguments["parent"])
    let_idle_threads_sleep()
    frames = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no frame
    # A stream with a buffer is locked while a thread waits for it. A process that loads images is forked meanwhile, closes its
    # standard input, and would wait for that lock for ever.
    given = os.fdopen(os.dup(sys.stdin.fileno()), "rb", buffering=0)
    options = TransformOptions.from_json({**arguments["options"], "redo": None})
    try:
        retrain(options, arguments["name"], FrameReporter(frames), GivenThreads(given))
    except StoppedError as error:
        write_frame(frames, {"stopped": str(error)})
        return error.status
    except NNStretchError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
