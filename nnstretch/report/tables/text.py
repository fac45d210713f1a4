"""Numbers and tables as text."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from nnstretch.support.words import counted

if TYPE_CHECKING:
    from rich.table import Table

    from nnstretch.support.other_programs import OtherPrograms


FAR_OFF = 2
"""Longer over shorter of a predicted and a measured latency from which on a command says why."""
_UNLIMITED = 10_000
"""Columns of a terminal on which every table fits."""
_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def count_text(count: float | None) -> str:
    """A count with a decimal unit: 1.81 G, 11.7 M, 7.2 k; "–" if unknown."""
    if count is None:
        return "–"
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= limit:
            return f"{count / limit:.3g} {unit}"
    return f"{count:.3g}"


def sentence(line: str) -> str:
    """A line of the terminal, not empty, as a sentence: it begins with a capital letter and ends with a full stop."""
    return f"{line[0].upper()}{line[1:]}."


def size_text(size: int) -> str:
    """Bytes as text: `46.9 MB`, `5.3 kB`."""
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"


def duration_text(seconds: float) -> str:
    """A duration in its usual unit, three digits: `217 µs`, `2.17 ms`, `12.3 s`, `4.1 min`."""
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (120.0, 1.0, "s")):
        if abs(seconds) < limit:
            return f"{seconds * factor:.3g} {unit}" if seconds else "0 s"
    return f"{seconds / 60:.1f} min"


def macs_text(product_macs: int) -> str:
    """A sentence on what MACs leave out; "" if that is nothing."""
    if not product_macs:
        return ""
    return (
        f"MACs are of convolutions and dense layers; products of matrices that are computed at run time, as in attention, are "
        f"{count_text(product_macs)} more in the original."
    )


def parameters_text(parameters: Mapping[str, int]) -> str:
    """Routine parameters in one line."""
    return " ".join(f"{name}={value}" for name, value in parameters.items())


def operator_text(op: str) -> str:
    """An operator as people read it: a fusion group has no operator of its own."""
    from nnstretch.graph.layer import FUSION_GROUP

    return "fused layers" if op == FUSION_GROUP else op


def threads_text(count: int) -> str:
    """A number of threads, as in "2 threads"."""
    return counted(count, "thread")


def number_text(value: float | None, form: str) -> str:
    """A number in a format such as ".2f"; "–" if unknown."""
    return "–" if value is None else format(value, form)


def ms_text(ms: float | None, digits: int = 3) -> str:
    """Milliseconds with a number of digits after the point; "–" if unknown or infinite."""
    return "–" if ms is None or not math.isfinite(ms) else f"{ms:.{digits}f}"


def interval_text(interval: tuple[float, float] | None, form: str) -> str:
    """Both ends of an interval in a format such as ".3f"; empty if None."""
    return "" if interval is None else f"{interval[0]:{form}}–{interval[1]:{form}}"


def quietness_lines(width: float | None, others: OtherPrograms | None) -> list[str]:
    """What to know of a machine that was not quiet during a measurement, a line each.

    Args:
        width: the largest half width of the intervals, as a share of their middles.
        others: what other programs used meanwhile. If they use it evenly, intervals are narrow all the same.
    """
    from nnstretch.bench.timing import WIDE

    lines = []
    if width is not None and width > WIDE:
        lines.append(
            f"the machine was disturbed: intervals are wide (up to ±{width:.0%}, more than ±{WIDE:.0%}); "
            "end other programs and measure again"
        )
    if others is not None and others.is_noticed:
        lines.append(
            f"other programs used {others.used:.1f} of {counted(others.cores, 'core')} while this was "
            "measured; figures may be too large: end them and measure again"
        )
    return lines


def clocks_text(clocks: Mapping[str, float]) -> str:
    """Frequencies over the reference frequency, by processor: "cpu:0 at 48%"."""
    return ", ".join(f"{name} at {share_text(clock)}" for name, clock in clocks.items())


def times_text(ratio: float) -> str:
    """A ratio such as 1.72×; "–" if a latency in it is infinite."""
    return f"{ratio:.2f}×" if 0 < ratio < math.inf else "–"


def share_text(share: float) -> str:
    """A share such as 82%; "–" if a latency in it is infinite."""
    return f"{share:.0%}" if 0 < share < math.inf else "–"


def power_text(log10: float) -> str:
    """A count given by its logarithm: exact up to 9999, else rounded, as in 4·10¹²."""
    if log10 < 4:
        return f"{10**log10:.0f}"
    exponent = math.floor(log10)
    digit = round(10 ** (log10 - exponent))
    if digit == 10:
        digit, exponent = 1, exponent + 1
    power = f"10{str(exponent).translate(_RAISED)}"
    return power if digit == 1 else f"{digit}·{power}"


def plain_table(*columns: str, title: str | None = None, optional: Sequence[str] = ()) -> Table:
    """An empty table.

    Args:
        columns: their titles; a column whose title starts with ">" is right-aligned and not wrapped.
        title: of the table.
        optional: titles of columns that are left out, one after another, where the terminal is too narrow for all.
    """
    from rich import box

    made: Table = _table_class()(
        box=box.SIMPLE_HEAD,
        title=title,
        pad_edge=False,
        collapse_padding=True,
        optional=tuple(optional),
    )
    for column in columns:
        if column.startswith(">"):
            made.add_column(column[1:], justify="right", no_wrap=True)
        else:
            made.add_column(column, overflow="fold")
    return made


@cache
def _table_class() -> Any:
    """A class of tables that leave columns out where the terminal is too narrow; made here, as rich is loaded late.

    Titles and captions are as wide as the terminal, however narrow the table is.
    """
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table
    from rich.text import Text

    class FittingTable(Table):
        def __init__(self, *, optional: Sequence[str], **settings: Any) -> None:
            super().__init__(**settings)
            self.optional = optional

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            wide = options.update_width(_UNLIMITED)
            for title in self.optional:
                if self.__rich_measure__(console, wide).maximum <= options.max_width:
                    break
                self.columns = [column for column in self.columns if column.header != title]
                for number, column in enumerate(self.columns):
                    column._index = number
            body = copy.copy(self)
            body.title = body.caption = None
            if self.title:
                yield Text(str(self.title), style="bold")
            yield from super(FittingTable, body).__rich_console__(console, options)
            if self.caption:
                yield Text(str(self.caption), style="table.caption")

    return FittingTable
