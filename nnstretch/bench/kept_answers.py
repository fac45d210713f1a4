"""Answers of commands that run in processes of their own, kept on disk, so that a long comparison continues where it was."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nnstretch.errors import FileError, NNStretchError
from nnstretch.support.settings import write_text


class CommandError(NNStretchError):
    """A command of nnstretch failed; its own message is on the standard error."""


def command_answer(
    command: Sequence[str], environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> dict[str, Any]:
    """The JSON answer of a command of nnstretch in a process of its own; its notes go to the standard error.

    Args:
        command: without the program's name; has --json.
        environment: variables that the command gets beside those of this process.
        folder: where it runs; modules that lie there do not hide others. None: here.

    Raises:
        CommandError: the command failed.
    """
    whole = {**os.environ, **(environment or {})}
    python = [sys.executable, "-P", "-m", "nnstretch.cli.main"]
    done = subprocess.run([*python, *command], stdout=subprocess.PIPE, text=True, check=False, env=whole, cwd=folder)
    if done.returncode:
        raise CommandError(f"`nnstretch {shlex.join(command)}` ended with status {done.returncode}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def kept_answer(
    file: Path, command: Sequence[str], announce: Callable[[str], None], environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The JSON answer of a command of nnstretch; runs it unless `file` has its answer, and keeps it there.

    Args:
        file: where the answer is kept.
        command: without the program's name; has --json.
        announce: gets the command line when it runs.
        environment: variables that the command gets beside those of this process.

    Raises:
        CommandError: the command failed.
        FileError: the file cannot be read, or belongs to another command.
    """
    variables = dict(environment or {})
    try:
        found = json.loads(file.read_bytes()) if file.exists() else None
        if found is not None and (found["command"], found.get("environment", {})) != (list(command), variables):
            raise FileError(f"{file} is the result of other options; give another folder with --work")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FileError(f"{file} is no kept result ({error!r}); delete it") from error
    if found is None:
        announce(" ".join([*(f"{name}={value}" for name, value in variables.items()), "nnstretch", *command]))
        found = {"command": list(command), "environment": variables, "answer": command_answer(command, variables)}
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps(found, indent=1) + "\n")
    return dict(found["answer"])
