"""Writes the pages of reference from the code: the command line, processors, the Python API and the scripts.

A page of reference holds its title, an introduction and one line `<!-- generated: NAME -->`. When Sphinx reads the page, the
line becomes the Markdown that the function NAME in `GENERATED` returns, so no page can differ from the code.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import typer
from sphinx.application import Sphinx
from sphinx.domains.python import PythonDomain

import nnstretch
from nnstretch.cli.application import make_app
from nnstretch.devices.base.spec import examples
from nnstretch.devices.registry import specifications
from nnstretch.errors import NNStretchError

ROOT = Path(__file__).resolve().parents[2]
_PLACE = re.compile(r"^<!-- generated: ([\w-]+) -->$", re.MULTILINE)
_DEFAULT = re.compile(r"\\?\[default: (.+?)\]")
_EXAMPLE = re.compile(r"^Example: (.+)$", re.MULTILINE)
_OPTION = re.compile(r"Annotated\[(.+?), Option\(")
_CODE = re.compile(r"(?<![`:])`([^`]+)`(?!`)")
_MODULE = re.compile(r"\b(?:\w+\.)+(?=\w)")
_SCRIPTS_LEFT_OUT = ("_environment.sh", "check_words.py", "probe_opencl.py")
_SCRIPT_FOLDERS = {
    "Main scripts": "",
    "Studies, which make the figures of these pages": "studies",
    "The engine alone": "engine",
}


def command_line() -> str:
    """Every command with its arguments and options, as `--help` shows them."""
    group: Any = typer.main.get_command(make_app())
    return "\n\n".join(block for name, command in named_commands(group) for block in _command(name, command))


def named_commands(group: Any) -> Iterator[tuple[str, Any]]:
    """The commands of a group by what is written for them, those of groups within it among them."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from ((f"{name} {inner}", one) for inner, one in named_commands(command))
        else:
            yield name, command


def _command(name: str, command: Any) -> Iterator[str]:
    yield f"## {name}"
    about = _EXAMPLE.sub("", command.help).strip()
    yield about
    if example := _EXAMPLE.search(command.help):
        yield f"Example:\n\n```text\n{example.group(1)}\n```"
    yield f"```{{program}} nnstretch {name}\n```"
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    if arguments:
        yield "\n".join(f"{_metavar(p)}\n: {_sentence(p)}\n" for p in arguments)
    panels: dict[str | None, list[Any]] = {}
    for parameter in command.params:
        if parameter.param_type_name == "option" and not parameter.hidden:
            panels.setdefault(parameter.rich_help_panel, []).append(parameter)
    for panel, options in panels.items():
        yield f"**{panel or 'Options'}**"
        yield from (f"```{{option}} {_spellings(option)}\n{_sentence(option)}\n```" for option in options)


def _metavar(parameter: Any) -> str:
    name = parameter.metavar or parameter.name.upper()
    return f"`{name}`"


def _spellings(option: Any) -> str:
    """An option as it is written: `-o FILE, --output FILE`; switches have no value."""
    value = "" if option.is_flag else f" {option.metavar or _value(option)}"
    flags = sorted([*option.opts, *option.secondary_opts], key=len)
    return ", ".join(f"{flag}{value}" for flag in flags)


def _value(option: Any) -> str:
    choices = typing.get_args(option.type_descriptor.annotation)
    return "|".join(choices) if choices else option.type_descriptor.annotation.__name__.upper()


def _sentence(parameter: Any) -> str:
    """The help text, and the default if `--help` shows it."""
    text = _DEFAULT.sub(r"Default: \1.", str(parameter.help or "").strip())
    shown = parameter.show_default
    if isinstance(shown, str):
        return f"{text} Default: {shown}."
    if not shown or parameter.default is None or parameter.default is False:
        return text
    default = parameter.opts[0].lstrip("-") if parameter.default is True else parameter.default
    return f"{text} Default: `{default}`."


