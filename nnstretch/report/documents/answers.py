"""Answers of commands, as `--json` prints them and `-o` writes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nnstretch.errors import DesignError, FileError
from nnstretch.report.documents.bench import bench_document
from nnstretch.report.documents.document import Cell, Document, Section, Table
from nnstretch.report.documents.facts import environment_facts
from nnstretch.report.documents.latency_grid import latency_document
from nnstretch.report.documents.quantization import quantization_document
from nnstretch.report.documents.targets import targets_document
from nnstretch.report.documents.tuning import tuning_document
from nnstretch.report.documents.ways import design_streams_document, streams_document, together_document
from nnstretch.support.json_text import json_fault

Answer = Mapping[str, Any]


def read_answer(path: Path, answer: Answer) -> Document:
    """The document of an answer.

    Raises:
        FileError: it is a timeline, or the answer of no command that has a report, or fields are missing.
    """
    try:
        document = answer_document(answer, path.name)
    except (KeyError, TypeError, ValueError, AttributeError, DesignError) as error:
        raise FileError(f"{path} is incomplete ({error!r}); run the command again") from error
    if document is not None:
        return document
    if "traceEvents" in answer:
        raise FileError(f"{path} is a timeline; open it in https://ui.perfetto.dev")
    if {"format", "segments", "original_macs"} <= answer.keys():
        raise FileError(f"{path} is a design; the index.html beside it explains it, and `bench --design` times it")
    raise FileError(
        f"{path} is not a plan, and not the answer of bench, tune, stretch, quantize or sweep latency; a study, the folder "
        "of a training and a package have reports, too"
    )


def answer_document(answer: Answer, name: str = "") -> Document | None:
    """The document of an answer with all its fields; None if it is of no command that has a report.

    Args:
        answer: as `--json` prints it.
        name: of its file, for the titles of answers that do not name their models.
    """
    for key, read in _READERS.items():
        if key in answer:
            document = read(name, answer)
            return replace(document, facts={**document.facts, **environment_facts(answer.get("environment", {}))})
    return None


def _branched(_: str, answer: Answer) -> Document:
    from nnstretch.report.documents.branching import branching_document  # loads what other documents do not need

    return branching_document(answer)


def _job(_: str, answer: Answer) -> Document:
    from nnstretch.report.documents.job import job_document  # as above

    return job_document(answer)


def _stretch(name: str, answer: Answer) -> Document:
    designs = answer["designs"]
    rows: list[Sequence[Cell]] = [
        (
            one["id"],
            one.get("predicted_ms"),
            one.get("measured_ms"),
            one["macs"] / 1e6,
            one["params"] / 1e6,
            len(one["branches"]),
        )
        for one in designs
    ]
    titles = ["design", "predicted ms", "measured ms", "million MACs", "million weights", "branches"]
    figures: dict[str, Cell] = {
        "designs": len(designs),
        "million MACs of the original": answer["original_macs"] / 1e6,
        "predicted ms of the best design": min((one["predicted_ms"] for one in designs), default=None),
        "seconds of search": answer.get("search_s"),
        **{f"ms of the original on {processor}": ms for processor, ms in dict(answer.get("original_ms") or {}).items()},
    }
    text = "Best first. " + (
        "A design that is measured far above its prediction deserves a second run of `bench --design`."
        if any(one.get("measured_ms") for one in designs)
        else "None was measured: all figures are predictions, and may be far off; `bench --design FILE` measures one."
    )
    return Document(
        f"Search {name}",
        "Branched designs of one network.",
        figures,
        [Section("Designs", text, table=Table(titles, rows))],
    )


_READERS: Mapping[str, Callable[[str, Answer], Document]] = {
    "candidates": _job,
    "summary": lambda _, answer: bench_document(answer),
    "speedup_best_alternative": _branched,
    "over_best_alternative": lambda _, answer: design_streams_document(answer),
    "over_one_at_a_time": lambda _, answer: streams_document(answer),
    "over_critical_path": lambda _, answer: together_document(answer),
    "tuning_s": tuning_document,
    "designs": _stretch,
    "targets": targets_document,
    "int8_layers": lambda _, answer: quantization_document(answer),
    "results": latency_document,
}
"""Field of the answer of one command -> its reader; the first that is found counts. Another command is a function and a row."""


def load_json(path: Path) -> Answer:
    """The object of a JSON file.

    Raises:
        FileError: it cannot be read, or is none.
    """
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        if path.suffix == ".html":
            raise FileError(f"{path} is a page already; open it in a browser") from error
        if path.suffix == ".onnx":
            raise FileError(f"{path} is a model; `bench {path} -o report.html` makes a page of it") from error
        if path.suffix == ".safetensors":
            raise FileError(
                f"{path} holds weights; give the folder of their training, or see "
                f"`nnstretch evaluate MODEL -w {path} --data SET`"
            ) from error
        reason = getattr(error, "strerror", None) or f"it is not JSON ({json_fault(error)})"
        raise FileError(
            f"cannot read {path}: {reason}; give a study, the folder of a training, a package, a plan or an answer (.json)"
        ) from error
    if not isinstance(found, dict):
        raise FileError(f"{path} holds no JSON object")
    return found
