"""Throughput of a branched network beside its alternatives, as a table and in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnstretch.report.tables.runs import arrangement_text
from nnstretch.report.tables.text import ms_text, plain_table, quietness_lines, times_text
from nnstretch.support.words import counted

if TYPE_CHECKING:
    from rich.table import Table

    from nnstretch.bench.design_throughput import DesignThroughput, StreamedWay


def way_text(way: StreamedWay) -> str:
    """A way to run a network in words: "control, apart (cpu:0, 1 stream; cpu:1, 1 stream)"."""
    arrangement = way.rate.arrangement
    where = "" if arrangement is None else f" ({arrangement_text(arrangement)})"
    return f"{way.network}, {way.rate.how}{where}"


def gain_text(found: DesignThroughput) -> str:
    """What the branches gain over the best alternative in images per second."""
    ours, other, gain = found.best_branched, found.best_alternative, found.gain
    limit = "" if found.goal.limit_ms is None else f" within {ms_text(found.goal.limit_ms)} ms"
    if gain is not None and other is not None:
        return f"{times_text(gain)} the best alternative in images per second{limit}: {way_text(other)}."
    if ours is not None:
        return f"Only branches give images{limit}: {ours.rate.per_second:.1f} a second, all alternatives take longer."
    if other is not None:
        return f"The branches miss the limit; the best alternative{limit} is {way_text(other)}."
    least = min(found.ways, key=lambda way: way.rate.latency_ms or 0.0)
    return f"Nothing answers{limit}; the shortest latency is {ms_text(least.rate.latency_ms)} ms: {way_text(least)}."


def design_throughput_table(found: DesignThroughput) -> Table:
    """A line per way to run a network, most images per second first; those that miss the limit last and dim."""
    titles = ("network", "how", "where", ">images/s", ">predicted", ">latency ms", ">predicted ms", ">spread")
    shown = plain_table(*titles, title=found.model, optional=["spread", "predicted ms"])
    ranked = sorted(found.ways, key=lambda way: (not found.goal.is_met(way.rate.latency_ms), -way.rate.per_second))
    for way in ranked:
        is_late = not found.goal.is_met(way.rate.latency_ms)
        style = "dim" if is_late else "bold" if way.is_branched else None
        shown.add_row(*_cells(way, found.batch), style=style)
    words = [f"{counted(found.goal.streams, 'stream')}, batch {found.batch}."]
    if (predicted := found.predicted_best) is not None:
        words.append(f"Predicted to be the best: {predicted.network}, {predicted.rate.how}.")
    if found.failure:
        words.append(f"ONNX Runtime failed: {found.failure}.")
    words.append(
        "Latency: from begin to end of an input on the slowest stream. "
        f"Largest error against ONNX Runtime {found.max_rel_error:.1e}."
    )
    quiet = quietness_lines(found.widest_interval, found.other_programs)
    shown.caption = "\n".join([gain_text(found), " ".join(words), *quiet])
    return shown


def _cells(way: StreamedWay, batch: int) -> tuple[str, ...]:
    rate = way.rate
    where = "" if rate.arrangement is None else arrangement_text(rate.arrangement)
    predicted = "–" if way.predicted_rate is None else f"{way.predicted_rate * batch:.1f}"
    times = (ms_text(rate.latency_ms), "–" if way.predicted_ms is None else ms_text(way.predicted_ms))
    return way.network, rate.how, where, f"{rate.per_second:.1f}", predicted, *times, f"{rate.spread:.1%}"
