"""The run folder of a training."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from nnstretch.errors import FileError
from nnstretch.report.charts.curves import curve_panel
from nnstretch.report.documents.document import Cell, Document, Section, Table
from nnstretch.report.documents.facts import fact_text
from nnstretch.support.measures import MEASURES

_STEP = frozenset({"step", "epoch", "loss", "lr", "images_per_second", "seconds"})
"""Keys of a line on steps; an evaluation has its measure beside them."""


def is_training_run(path: Path) -> bool:
    """Whether a path is a run folder."""
    return path.is_dir() and (path / "log.jsonl").is_file()


def read_training_run(path: Path) -> Document:
    """Learning curves, epochs and settings.

    Raises:
        FileError: a file is missing or damaged.
    """
    try:
        lines = [json.loads(line) for line in (path / "log.jsonl").read_text().splitlines() if line.strip()]
        recipe = yaml.safe_load((path / "recipe.yaml").read_text())
        result = json.loads((path / "result.json").read_text()) if (path / "result.json").exists() else None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise FileError(f"{path} is not the run folder of a training ({error})") from error
    if not all(isinstance(line, dict) and "step" in line for line in lines) or not (lines or result):
        raise FileError(f"{path} has no log of a training yet; wait for its first steps")
    measures = list(dict.fromkeys(name for line in lines for name in line if name not in _STEP))
    losses = [(line["step"], line["loss"]) for line in lines if line.get("loss") is not None]
    sections = []
    if losses:
        curve = curve_panel({"loss": losses}, "step", "loss")
        sections.append(Section("Loss", "Mean over an interval of steps.", curve))
    for name in measures:
        points = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
        sections.append(
            Section(_title(name), "On the validation images.", curve_panel({name: points}, "step", _title(name)))
        )
    rates = [(line["step"], line["lr"]) for line in lines if line.get("lr") is not None]
    if rates:
        sections.append(Section("Learning rate", "", curve_panel({"learning rate": rates}, "step", "learning rate")))
    if result is not None and result.get("history"):
        sections.append(Section("Epochs", table=_epochs(result["history"]), folded=True))
    speeds = [line["images_per_second"] for line in lines if line.get("images_per_second")]
    figures: dict[str, Cell] = {
        "steps": lines[-1]["step"] if lines else 0,
        "last loss": losses[-1][1] if losses else None,
        **{
            f"best {_title(name)}": max(line[name] for line in lines if line.get(name) is not None) for name in measures
        },
        "median images per second": sorted(speeds)[len(speeds) // 2] if speeds else None,
        "minutes of training": lines[-1].get("seconds", 0) / 60 if lines else None,
    }
    state = "finished" if result is not None else "not finished; `nnstretch train --resume` goes on with it"
    if not lines:
        state += ", before its first epoch"
        if isinstance(recipe, Mapping) and recipe.get("target_accuracy"):
            state += ": its weights had the accuracy that the recipe asks for (`target_accuracy`)"
    facts = (
        {str(name): fact_text(value, str(name)) for name, value in recipe.items()}
        if isinstance(recipe, Mapping)
        else {}
    )
    return Document(f"Training {_name(path)}", f"This training is {state}.", figures, sections, facts)


def _name(path: Path) -> str:
    """The folder's name, and that of its parent where all run folders are called `run`, as in jobs."""
    whole = path.resolve()
    return whole.name if whole.name != "run" else f"{whole.parent.name}/run"


def _title(name: str) -> str:
    return {"top5": "top-5 (%)", **{one.key: f"{one.name} (%)" for one in MEASURES}}.get(name, name)


def _epochs(history: Sequence[Mapping[str, Any]]) -> Table:
    names = list(dict.fromkeys(name for epoch in history for name in epoch))
    rows = [[epoch.get(name) for name in names] for epoch in history]
    return Table([name.replace("_", " ") for name in names], rows, texts=0)
