"""Colours and chart styles of reports, for light and dark mode."""

from __future__ import annotations

OP_CLASSES = {
    "Conv": "conv",
    "Dense": "dense",
    "MaxPool": "pool",
    "AveragePool": "pool",
    "GlobalPool": "pool",
    "Activation": "eltwise",
    "Add": "eltwise",
    "Affine": "eltwise",
    "Mul": "eltwise",
    "Softmax": "eltwise",
    "Concat": "concat",
    "Reorder": "reorder",
}
"""Operator -> CSS class of its colour; others share one class."""

OTHER = "other"
_DEPTHWISE = "depthwise"

_LIGHT = {
    "paper": "#ffffff",
    "ink": "#1c2024",
    "soft": "#5f6873",
    "rule": "#d9dee4",
    "faint": "#f3f5f7",
    "conv": "#3b6ea8",
    "depthwise": "#5aa0b5",
    "dense": "#7a5ea8",
    "pool": "#c98f2b",
    "eltwise": "#5c9a62",
    "concat": "#b8577f",
    "reorder": "#98a2ad",
    "other": "#6c7683",
    "wait": "#c2513f",
    "accent": "#c2513f",
    "accent-soft": "#e0aca4",
    "quiet": "#b9c4d0",
    "series-0": "#3b6ea8",
    "series-1": "#c2513f",
    "series-2": "#7d8894",
    "series-3": "#5c9a62",
    "plan-0": "#1f4b8f",
    "plan-1": "#d5572f",
    "plan-2": "#e6a93a",
}
_DARK = {
    "paper": "#15181c",
    "ink": "#e6e9ed",
    "soft": "#9aa4b0",
    "rule": "#333a43",
    "faint": "#1d2126",
    "conv": "#6a9fd8",
    "depthwise": "#7cc0d3",
    "dense": "#a68bd6",
    "pool": "#deb25a",
    "eltwise": "#82c088",
    "concat": "#da85aa",
    "reorder": "#77828e",
    "other": "#8d97a3",
    "wait": "#e58472",
    "accent": "#e58472",
    "accent-soft": "#7f4f48",
    "quiet": "#4a5563",
    "series-0": "#6a9fd8",
    "series-1": "#e58472",
    "series-2": "#98a3af",
    "series-3": "#82c088",
    "plan-0": "#9cc4ff",
    "plan-1": "#f0794f",
    "plan-2": "#8f6a14",
}
_FILLED = (*dict.fromkeys(OP_CLASSES.values()), _DEPTHWISE, OTHER, "quiet", "accent", "accent-soft", "faint")
_PLANS = ("plan-0", "plan-1", "plan-2")  # distinguishable in greyscale
_SERIES = ("series-0", "series-1", "series-2", "series-3")


def op_class(op: str, routine: str) -> str:
    """CSS class of an operator; depthwise convolutions have a class of their own."""
    return _DEPTHWISE if routine.endswith(f"/{_DEPTHWISE}") else OP_CLASSES.get(op, OTHER)


def variables(selector: str) -> str:
    """The colours as CSS variables of `selector`."""
    light = "".join(f"--{name}:{colour};" for name, colour in _LIGHT.items())
    dark = "".join(f"--{name}:{colour};" for name, colour in _DARK.items())
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
        ".line{fill:none;stroke-width:1.8;stroke-linejoin:round}.hatch{stroke:var(--wait);stroke-width:1.5}"
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
