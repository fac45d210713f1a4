"""The proof of a branching as a table for terminals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nnstretch.report.text import count_text, plain_table

if TYPE_CHECKING:
    from nnstretch.bench.proof import Proof


def proof_table(proof: Proof) -> Any:
    """One line per row of the proof; the branched network stands out."""
    shown = plain_table("network", "run", "processors", ">MACs", ">parameters", ">top-1", ">p50 ms", ">p90 ms")
    for row in proof.rows:
        times = (f"{row.bound_ms:.3f}", "") if row.bound_ms is not None else ("", "")
        if row.latency is not None:
            times = (f"{row.latency.p50_ms:.3f}", f"{row.latency.p90_ms:.3f}")
        top1 = "" if row.top1 is None else f"{row.top1:.1f} %"
        style = "bold" if row.how == "concurrent" else "dim" if row.latency is None else None
        shown.add_row(
            row.network,
            row.how,
            row.processors,
            count_text(row.macs),
            count_text(row.parameters),
            top1,
            *times,
            style=style,
        )
    shown.caption = (
        f"{proof.speedup:.2f}× the fastest single processor, {proof.speedup_equal_macs:.2f}× at equal MACs, "
        f"{proof.split_share:.0%} of the perfect split; largest error {proof.max_rel_error:.0e}"
    )
    shown.caption_justify = "left"
    return shown
