"""Results of a comparison as tables for terminals. Results are entries of "results" of `bench --json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.report.tables.text import (
    count_text,
    number_text,
    operator_text,
    parameters_text,
    plain_table,
    threads_text,
)
from nnstretch.support.words import counted

if TYPE_CHECKING:
    from rich.table import Table

_OURS = "nnstretch"
_REFERENCE = "onnxruntime"
_WHOLE_PEAK = 1.005
"""Share of the peak that is shown as more than 100%."""
ABOVE_PEAK = "above 100% of peak: MACs are counted as the model has them, and Winograd and Strassen need fewer"
Results = Sequence[Mapping[str, Any]]
_LESS_WANTED = ("spread", "of peak", "MACs", "error")
"""Columns of a comparison that narrow terminals lack."""


def comparison_table(
    results: Results, engines: Sequence[str], machine: Mapping[str, Any], summary: Mapping[str, Any]
) -> Table:
    """One line per model, for one number of threads; the fastest engine of each line stands out."""
    from rich.text import Text

    threads = summary["threads"]
    dtypes = dtypes_text(results)
    what = f"{dtypes} latency".lstrip()
    ratios = sorted({one.get("peak_ratio") or 1.0 for one in results} - {1.0})
    others = (
        f"; in {dtypes} {' or '.join(f'{ratio:.3g}' for ratio in ratios)} times as much, by the instructions there are"
        if ratios
        else ""
    )
    title = (
        f"{what} in ms (median of rounds) on {counted(threads, 'core')} of {machine['cpu']}; "
        f"{'float32 ' if ratios else ''}multiply-add peak {machine['peak_gflops_per_core']:.0f} GFLOP/s per core{others}"
    )
    numbers = (">× best", ">of peak", ">spread", ">error")
    engine_columns = (f">{name}" for name in engines)
    shown = plain_table("model", ">MACs", *engine_columns, *numbers, title=title, optional=_LESS_WANTED)
    for one in results:
        cells = [Text(text, style="bold" if fastest else "") for text, fastest in latency_cells(one, engines)]
        spread = max((about["spread"] for about in one["engines"].values() if "spread" in about), default=None)
        shown.add_row(
            Path(one["model"]).name,
            count_text(one["macs"]),
            *cells,
            number_text(one["speedup"], ".2f"),
            number_text(one["peak_share"], ".0%"),
            number_text(spread, ".0%"),
            number_text(one["max_rel_error"], ".0e"),
        )
    above = any((one["peak_share"] or 0) > _WHOLE_PEAK for one in results)
    shown.caption = "\n".join(filter(None, (_caption(summary), ABOVE_PEAK if above else "")))
    return shown


def _caption(summary: Mapping[str, Any]) -> str:
    if summary["geometric_mean"] is None:
        return ""
    count = summary["models"]
    return (
        f"{summary['geometric_mean']:.2f}× the best engine in the geometric mean of {counted(count, 'model')}; "
        f"not slower on {summary['not_slower']}, least {summary['least']:.2f}× on {Path(summary['least_model']).name}"
    )


def start_table(results: Results, engines: Sequence[str]) -> Table:
    """Time from the file to the first result, and peak memory, per model and engine."""
    shown = plain_table(
        "model",
        ">threads",
        *(f">{name}" for name in engines),
        title="From file to first result: ms until created / until the first result; MB at most beyond imports (in all)",
    )
    for one in results:
        cells = [start_text(one["engines"].get(name, {})) for name in engines]
        shown.add_row(Path(one["model"]).name, str(one["threads"]), *cells)
    shown.caption = _start_caption(results)
    return shown


def _start_caption(results: Results) -> str:
    """Our start (first result included) compared with the creation of ONNX Runtime's session."""
    pairs = [(one["engines"].get(_OURS, {}), one["engines"].get(_REFERENCE, {})) for one in results]
    pairs = [(ours, theirs) for ours, theirs in pairs if "ready_ms" in ours and "ready_ms" in theirs]
    if not pairs:
        return ""
    sooner = sum(ours["ready_ms"] <= theirs["created_ms"] for ours, theirs in pairs)
    smaller = sum(ours["peak_mb"] <= theirs["peak_mb"] for ours, theirs in pairs)
    smaller_in_all = sum(ours["peak_rss_mb"] <= theirs["peak_rss_mb"] for ours, theirs in pairs)
    return (
        f"our first result is there before {_REFERENCE} has created its session in {sooner} of {len(pairs)}; "
        f"less memory in {smaller} beyond imports, {smaller_in_all} in all"
    )


