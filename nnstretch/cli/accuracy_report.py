"""Tables and JSON of `nnstretch evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nnstretch.report.tables.text import plain_table

if TYPE_CHECKING:
    from rich.table import Table
    from torch import nn

    from nnstretch.support.progress import Progress
    from nnstretch.training.data.split import Dataset, Split
    from nnstretch.training.evaluation.accuracy import Predict
    from nnstretch.training.evaluation.predictions import Accuracy, Comparison, Predictions
    from nnstretch.training.tasks.base import Scorer

_CHANGES = 10  # confusions that are listed
_CHANCE = 0.05  # p-value from which on a difference may be chance


def accuracies(found: Predictions) -> str:
    """Top-1 and top-5 with their intervals, in one line; top-5 only where there are more classes than five."""
    parts = [f"top-1 {_with_interval(found.top(1))}"]
    if found.ranks_five:
        parts.append(f"top-5 {_with_interval(found.top(5))}")
    return ", ".join(parts)


def accuracies_json(found: Predictions) -> dict[str, Any]:
    """Top-1 and top-5 in percent, with their 95 % intervals; top-5 is None where there are no more classes than five."""
    top1, top5 = found.top(1), found.top(5) if found.ranks_five else None
    return {
        "top1": top1.percent,
        "top1_interval": list(top1.interval),
        "top5": top5.percent if top5 else None,
        "top5_interval": list(top5.interval) if top5 else None,
    }


@dataclass(frozen=True, eq=False)
class Evaluated:
    """What a network reaches.

    Attributes:
        text: its measures in one line.
        json: its measures for `--json`, that of the task under the task's key.
        predictions: its answers, of classification only.
        scorer: its score, of other tasks.
        skipped: images that were left out, because they cannot be decoded.
        remarks: in lines: how names of classes differ, and how images became inputs: what is cut off, and all of it where the
            network does not state it.
    """

    text: str
    json: dict[str, Any]
    predictions: Predictions | None = None
    scorer: Scorer | None = None
    skipped: int = 0
    remarks: str = ""


def evaluated(
    network: nn.Module | Predict, split: Split, dataset: Dataset, batch: int, progress: Progress | None = None
) -> Evaluated:
    """Evaluates a network by the task of a data set; the arguments are those of `evaluation.accuracy.scored`."""
    from nnstretch.training.evaluation.accuracy import scored
    from nnstretch.training.evaluation.predictions import predict
    from nnstretch.training.tasks.base import CountedTask

    if isinstance(dataset.task, CountedTask):
        found = predict(network, split, dataset.num_classes, batch, progress)
        return Evaluated(accuracies(found), accuracies_json(found), predictions=found)
    scorer = scored(network, split, dataset, batch, progress)
    measures = scorer.measures()
    own, *others = measures.items()
    more = "".join(f", {name.replace('_', ' ')} {percent:.2f} %" for name, percent in others)
    return Evaluated(f"{dataset.task.measure} {own[1]:.2f} %{more}", measures, scorer=scorer)


def score_table(found: Scorer, dataset: Dataset) -> Table:
    """One row per class, of other tasks than classification."""
    table = plain_table("class", f">{dataset.task.measure}")
    for name, percent in zip(dataset.class_names, found.per_class(), strict=True):
        table.add_row(name, "" if percent is None else f"{percent:.1f} %")
    return table


def class_table(found: Predictions, names: Sequence[str]) -> Table:
    """One row per class."""
    table = plain_table("class", ">images", ">top-1", ">95 %", ">answered", "most taken for")
    for row in found.per_class():
        low, high = row.top1.interval
        taken = f"{names[row.taken_for[0]]} ({row.taken_for[1]})" if row.taken_for else ""
        shown = (f"{row.top1.percent:.1f} %", f"{low:.1f}–{high:.1f}") if row.top1.images else ("", "")
        table.add_row(names[row.number], str(row.top1.images), *shown, str(row.answered), taken)
    return table


def classes_json(found: Predictions, names: Sequence[str]) -> list[dict[str, Any]]:
    """One object per class."""
    return [
        {
            "class": names[row.number],
            "images": row.top1.images,
            "top1": row.top1.percent if row.top1.images else None,
            "top1_interval": list(row.top1.interval),
            "answered": row.answered,
            "most_taken_for": {"class": names[row.taken_for[0]], "images": row.taken_for[1]} if row.taken_for else None,
        }
        for row in found.per_class()
    ]


def comparison_lines(found: Comparison, first: str, second: str) -> list[str]:
    """What differs between two networks, in lines."""
    right = f"both {found.both_right}, only {first} {found.only_first}, only {second} {found.only_second}"
    verdict = " (the difference may be chance)" if found.p_value > _CHANCE else ""
    return [
        f"same answer on {found.agreement.percent:.2f} % of the images",
        f"right: {right}, neither {found.both_wrong}",
        f"McNemar's exact test: p = {found.p_value:.3g}{verdict}",
    ]


def changes_table(found: Comparison, names: Sequence[str], first: str, second: str) -> Table | None:
    """The confusions that differ most; None if there are none."""
    changes = found.confusion_changes(_CHANGES)
    if not changes:
        return None
    table = plain_table("class", "taken for", f">{first}", f">{second}")
    for label, answer, before, after in changes:
        table.add_row(names[label], names[answer], str(before), str(after))
    return table


def comparison_json(found: Comparison, other: str, names: Sequence[str]) -> dict[str, Any]:
    """The comparison as an object; counts are of images."""
    return {
        "model": other,
        **accuracies_json(found.second),
        "agreement": found.agreement.percent,
        "both_right": found.both_right,
        "only_first": found.only_first,
        "only_second": found.only_second,
        "both_wrong": found.both_wrong,
        "mcnemar_p": found.p_value,
        "confusion_changes": [
            {"class": names[label], "taken_for": names[answer], "first": before, "second": after}
            for label, answer, before, after in found.confusion_changes(_CHANGES)
        ],
    }


def _with_interval(accuracy: Accuracy) -> str:
    low, high = accuracy.interval
    return f"{accuracy.percent:.2f} % ({low:.2f}–{high:.2f})"
