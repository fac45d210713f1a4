"""The search of `nnstretch stretch`, for local or profiled processors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nnstretch.api.options import StretchOptions
from nnstretch.cli.stretching.answer import designs_table, pruning_table
from nnstretch.cli.stretching.predict_only import errors_by_name, predict, predicted_errors, uncertainty_table

if TYPE_CHECKING:
    from nnstretch.branching.stretch import StretchResult
    from nnstretch.cli.console import Reporter
    from nnstretch.cli.networks import Network
    from nnstretch.cli.stretching.predict_only import PredictedDesigns
    from nnstretch.latency.profile_files import Profiled
    from nnstretch.scheduler.costmodel.trees import Spread


@dataclass(frozen=True)
class FoundDesigns:
    """The result of a search.

    Attributes:
        results: designs, best first.
        errors: cross-validated errors of the predictions of unmeasured layers, by processor; None: unknown.
        predicted: the same designs with their uncertainty, where nothing was run.
    """

    results: Sequence[StretchResult]
    errors: Mapping[str, Spread | None]
    predicted: PredictedDesigns | None = None


def find(report: Reporter, network: Network, options: StretchOptions, profiled: Profiled | None) -> FoundDesigns:
    """Searches designs for the processors of a profile if there is one, else for processors of this machine."""
    from nnstretch.api.stretch import stretch

    with report.progress("Searching") as advance:
        options = replace(options, progress=advance)
        if profiled is not None:
            predicted = predict(network, profiled, options)
            return FoundDesigns(predicted.results, predicted_errors(predicted, profiled), predicted)
        results = stretch(network.module, network.example_input, options=options)
        names = options.processors.split(",")
        return FoundDesigns(results, prediction_errors(names) if options.learned is not False else {})


def prediction_errors(names: Sequence[str]) -> dict[str, Spread | None]:
    """Cross-validated errors of learned predictions by processor; None where everything had to be measured."""
    from nnstretch.compiler.costs import latency_predictor
    from nnstretch.compiler.processors import build_processors

    opened = build_processors(",".join(names))
    return errors_by_name([processor.name for processor in opened.named], latency_predictor(opened).error)


def show(report: Reporter, found: FoundDesigns, names: Sequence[str], profiled: Profiled | None) -> None:
    """Tables of the designs, and notes on what the search left out."""
    search = found.results[0].report
    report.show(pruning_table(search))
    report.show(designs_table([one.design for one in found.results], names, search.original_ms, search.measured_ms))
    if found.predicted is not None:
        report.show(uncertainty_table(found.predicted, names))
    for group in sorted(profiled.predictor.unknown_contention_factors) if profiled else ():
        report.note(f"contention of {' and '.join(group)} was not measured; the predictions assume none")
    for note in search.diagnostics:
        report.note(f"not branched: {note}")
    if search.unpredicted:
        operators = ", ".join(search.unpredicted)
        report.note(f"not in the predictions, because no processor has a routine for them: {operators}")
    for name, error in found.errors.items():
        report.note(f"{name}: predictions of layers that were not measured miss by {error or 'an unknown amount'}")