def python_api() -> str:
    """Every name of `nnstretch.__all__`: functions, classes, errors."""
    public = {name: getattr(nnstretch, name) for name in nnstretch.__all__ if not name.startswith("_")}
    errors = {name for name, value in public.items() if inspect.isclass(value) and issubclass(value, NNStretchError)}
    classes = {name for name, value in public.items() if inspect.isclass(value)} - errors
    functions = set(public) - classes - errors
    tree = sorted(errors, key=lambda name: (len(public[name].__mro__), name))
    parts = [
        ("Functions", "autofunction", sorted(functions), ""),
        ("Classes", "autoclass", sorted(classes), ""),
        ("Errors", "autoexception", tree, "   :show-inheritance:\n   :no-members:\n"),
    ]
    return "\n\n".join(
        f"## {title}\n\n```{{eval-rst}}\n"
        + "\n".join(f".. {directive}:: nnstretch.{name}\n{options}" for name in names)
        + "\n```"
        for title, directive, names, options in parts
    )


def scripts() -> str:
    """Every script that users run by folder, with the first paragraph of its description."""
    return "\n".join(
        f"## {title}\n\n{_scripts_of(ROOT / 'scripts' / folder)}" for title, folder in _SCRIPT_FOLDERS.items()
    )


def _scripts_of(folder: Path) -> str:
    return "\n".join(
        f"`{path.relative_to(ROOT)}`\n: {_described(path)}\n"
        for path in sorted(folder.iterdir())
        if path.is_file() and path.suffix in {"", ".py"} and path.name not in _SCRIPTS_LEFT_OUT
        if not path.name.startswith("_") and not (path.suffix and path.with_suffix("").exists())
    )


def _described(path: Path) -> str:
    """First paragraph of a module's docstring or of a shell script's comment."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        about = ast.get_docstring(ast.parse(text)) or ""
    else:
        lines = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines()[1:])
        about = "\n".join(line.removeprefix("#").strip() for line in lines)
    return " ".join(about.split("\n\n")[0].split())


def processors() -> str:
    """How processors are written, with examples."""
    forms = "\n".join(f"    {form}" for form in specifications())
    rows = "\n".join(f"| `{text}` | {meaning} |" for text, meaning in examples().items())
    return f"{forms}\n\n| written | means |\n|---|---|\n{rows}"


GENERATED: Mapping[str, Callable[[], str]] = MappingProxyType(
    {"command-line": command_line, "processors": processors, "python-api": python_api, "scripts": scripts}
)


def _fill(app: Sphinx, page: str, source: list[str]) -> None:
    source[0] = _PLACE.sub(lambda place: GENERATED[place.group(1)](), source[0])


class _Written:
    """An annotation that a signature shows as it is written here."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _plain(annotation: Any) -> Any:
    """A type without the names of modules and without an option's help."""
    if annotation is inspect.Parameter.empty:
        return annotation
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    if option := _OPTION.match(text):
        text = option.group(1)
    return _Written(_MODULE.sub("", text))


def _signature(app: Sphinx, what: str, name: str, found: Any, *_: Any) -> tuple[str, str] | None:
    """Signatures of functions and classes in plain types."""
    if what not in {"function", "class"}:
        return None
    signature = inspect.signature(found)
    plain = [p.replace(annotation=_plain(p.annotation)) for p in signature.parameters.values()]
    result = signature.return_annotation
    returned = "" if what == "class" or result is inspect.Signature.empty else repr(_plain(result))
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty)), returned


def _as_restructured_text(app: Sphinx, what: str, name: str, found: Any, options: Any, lines: list[str]) -> None:
    """Docstrings mark code by single backticks, and their asterisks stand for themselves."""
    for number, line in enumerate(lines):
        parts = _CODE.split(line)
        lines[number] = "".join(f"``{p}``" if i % 2 else p.replace("*", r"\*") for i, p in enumerate(parts))


def setup(app: Sphinx) -> dict[str, Any]:
    """Connects the pages to Sphinx."""
    for field in PythonDomain.directives["class"].doc_field_types:
        if field.name == "variable":
            field.label = "Attributes"
    app.connect("source-read", _fill)
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-process-docstring", _as_restructured_text, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