def layer_table(result: Mapping[str, Any]) -> Table:
    """One line per layer of our plan, in execution order."""
    title = f"{Path(result['model']).name} on {counted(result['threads'], 'core')}"
    columns = ("layer", "op", "routine", "parameters", ">ms", ">share", ">GFLOP/s", ">of peak")
    shown = plain_table(*columns, title=title, optional=("op", "of peak", "share", "GFLOP/s"))
    for cells in layer_rows(result):
        shown.add_row(*cells)
    return shown


def dtypes_text(results: Results) -> str:
    """The data types of our plans; empty if none ran."""
    return " and ".join(sorted({one["dtype"] for one in results if "error" not in one}))


def failures(results: Results) -> list[str]:
    """A line per failed engine and model, per package, plan with fallback layers, and int8 engine."""
    lines: list[str] = []
    for one in results:
        name = f"{Path(one['model']).name}, {threads_text(one['threads'])}"
        if "error" in one:
            lines.append(f"{name}: failed: {one['error']}")
        lines += [f"{name}: {e} failed: {about['error']}" for e, about in one["engines"].items() if "error" in about]
        if "error" not in one and Path(one["model"]).suffix == ".nns":
            lines.append(f"{name}: no other engine reads packages; give the ONNX file for a comparison")
        fallback = one["fallback_layers"]
        if fallback:
            lines.append(f"{name}: {len(fallback)} of our layers ran on ONNX Runtime: {', '.join(fallback)}")
        lines += _types_line(name, one["engines"])
    return lines


def _types_line(name: str, engines: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The engines by the type that they report, if one is not float32."""
    said = {
        dtype: [engine for engine, about in engines.items() if about.get("dtype") == dtype]
        for dtype in ("int8", "bfloat16", "float16", "float32")
    }
    if not any(said[dtype] for dtype in ("int8", "bfloat16", "float16")):
        return []
    by_type = ", ".join(f"in {dtype} by {', '.join(names)}" for dtype, names in said.items() if names)
    return [f"{name}: computed {by_type}"]


def latency_cells(one: Mapping[str, Any], engines: Sequence[str]) -> list[tuple[str, bool]]:
    """Milliseconds of every engine, and whether it is the fastest."""
    times = {name: about["p50_ms"] for name, about in one["engines"].items() if "p50_ms" in about}
    fastest = fastest_engine(one, engines)
    return [(number_text(times.get(name), ".2f"), name == fastest) for name in engines]


def fastest_engine(one: Mapping[str, Any], engines: Sequence[str]) -> str | None:
    """The engine with the lowest median among those named; None if none of them was timed."""
    times = {name: one["engines"][name]["p50_ms"] for name in engines if "p50_ms" in one["engines"].get(name, {})}
    return min(times, key=times.__getitem__, default=None)


def start_text(about: Mapping[str, Any]) -> str:
    """Start-up time and memory of an engine, in two lines."""
    if "ready_ms" not in about:
        return "–"
    times = f"{about['created_ms']:.0f} / {about['ready_ms']:.0f} ms"
    return f"{times}\n{about['peak_mb']:.0f} ({about['peak_rss_mb']:.0f}) MB"


def peak_share(result: Mapping[str, Any], layer: Mapping[str, Any]) -> float:
    """A layer's rate over the peak of its data type; answers of earlier versions compare all with that of float32."""
    found = layer.get("peak_share")
    return float(layer["gflops"] / (result["peak_gflops_per_core"] * result["threads"]) if found is None else found)


def layer_rows(result: Mapping[str, Any]) -> list[list[str]]:
    """Cells of every layer of our plan, in execution order."""
    return [
        [
            layer["name"],
            operator_text(layer["op"]),
            layer["routine"],
            parameters_text(layer["parameters"]),
            f"{layer['ms']:.3f}",
            f"{layer['share']:.1%}",
            f"{layer['gflops']:.0f}" if layer["macs"] else "",
            f"{peak_share(result, layer):.0%}" if layer["macs"] else "",
        ]
        for layer in result["layers"]
    ]
