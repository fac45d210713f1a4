"""The pages of reference hold every command, option, public name and script."""

import re
from pathlib import Path

import pytest
import typer

import nnstretch
from nnstretch.api.options import CompileOptions, declared_options
from nnstretch.cli.application import make_app
from nnstretch.devices.base.spec import examples, parse_processors
from nnstretch.devices.registry import KINDS, specifications

ROOT = Path(__file__).resolve().parents[2]

pytest.importorskip("sphinx", reason="the extra docs is not installed")
from docs._extensions.reference_pages import (  # noqa: E402 (needs Sphinx)
    GENERATED,
    command_line,
    named_commands,
    processors,
    python_api,
    scripts,
)


def test_every_option_of_every_command_is_listed() -> None:
    sections = {part.splitlines()[0]: part for part in command_line().split("## ")[1:]}
    commands = dict(named_commands(typer.main.get_command(make_app())))
    assert list(sections) == list(commands)
    for name, command in commands.items():
        for parameter in (one for one in command.params if not getattr(one, "hidden", False)):
            for flag in (*parameter.opts, *parameter.secondary_opts):
                assert not flag.startswith("-") or re.search(rf"{flag}[ ,\n]", sections[name]), flag


def test_values_and_defaults_are_shown() -> None:
    text = command_line()
    assert "```{option} -o FILE, --output FILE" in text
    assert "--search HOW" in text and "learned (by a cost model) or exhaustive" in text
    assert "Default: `tpe`." in text
    assert "Default: 0.0001, and 0.005 with bfloat16." in text
    assert "Default: elimination." in text
    assert "Example: " not in text
    assert "[default" not in text


def test_every_public_name_is_listed() -> None:
    lines = python_api().splitlines()
    for name in nnstretch.__all__:
        assert name.startswith("_") or any(line.endswith(f":: nnstretch.{name}") for line in lines), name


def test_processors_are_written_as_help_and_parser_say() -> None:
    help_text = declared_options(CompileOptions)["processors"][2].help
    assert f"{' or '.join(specifications())}, separated by commas" in help_text
    for text in examples():
        (spec,) = parse_processors(text, tuple(range(8)))
        assert spec.kind in ("cpu", "opencl", *KINDS)
        assert f"| `{text}` | " in processors()


def test_scripts_are_described() -> None:
    text = scripts()
    assert "`scripts/quickstart`\n: Sets the project up" in text
    assert "`scripts/test`" in text
    assert "`scripts/engine/kernel_benchmark.py`" in text
    assert "_environment" not in text


def test_every_generated_part_has_a_page() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "reference").glob("*.md"))
    assert all(f"<!-- generated: {name} -->" in pages for name in GENERATED)
