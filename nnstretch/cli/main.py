"""`nnstretch`: the commands, and what becomes of errors."""

from __future__ import annotations

import errno
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import FrameType, TracebackType
from typing import Any

import typer

from nnstretch.cli.commands.bench import bench
from nnstretch.cli.commands.compile import compile_command
from nnstretch.cli.commands.devices import devices
from nnstretch.cli.commands.evaluate import evaluate
from nnstretch.cli.commands.profiles import profiles
from nnstretch.cli.commands.quantize import quantize_command
from nnstretch.cli.commands.run import run
from nnstretch.cli.commands.stretch import stretch
from nnstretch.cli.commands.train import train
from nnstretch.cli.commands.tune import tune
from nnstretch.cli.commands.zoo import zoo
from nnstretch.errors import NNStretchError

USAGE_STATUS = 2
INTERRUPTED_STATUS = 130

# In the order of the way that a model takes.
_COMMANDS: dict[str, Callable[..., Any]] = {
    "devices": devices,
    "zoo": zoo,
    "stretch": stretch,
    "train": train,
    "evaluate": evaluate,
    "quantize": quantize_command,
    "tune": tune,
    "profiles": profiles,
    "compile": compile_command,
    "run": run,
    "bench": bench,
}


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
    for name, command in _COMMANDS.items():
        app.command(name)(command)

    @app.callback(invoke_without_command=True)
    def root(
        version: bool = typer.Option(False, "--version", help="Print the version and exit."),
    ) -> None:
        if version:
            import nnstretch

            print(f"nnstretch {nnstretch.__version__}")
            raise typer.Exit

    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status.

    0: done; 1: done, and the answer is no (`run --check`) or nobody has read it; 2: an error that the caller can mend,
    told in one line on the standard error; 130: interrupted. Anything else that goes wrong is a bug and shows its trace.
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
        return _fail(f"cannot write: {error.strerror}; make room and run it again")
    if status == INTERRUPTED_STATUS:
        return _interrupted()
    return status if isinstance(status, int) else 0


class _Interrupt(AbstractContextManager[None]):
    """Remembers Ctrl-C: a library that is interrupted while it is being imported may fail in any other way instead."""

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
    """Nobody reads our output, or it has no room: what is still buffered must not fail once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _interrupted() -> int:
    print("interrupted", file=sys.stderr)
    return INTERRUPTED_STATUS


if __name__ == "__main__":
    sys.exit(main())
