"""Help of the commands on a terminal: what to type, without names of Python's types, in as few columns as it needs."""

from __future__ import annotations

import copy
from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup


class Command(TyperCommand):
    """A command whose help is as this module says."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super(Command, _shown(self, ctx)).format_help(ctx, formatter)


class Group(TyperGroup):
    """A group of commands whose help is as this module says."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super(Group, _shown(self, ctx)).format_help(ctx, formatter)


class _ShownArgument(TyperArgument):
    """An argument by its name alone, and the words that it may be if they are few."""

    def display_type_rich(self, ctx: Any) -> str | None:
        return self.display_type(ctx).strip("<>") if self.type_descriptor.is_choice else None

    def get_usage_pieces(self, ctx: Any) -> list[str]:
        return [self.display_name_raw if self.required else f"[{self.display_name_raw}]"]


def _shown(command: Any, ctx: Any) -> Any:
    """A copy of a command for its help only."""
    shown = copy.copy(command)
    shown.params = [_shown_parameter(one, ctx) for one in command.get_params(ctx)]
    shown.add_help_option = False  # it is among these
    return shown


def _shown_parameter(parameter: Any, ctx: Any) -> Any:
    """A copy of an argument or option for help only."""
    shown = copy.copy(parameter)
    if isinstance(shown, TyperArgument):
        shown.__class__ = _ShownArgument
    elif shown.is_flag:
        shown.metavar = ""
        if shown.secondary_opts:  # beside the others: a column of their own would be empty in most rows
            if shown.show_default:
                default = (shown.opts if shown.default else shown.secondary_opts)[0].lstrip("-")
                shown.help, shown.show_default = f"{shown.help} \\[default: {default}]", False
            shown.opts, shown.secondary_opts = [*shown.opts, *shown.secondary_opts], []
    return shown
