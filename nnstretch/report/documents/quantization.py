"""Answers of `quantize`: which layers compute in int8, what that costs, and how images became inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nnstretch.report.documents.document import Cell, Document, Section, Table
from nnstretch.report.documents.facts import facts_of
from nnstretch.training.data.preprocessing import PREPROCESSING_KEY

Answer = Mapping[str, Any]
"""The object that `quantize --json` prints. A field that is missing raises KeyError."""

_SENSITIVITY = (
    "The error of the outputs of the network in which only this layer is in int8, relative to the outputs in float32, the "
    "largest first; 20 dB more are a tenth of the error. Layers that compute in float32 all the same are marked."
)
_ROUNDING = (
    "The error of a layer's outputs if its weights are rounded to the nearest integers, and as they are: of the two integers "
    "beside each weight the one that changes the outputs least."
)


def quantization_document(answer: Answer) -> Document:
    """The document of an answer."""
    floating = answer["float_layers"]
    figures: dict[str, Cell] = {
        "layers in int8": answer["int8_layers"],
        "layers in float32": len(floating),
        "relative error of the outputs": answer["error"],
        "signal to noise of the outputs in dB": answer["snr_db"],
        "MB of the file": answer["bytes"] / 1e6,
    }
    facts: dict[str, Any] = {"output": answer["output"], "method": answer["method"]}
    if answer["equalized_pairs"]:
        facts["pairs of layers with equalised ranges"] = answer["equalized_pairs"]
    if answer["corrected_layers"]:
        facts["layers with corrected biases"] = answer["corrected_layers"]
    if images := answer["preprocessing"]:
        facts[PREPROCESSING_KEY] = {key: one for key, one in images.items() if key not in ("channel_order", "stated")}
        facts["the model states the preprocessing"] = images["stated"]
    lead = "Weights have one scale per output channel, activations one per tensor."
    sections = list(_sections(answer, floating))
    return Document(f"{answer['model']} in int8", lead, figures, sections, facts_of(facts))


def _sections(answer: Answer, floating: Sequence[str]) -> Iterator[Section]:
    if floating:
        yield Section(
            "Layers in float32", "All others compute in int8.", table=Table(("layer",), [(n,) for n in floating])
        )
    if answer["sensitivity"]:
        rows = [[one["layer"], one["operator"], one["error"], one["snr_db"]] for one in answer["sensitivity"]]
        marked = frozenset(number for number, row in enumerate(rows) if row[0] in floating)
        table = Table(("layer", "operator", "output error", "dB"), rows, 2, marked)
        yield Section("Sensitivity", _SENSITIVITY, table=table)
    if answer["rounding"]:
        fields = ("layer", "operator", "nearest_error", "error", "changed_weights")
        rows = [[one[field] for field in fields] for one in answer["rounding"]]
        titles = ("layer", "operator", "error, nearest", "error, adaptive", "weights changed")
        yield Section("Adaptive rounding", _ROUNDING, table=Table(titles, rows, 2))
