"""Results of the accuracy studies, and their tables as Markdown. Loading this module does not load torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from nnstretch.support.measures import MEAN_AP, MEAN_IOU, TOP1, Measure
from nnstretch.training.evaluation.statistics import mean_interval

MODELS = ("resnet34", "regnet_x", "efficientnet_lite4")
"""Names of the networks (`bench.accuracy.networks`)."""
ACCURACY, QUARTER, ABLATION = "accuracy", "quarter", "ablation"
TABLES = (ACCURACY, QUARTER, ABLATION)
ORIGINAL, FURTHER, CONTROL, BRANCHED = "original", "original, trained further", "control", "branched"
"""Rows of the first table; all tables have `ORIGINAL`."""
ALONE = "original, trained further without a teacher"
STAGES_OF: Mapping[str, Mapping[str, str]] = {
    ORIGINAL: {ORIGINAL: ORIGINAL},
    ACCURACY: {
        ORIGINAL: ORIGINAL,
        FURTHER: "accuracy-further",
        CONTROL: "accuracy-control",
        BRANCHED: "accuracy-branched",
    },
    QUARTER: {
        ORIGINAL: ORIGINAL,
        "from scratch": "quarter-scratch",
        "inherited weights": "quarter-inherited",
        "and logits of the original": "quarter-logits",
        "and its feature maps": "quarter-features",
        "and a block-wise start": "quarter-blockwise",
    },
    ABLATION: {
        ORIGINAL: ORIGINAL,
        "depth only": "ablation-depth-only",
        "width only": "ablation-width-only",
        "mixed": "ablation-mixed",
        "extremely shallow": "ablation-extremely-shallow",
        "extremely narrow": "ablation-extremely-narrow",
        "mixed, as small": "ablation-mixed-as-small",
    },
}
"""The stage of a network and seed that each row of a table is of. The table "original" is of the originals alone."""

DETECTION, SEGMENTATION = "detection", "segmentation"
TASKS: Mapping[str, str] = {DETECTION: "yolo", SEGMENTATION: "deeplab"}
"""Tables of the study of detection and segmentation, and the network of each."""
DENSE_STAGES: Mapping[str, str] = {**STAGES_OF[ACCURACY], ALONE: "accuracy-alone"}
"""The stages of the rows of these tables. An earlier state of itself may hold an original back, so it is also trained alone."""

Result = Mapping[str, Any]
"""What a training found: MACs, parameters and accuracies, as JSON values."""
Results = Mapping[str, Mapping[str, Mapping[str, Sequence[Result]]]]
"""One `Result` per seed, by table, network and row."""

_COUNTS = "macs", "params", "epochs"
_TITLES: Mapping[str, str] = {
    ORIGINAL: "Originals",
    ACCURACY: "Accuracy at equal budgets of retraining",
    QUARTER: "The branched network at a quarter of the retraining",
    ABLATION: "Ways to scale two branches",
    DETECTION: "Detection at equal budgets of retraining",
    SEGMENTATION: "Segmentation at equal budgets of retraining",
}
_REFERENCES: Mapping[str, tuple[str, ...]] = {
    ORIGINAL: (),
    ACCURACY: (ORIGINAL, FURTHER),
    QUARTER: (ORIGINAL,),
    ABLATION: (ORIGINAL,),
    DETECTION: (ORIGINAL, FURTHER, ALONE),
    SEGMENTATION: (ORIGINAL, FURTHER, ALONE),
}
"""Rows that others are compared with, by table."""
_MEASURES: Mapping[str, tuple[Measure, ...]] = {
    DETECTION: (MEAN_AP, Measure("mAP at 50 %", "map50")),
    SEGMENTATION: (MEAN_IOU,),
}
"""Measures of the tables that have others than top-1; differences are those of the first one."""


def tables(results: Results) -> str:
    """All tables: means over the seeds with 95 % confidence intervals; differences are paired by seed."""
    return "\n".join("\n".join((*_head(table), *_rows(table, found), "")) for table, found in results.items())


def _measures(table: str) -> tuple[Measure, ...]:
    return _MEASURES.get(table, (TOP1,))


def _head(table: str) -> tuple[str, ...]:
    columns = (
        *("network", "", "seeds", "MACs", "parameters", "epochs"),
        *(f"{measure.name} in %" for measure in _measures(table)),
        *(f"against: {reference}" for reference in _REFERENCES[table]),
    )
    rule = "".join("---|" if number < 2 else "--:|" for number in range(len(columns)))
    return f"### {_TITLES[table]}", "", f"| {' | '.join(columns)} |", f"|{rule}"


def _rows(table: str, networks: Mapping[str, Mapping[str, Sequence[Result]]]) -> list[str]:
    return [_row(table, network, name, rows) for network, rows in networks.items() for name in rows]


def _row(table: str, network: str, name: str, rows: Mapping[str, Sequence[Result]]) -> str:
    found = rows[name]
    macs, parameters, epochs = (math.fsum(one[key] for one in found) / len(found) for key in _COUNTS)
    keys = [f"test_{measure.key}" for measure in _measures(table)]
    against = (
        "" if name == reference else _with_interval(differences(found, rows.get(reference, ()), keys[0]), sign="+")
        for reference in _REFERENCES[table]
    )
    measured = (_with_interval([one[key] for one in found]) for key in keys)
    seeds, millions, thousands = f"{len(found)}", f"{macs / 1e6:.2f} M", f"{parameters / 1e3:.0f} k"
    cells = (network, name, seeds, millions, thousands, f"{epochs:g}", *measured, *against)
    return f"| {' | '.join(cells)} |"


def differences(found: Sequence[Result], reference: Sequence[Result], key: str = "test_top1") -> list[float]:
    """Points of a measure above the reference of the same seed, for the seeds that have one."""
    measured = {one["seed"]: one[key] for one in reference}
    return [one[key] - measured[one["seed"]] for one in found if one["seed"] in measured]


def _with_interval(values: Sequence[float], sign: str = "") -> str:
    """The mean and its interval; only the mean of a single value, and nothing of none."""
    if not values:
        return ""
    mean, half_width = mean_interval(values)
    return f"{mean:{sign}.2f}" if math.isinf(half_width) else f"{mean:{sign}.2f} ± {half_width:.2f}"
