"""The errors that a caller of nnstretch can cause.

Every one of them has a message of one line that says what was found, what was wanted and what to do next.
The command line prints that line and exits with status 2; any other exception is a bug in nnstretch.
"""

import traceback
from pathlib import Path


class NNStretchError(Exception):
    """Root of all errors that a caller can cause."""


class UsageError(NNStretchError):
    """An argument, option or specification that cannot be understood or fulfilled."""


class ModelError(NNStretchError):
    """A model that cannot be read, traced, exported or run."""


class FeedError(NNStretchError):
    """Inputs of a run that do not match the model: names, shapes or types."""


class DesignError(NNStretchError):
    """A branching that cannot be found, built or read."""


class SelectionError(NNStretchError):
    """A selection problem that is malformed, or that no assignment solves within its limits."""


class PackageError(NNStretchError):
    """A package (.nns) or plan that is damaged, too new or inconsistent."""


class DeviceError(NNStretchError):
    """A processor that does not exist, does not work or was lost.

    Attributes:
        processor: the one that failed in a run or could not be opened for one, as plans write it; "" where that is not known.
    """

    def __init__(self, *args: object, processor: str = "") -> None:
        super().__init__(*args)
        self.processor = processor


class DeadlineError(DeviceError):
    """A run that did not end by its deadline. It goes on, and the session is busy until it ends."""


class BuildError(NNStretchError):
    """A kernel or engine source that did not compile."""


class FileError(NNStretchError):
    """A file or directory that cannot be read or written (permission, full disk, missing)."""


class MissingExtraError(NNStretchError):
    """An optional package is needed and not installed; the message names the extra to install."""


class StoppedError(NNStretchError):
    """Long work that a signal asked to stop, and that has stopped where it can be resumed.

    Attributes:
        status: exit status of the command line, 128 and the number of the signal. Without a message, another process reports.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def first_line(error: BaseException) -> str:
    """What an exception says, on one line without its full stop; its type if it says nothing."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__


def place_in(file: Path, error: BaseException) -> str:
    """Where an error came through a file of Python code, as in ` in line 7`; "" if it did not."""
    passed = traceback.extract_tb(error.__traceback__)
    lines = [at.lineno for at in passed if Path(at.filename).absolute() == file.absolute()]
    return f" in line {lines[-1]}" if lines else ""
