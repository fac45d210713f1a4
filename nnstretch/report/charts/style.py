"""Colours and chart styles of reports, for light and dark mode."""

from __future__ import annotations

from nnstretch.graph.layer import OPERATORS

OTHER = "other"
_DEPTHWISE = "depthwise"
CLASSES = {
    "conv": "convolution",
    _DEPTHWISE: "depthwise convolution",
    "dense": "dense",
    "pool": "pooling",
    "elementwise": "element-wise",
    "concat": "concat",
    "reorder": "layout change",
    OTHER: "other",
}
"""What the classes of operators are called."""
_ALGORITHMS = {
    _DEPTHWISE: _DEPTHWISE,
    "inverted_residual": _DEPTHWISE,
    "_add": "conv",  # a convolution and the sum that reads it
    "table": "elementwise",
}
"""Part of an algorithm's name -> the class of what it computes, where operators do not say it."""

COLOURS = {
    "paper": ("#ffffff", "#15181c"),
    "ink": ("#1c2024", "#e6e9ed"),
    "soft": ("#5f6873", "#9aa4b0"),
    "rule": ("#d9dee4", "#333a43"),
    "faint": ("#f3f5f7", "#1d2126"),
    "conv": ("#3b6ea8", "#6a9fd8"),
    "depthwise": ("#5aa0b5", "#7cc0d3"),
    "dense": ("#7a5ea8", "#a68bd6"),
    "pool": ("#c98f2b", "#deb25a"),
    "elementwise": ("#5c9a62", "#82c088"),
    "concat": ("#b8577f", "#da85aa"),
    "reorder": ("#98a2ad", "#77828e"),
    "other": ("#6c7683", "#8d97a3"),
    "wait": ("#c2513f", "#e58472"),
    "accent": ("#c2513f", "#e58472"),
    "accent-soft": ("#e0aca4", "#7f4f48"),
    "quiet": ("#b9c4d0", "#4a5563"),
    "series-0": ("#3b6ea8", "#6a9fd8"),
    "series-1": ("#c2513f", "#e58472"),
    "series-2": ("#7d8894", "#98a3af"),
    "series-3": ("#5c9a62", "#82c088"),
    "plan-0": ("#1f4b8f", "#9cc4ff"),
    "plan-1": ("#d5572f", "#f0794f"),
    "plan-2": ("#e6a93a", "#8f6a14"),
}
"""Name -> colour in light mode, colour in dark mode."""

_FILLED = (*CLASSES, "quiet", "accent", "accent-soft", "faint")
_PLANS = ("plan-0", "plan-1", "plan-2")  # distinguishable in greyscale
_SERIES = ("series-0", "series-1", "series-2", "series-3")


def op_class(op: str, routine: str) -> str:
    """CSS class of a step: the kind of its operator, or one of its own for depthwise convolutions, Concat and Reorder.

    Fused layers have the kind of the layer that the routine is made for, those of external engines the first kind of `CLASSES`
    that one of their operators has.
    """
    algorithm = routine.rpartition("/")[2]
    if fused := next((kind for part, kind in _ALGORITHMS.items() if part in algorithm), None):
        return fused
    kinds = {_kind(one) for one in op.split("+")}
    return next((kind for kind in CLASSES if kind in kinds), OTHER)


def _kind(op: str) -> str:
    return op.lower() if op in ("Concat", "Reorder") else OPERATORS.get(op, OTHER)


def variables(selector: str) -> str:
    """The colours as CSS variables of `selector`."""
    light, dark = ("".join(f"--{name}:{modes[i]};" for name, modes in COLOURS.items()) for i in (0, 1))
    return f"{selector}{{{light}}}@media (prefers-color-scheme:dark){{{selector}{{{dark}}}}}"


def picture_rules() -> str:
    """The CSS classes of charts."""
    filled = "".join(f".{name}{{fill:var(--{name})}}" for name in (*_FILLED, *_PLANS))
    series = "".join(f".line.{name}{{stroke:var(--{name})}}.dot.{name}{{fill:var(--{name})}}" for name in _SERIES)
    return (
        filled + series + ".label{fill:var(--ink);font-size:12px}.small{fill:var(--soft);font-size:11px}"
        ".strong{fill:var(--ink);font-size:12px;font-weight:600}"
        ".axis{stroke:var(--rule);stroke-width:1}.grid{stroke:var(--rule);stroke-width:.6}"
        ".queue{fill:var(--faint)}.bound{stroke:var(--accent);stroke-width:1.4;stroke-dasharray:5 4}"
        ".bound-text{fill:var(--accent);font-size:11px}.whisker{stroke:var(--soft);stroke-width:1.2}"
        ".line{fill:none;stroke-width:1.8;stroke-linejoin:round}.thin{stroke-width:.8;stroke-opacity:.35}.thin.best{stroke-opacity:.85}.hatch{stroke:var(--wait);stroke-width:1.5}"
        ".dropped{fill:none;stroke:var(--soft);stroke-width:.9;stroke-dasharray:3 2}"
        ".wait{stroke:var(--wait);stroke-width:.8;stroke-opacity:.6}.flow{stroke:var(--soft);stroke-width:1.2;fill:none}"
        ".on{fill:var(--paper);font-size:11px}"
        ".ring{fill:none;stroke:var(--accent);stroke-width:2}.ring-text{fill:var(--accent);font-size:12px;font-weight:600}"
        ".beside{opacity:.45}"
        ".trend{fill:none;stroke:var(--ink);stroke-width:1.6;stroke-linejoin:round}"
        ".beside-trend{stroke:var(--soft);stroke-dasharray:5 3}"
        ".meet{fill:var(--ink)}.series-fill-0{fill:var(--series-0)}.series-fill-1{fill:var(--series-1)}"
        ".series-fill-2{fill:var(--series-2)}.series-fill-3{fill:var(--series-3)}"
    )


def standalone() -> str:
    """The style of a stand-alone chart, such as an SVG file in a README."""
    return variables("svg") + picture_rules() + ".paper{fill:var(--paper)}"
