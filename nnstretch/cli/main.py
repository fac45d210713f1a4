"""`nnstretch`: the command line, and the exit status of its errors."""

from __future__ import annotations

import errno
import importlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import FrameType, TracebackType

import typer

from nnstretch.cli.commands import COMMANDS
from nnstretch.errors import NNStretchError

USAGE_STATUS = 2
INTERRUPTED_STATUS = 130


def make_app() -> typer.Typer:
    """The command line as a typer application."""
    app = typer.Typer(
        name="nnstretch",
        help="Branches a trained CNN to fit the processors of a device, and runs the branches at the same time.",
        epilog="Start with: nnstretch devices; nnstretch zoo; nnstretch bench resnet18",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name in COMMANDS:
        command = getattr(importlib.import_module(f"nnstretch.cli.commands.{name}"), f"{name}_command")
        app.command(name, help=_reflowed(command.__doc__))(command)

    @app.callback(invoke_without_command=True)
    def root(
        version: bool = typer.Option(False, "--version", help="Print the version and exit."),
    ) -> None:
        if version:
            import nnstretch

            print(f"nnstretch {nnstretch.__version__}")
            raise typer.Exit

    return app


def _reflowed(text: str) -> str:
    """A docstring with every paragraph on one line: the terminal breaks lines where it ends."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status.

    0: success; 1: success, but the answer is no (`run --check`) or the reader closed the pipe; 2: an error that the caller
    can fix, in one line on the standard error; 130: interrupted. Any other exception is a bug and shows its traceback.
    """
    logging.basicConfig(level=logging.WARNING, format="warning: %(message)s", stream=sys.stderr)
    interrupt = _Interrupt()
    try:
        with interrupt:
            status = make_app()(args=arguments, prog_name="nnstretch", standalone_mode=False)
        sys.stdout.flush()
    except NNStretchError as error:
        return _interrupted() if interrupt.seen else _fail(str(error))
    except typer.TyperException as error:
        said = error.format_message().rstrip(".")
        return _fail(f"{said}; see --help") if said else USAGE_STATUS  # no arguments, and the help has been shown
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except BrokenPipeError:
        _drop_output()
        return 1
    except MemoryError as error:
        return _fail(f"not enough memory{f': {error}' if str(error) else ''}; use a smaller model or --shape")
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _drop_output()
        return _fail(f"cannot write: {error.strerror}; free some space and run it again")
    if status == INTERRUPTED_STATUS:
        return _interrupted()
    return status if isinstance(status, int) else 0


class _Interrupt(AbstractContextManager[None]):
    """Remembers Ctrl-C, because a library that is interrupted during its import may raise any other error instead."""

    def __init__(self) -> None:
        self.seen = False

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._raise)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _raise(self, number: int, frame: FrameType | None) -> None:
        self.seen = True
        signal.default_int_handler(number, frame)


def _fail(message: str) -> int:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return USAGE_STATUS


def _drop_output() -> None:
    """Discards buffered output whose reader or disk space is gone, so that it does not fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _interrupted() -> int:
    print("interrupted", file=sys.stderr)
    return INTERRUPTED_STATUS


if __name__ == "__main__":
    sys.exit(main())
