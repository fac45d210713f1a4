"""Streams and their rates as text and tables."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from nnstretch.report.tables.text import count_text, plain_table, times_text

if TYPE_CHECKING:
    from nnstretch.bench.throughput import Rate, Throughput
    from nnstretch.scheduler.runtime.streams.arrangement import Arrangement


def arrangement_text(found: Arrangement) -> str:
    """An arrangement as text: "cpu:0 and opencl:0@1 together, 2 streams"."""
    counts = Counter((" and ".join(group.processors), group.streams) for group in found.groups)
    parts = []
    for (names, streams), count in counts.items():
        together = " together" if " and " in names else ""
        parts.append(f"{names}{together}, {streams * count} stream{'s' * (streams * count > 1)}")
    return "; ".join(parts)


def memory_text(found: Arrangement) -> str:
    """Memory of weights and streams as text."""
    weights, streams = count_text(found.weight_bytes), count_text(found.stream_bytes)
    return f"weights take {weights}B, all {found.streams} streams {streams}B beside them"


def throughput_table(found: Throughput) -> Any:
    """A line per way to run the network."""
    shown = plain_table("how", "where", ">images/s", ">predicted", ">spread", ">memory", title=found.model)
    for rate in (found.alone, *found.rates, *found.baselines):
        shown.add_row(*_row(rate, found.batch, chosen=rate.how == found.chosen))
    words = [
        f"{found.streams} streams, batch {found.batch}.",
        f"Chosen by prediction: {found.chosen}, {times_text(found.best.per_second / found.alone.per_second)} one at a time",
    ]
    if found.baselines:
        best = max(rate.per_second for rate in found.baselines)
        words.append(f"and {times_text(found.best.per_second / best)} the better one of ONNX Runtime's")
    if found.failure:
        words.append(f"(ONNX Runtime failed: {found.failure})")
    shown.caption = " ".join(words) + f". Largest error against ONNX Runtime {found.max_rel_error:.1e}."
    shown.caption_justify = "left"
    return shown


def _row(rate: Rate, batch: int, *, chosen: bool) -> tuple[str, ...]:
    arrangement = rate.arrangement
    if arrangement is None:
        return rate.how, "", f"{rate.per_second:.1f}", "", f"{rate.spread:.1%}", ""
    predicted = "–" if arrangement.rate is None else f"{arrangement.rate * batch:.1f}"
    memory = f"{count_text(arrangement.weight_bytes + arrangement.stream_bytes)}B"
    how = f"{rate.how} (chosen)" if chosen else rate.how
    return how, arrangement_text(arrangement), f"{rate.per_second:.1f}", predicted, f"{rate.spread:.1%}", memory
