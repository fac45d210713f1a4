"""What users may mean by arguments that are refused: words of other tools, misspelt options, options of other commands."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import typer

_COMMANDS = {
    "benchmark": "`bench` times a model beside other engines",
    "compare": "`bench` compares engines and models, `evaluate --compare` accuracies, and `report` files",
    "convert": "`export` writes ONNX, TFLite and .pt2 files",
    "help": "`nnstretch --help` lists the commands, and `nnstretch COMMAND --help` the options of one",
    "infer": "`run` computes a model",
    "info": "`report` shows what a file holds, and `tune --explain` the layers of a model",
    "list": "`zoo` lists networks, `devices` processors, and `profiles` measurements",
    "optimize": "`compile` writes the fastest plan as a package",
    "predict": "`run` computes a model",
    "profile": "`tune` measures the layers of a model, and `run --timeline` shows them",
}
"""What other tools call a command -> what does it here."""

_OPTIONS = {
    "--litert": "{command} has no --litert, which is of standalone models and nns-bench; LiteRT is a processor here "
    "(-p litert), computes layers (--engines litert), or is measured beside nnstretch (bench --against litert)",
    "--fp16": "{command} has no --fp16; export --float16 stores the weights of a TFLite file as float16, and a --tolerance of "
    "0.003 or more lets processors that can multiply float16 do so",
    "--model": "MODEL is given without an option, as in nnstretch {command} model.onnx",
    "--providers": "{command} has no --providers; --processors names what computes (cpu, opencl, ort, litert), and bench "
    "--against the engines to compare",
    "--warmup": "runs that warm up need no option; {command} makes some before those that it times",
    "bench --when-hot": "bench has no --when-hot: it pauses when the device is hot, and --stop-when-hot ends the measurement "
    "instead",
    "stretch --max-latency": "stretch has no --max-latency; --latency-target 12ms finds the designs with the most MACs that "
    "are predicted to meet it",
    "sweep designs --latency-target": "sweep designs has no --latency-target; --max-latency 12ms is the largest predicted "
    "latency of a design",
    "tune --budget": "tune has no --budget: it takes as long as its layers need and keeps every measurement, so that it may be "
    "stopped at any time, and the same command goes on",
}
"""What other tools call an option, of one command or of any -> what is meant by it here."""

_EXTRA = re.compile(r"Got unexpected extra argument(?:s|\(s\))? \((.*)\)")
"""What typer says of words that no argument takes."""

_UNPARSED = re.compile(r"Input should be a valid (integer|number), unable to parse string as an? \w+")
_INPUT = re.compile(r"Input should be ")
"""What the library that checks values says of numbers."""

_NUMBERS = {"integer": "a whole number", "number": "a number"}

_CHOICE = re.compile(r"'([^']*)' is not one of (.*)")
"""What typer says of a word that is none of those that an argument or option takes."""

_ALIKE = 0.8
"""Least likeness of a misspelt word and one that is suggested."""


def message_of(error: typer.TyperException) -> str:
    """Why a command line is refused, without a full stop and the words of the library that checks its values."""
    said = error.format_message().rstrip(".").replace(": Value error, ", ": ")
    return _INPUT.sub("it must be ", _UNPARSED.sub(lambda found: f"write {_NUMBERS[found[1]]}", said))


def what_was_meant(given: Sequence[str], error: typer.TyperException) -> str:
    """What to do instead of a command line that is refused; "" if that is not known.

    Args:
        given: the arguments, without the program's name.
        error: why they are refused.
    """
    if given and given[0] in _COMMANDS:
        return f"there is no command {given[0]}; {_COMMANDS[given[0]]}"
    # Typer makes its parser's classes known by no public name, so these are taken by what they have.
    context: Any = getattr(error, "ctx", None)
    if context is None:
        return ""
    named = context.command_path.removeprefix(context.find_root().command_path).strip()
    if len(given) > 1 and hasattr(context.command, "commands") and named and not given[1].startswith("-"):
        parts = list(context.command.commands)
        if alike := difflib.get_close_matches(given[1], parts, 1, _ALIKE):
            return f"{named} has no part {given[1]}; did you mean {named} {alike[0]}?"
        return f"{named} is followed by one of {', '.join(parts)}, as in nnstretch {named} {parts[0]} {given[1]}"
    if named and (extra := _EXTRA.match(message_of(error))):
        taken = [one.metavar or one.name.upper() for one in context.command.params if one.param_type_name == "argument"]
        wanted = f"only {' '.join(taken)}" if taken else "nothing"
        return f"{named} takes {wanted} without an option, so {extra[1]!r} is too much; see nnstretch {named} --help"
    if choice := _CHOICE.search(message := message_of(error)):
        alike = difflib.get_close_matches(choice[1], re.findall(r"'([^']*)'", choice[2]), 1, _ALIKE)
        return f"{message}; did you mean {alike[0]}?" if alike else ""
    option: str | None = getattr(error, "option_name", None)
    return "" if option is None or not named else _option_meant(option, named, context)


def _option_meant(option: str, named: str, context: Any) -> str:
    """What to do instead of an option that the command `named` lacks."""
    elsewhere = _OPTIONS.get(f"{named} {option}") or _OPTIONS.get(option)
    if elsewhere is not None:
        return elsewhere.format(command=named)
    own = _options(context.command)
    others = [name for name, command in _commands(context.find_root().command) if option in _options(command)]
    alike = [one for one in own if one.startswith(option)]
    if others and not alike:
        return f"{named} has no option {option}, which is one of nnstretch {', '.join(others)}"
    alike = alike or difflib.get_close_matches(option, own, 2, _ALIKE)
    if alike:
        return f"{named} has no option {option}; did you mean {' or '.join(alike)}?"
    return f"{named} has no option {option}; see nnstretch {named} --help"


def _options(command: Any) -> list[str]:
    """The long options of a command."""
    return [name for one in command.params for name in (*one.opts, *one.secondary_opts) if name.startswith("--")]


def _commands(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every command of a group and of the groups in it, with the words that call it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command
