"""The command line as an application, and the exit status of its errors. The entry is `nnstretch.cli.main`."""

from __future__ import annotations

import errno
import importlib
import logging
import os
import sys
from collections.abc import Sequence

import typer

from nnstretch.cli.commands import COMMANDS
from nnstretch.cli.commands.train import completed_resume
from nnstretch.cli.help import Command, Group
from nnstretch.cli.statuses import INTERRUPTED, USAGE
from nnstretch.cli.suggestions import message_of, what_was_meant
from nnstretch.errors import NNStretchError, StoppedError, UsageError
from nnstretch.support.extras import extras_named
from nnstretch.support.interrupts import noticed_interrupts
from nnstretch.support.settings import NO_ROOM
from nnstretch.support.stderr_lines import want_stderr_lines

_ADVICE = {
    NO_ROOM: "free some space and run it again",
    frozenset({errno.EACCES, errno.EPERM, errno.EROFS}): "change its permissions or choose another place",
    frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR}): "check the path",
    frozenset({errno.EMFILE, errno.ENFILE}): "raise the limit of open files (ulimit -n)",
    frozenset({errno.EAGAIN, errno.ENOMEM}): "close other programs or raise the limits of this one (ulimit -a)",
}

_MEASURING = frozenset({"bench", "compile", "run", "stretch", "tune"})
"""Commands that keep times of routines in the profile store."""

_COMPLETION = ("--install-completion", "--show-completion")
"""Options of typer, which would leave out the words that follow."""


def make_app() -> typer.Typer:
    """The command line as a typer application."""
    app = typer.Typer(
        name="nnstretch",
        cls=Group,
        help="Branches a trained CNN to fit the processors of a device, and runs the branches at the same time.",
        epilog="Start with: nnstretch doctor; nnstretch devices; nnstretch bench model.onnx; nnstretch zoo",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name in COMMANDS:
        module = importlib.import_module(f"nnstretch.cli.commands.{name}")
        if hasattr(module, "COMMANDS"):
            group = typer.Typer(cls=Group, help=_reflowed(module.HELP), no_args_is_help=True, rich_markup_mode="rich")
            for inner, command in module.COMMANDS.items():
                group.command(inner, cls=Command, help=_reflowed(command.__doc__))(command)
            app.add_typer(group, name=name)
        else:
            command = getattr(module, f"{name}_command")
            app.command(name, cls=Command, help=_reflowed(command.__doc__))(command)

    @app.callback(invoke_without_command=True)
    def root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
        if version:
            import nnstretch

            print(f"nnstretch {nnstretch.__version__}")
            raise typer.Exit

    return app


def _reflowed(text: str) -> str:
    """A docstring with every paragraph on one line: the terminal breaks lines where it ends."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def run_command(given: Sequence[str]) -> int:
    """Runs one command and returns the exit status, as `nnstretch.cli.main.main` describes it.

    Args:
        given: its name and arguments.
    """
    logging.basicConfig(level=logging.WARNING, format="warning: %(message)s", stream=sys.stderr)
    want_stderr_lines()
    interrupts: list[int] = []
    given = list(given)
    try:
        _check_completion(given)
        with extras_named(), noticed_interrupts() as interrupts:
            if given[:1] == ["train"]:
                given = completed_resume(given)
            status = make_app()(args=given, prog_name="nnstretch", standalone_mode=False)
        sys.stdout.flush()
    except StoppedError as error:
        if str(error):
            print(error, file=sys.stderr)
        return error.status
    except NNStretchError as error:
        return _interrupted(given) if interrupts else _fail(str(error))
    except typer.TyperException as error:
        meant, said = what_was_meant(given, error), message_of(error)
        # Without a word, there were no arguments, and the help has been shown.
        return _fail(meant or f"{said}; see --help") if meant or said else USAGE
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted(given)
    except BrokenPipeError:
        _drop_output()
        return 1
    except MemoryError as error:
        return _fail(f"not enough memory{f': {error}' if str(error) else ''}; use a smaller model or --shape")
    except OSError as error:
        if error.errno in NO_ROOM:
            _drop_output()
        return _fail(_described(error))
    if interrupts or status == INTERRUPTED:  # an interrupt may be lost where Python runs callbacks
        return _interrupted(given)
    return status if isinstance(status, int) else 0


def _check_completion(given: Sequence[str]) -> None:
    """Refuses the name of a shell.

    Raises:
        UsageError: there is one.
    """
    if len(given) > 1 and given[0] in _COMPLETION and not given[1].startswith("-"):
        raise UsageError(f"{given[0]} is for the shell that it is run in and takes no name; run it in {given[1]}")


def _fail(message: str) -> int:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return USAGE


def _described(error: OSError) -> str:
    """An error of the system that nothing else reports: on what, what it was, and what to do."""
    advice = next((text for numbers, text in _ADVICE.items() if error.errno in numbers), "mend that and run it again")
    where = error.filename if error.filename is not None else "output" if error.errno in NO_ROOM else "the system"
    return f"{where}: {error.strerror or str(error) or type(error).__name__}; {advice}"


def _drop_output() -> None:
    """Discards buffered output whose reader or disk space is gone, so that it does not fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def what_is_kept(given: Sequence[str]) -> str:
    """How an interrupted command goes on, as the end of a line; empty if it begins again."""
    if _MEASURING.intersection(given[:1]):
        same = "the same command without --fresh" if "--fresh" in given else "the same command"
        return f"; measured routines are kept, and {same} goes on from there"
    if given[:1] == ["sweep"] and any(word.split("=")[0] == "--storage" for word in given):
        return "; what was measured is kept, and the same command with --resume goes on from there"
    return ""


def _interrupted(given: Sequence[str]) -> int:
    print(f"interrupted{what_is_kept(given)}", file=sys.stderr)
    return INTERRUPTED
