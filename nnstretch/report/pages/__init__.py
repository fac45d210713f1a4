"""Self-contained HTML pages, rendered from templates: files that need neither network nor scripts."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from nnstretch.report.charts.style import picture_rules, variables
from nnstretch.report.tables.text import count_text, power_text

TEMPLATES = Path(__file__).parents[1] / "templates"


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"count": count_text, "power": power_text}
    return made


def render(template: str, **context: Any) -> str:
    """A page as text.

    Args:
        template: a file in `templates` that extends base.html.
        context: its variables; text is escaped, `markupsafe.Markup` and SVG charts are not. Every page has `title` and
            `figures`, the large numbers at its top as (value, meaning).
    """
    page = _environment().get_template(template)
    return page.render(colours=variables(":root"), chart_rules=picture_rules(), **context)
