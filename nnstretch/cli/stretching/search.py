"""The search of `nnstretch stretch`, on processors that are here or for those that are not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nnstretch.cli.stretching.answer import designs_table, pruning_table
from nnstretch.cli.stretching.predict_only import errors_by_name, predict, predicted_errors, uncertainty_table

if TYPE_CHECKING:
    from nnstretch.branching.design.design import Merge
    from nnstretch.branching.search.limits import SearchLimits
    from nnstretch.branching.stretch import StretchResult
    from nnstretch.cli.console import Reporter
    from nnstretch.cli.networks import Network
    from nnstretch.cli.stretching.predict_only import Predicted
    from nnstretch.latency.profile_files import Profiled
    from nnstretch.scheduler.costmodel.trees import Spread
    from nnstretch.support.progress import Progress


@dataclass(frozen=True)
class Wanted:
    """Which designs are looked for, and how.

    Attributes:
        designs: how many.
        pareto: spread over the front of latency and MACs.
        merge: how branches meet.
        learned: whether layers are predicted from others; None: where that is possible.
        trials: the best design is run.
    """

    designs: int
    pareto: bool
    merge: Merge
    learned: bool | None = None
    trials: bool = True


@dataclass(frozen=True)
class Finding:
    """What was found.

    Attributes:
        results: designs, best first.
        errors: of predictions of layers that were not measured, cross-validated, by processor; None: unknown.
        predicted: the same designs with uncertainty, where nothing was run.
    """

    results: Sequence[StretchResult]
    errors: Mapping[str, Spread | None]
    predicted: Predicted | None = None


def find(
    report: Reporter,
    network: Network,
    names: Sequence[str],
    limits: SearchLimits,
    wanted: Wanted,
    profiled: Profiled | None,
) -> Finding:
    """Designs for processors: for those of `profiled`, if given, else for those that are here."""
    with report.progress("Searching") as told:
        if profiled is not None:
            predicted = predict(
                network, profiled, limits, wanted.merge, designs=wanted.designs, pareto=wanted.pareto, progress=told
            )
            return Finding(predicted.results, predicted_errors(predicted, profiled), predicted)
        results = _search(network, names, limits, wanted, told)
        return Finding(results, prediction_errors(names) if wanted.learned is not False else {})


def _search(
    network: Network, names: Sequence[str], limits: SearchLimits, wanted: Wanted, progress: Progress
) -> Sequence[StretchResult]:
    from nnstretch.api.compile import stretch

    return stretch(
        network.module,
        network.example_input,
        ",".join(names),
        limits=limits,
        designs=wanted.designs,
        pareto=wanted.pareto,
        merge=wanted.merge.value,
        learned=wanted.learned,
        trials=wanted.trials,
        progress=progress,
    )


def prediction_errors(names: Sequence[str]) -> dict[str, Spread | None]:
    """Cross-validated errors of learned predictions by processor; None where everything had to be measured."""
    from nnstretch.compiler.costs import latency_predictor
    from nnstretch.compiler.processors import build_processors

    opened = build_processors(",".join(names))
    return errors_by_name([processor.name for processor in opened.named], latency_predictor(opened).error)


def show(report: Reporter, finding: Finding, names: Sequence[str], profiled: Profiled | None) -> None:
    """Tables of what was found, and notes on what was left out."""
    found = finding.results[0].report
    report.show(pruning_table(found))
    report.show(designs_table([one.design for one in finding.results], names, found.original_ms, found.measured_ms))
    if finding.predicted is not None:
        report.show(uncertainty_table(finding.predicted, names))
    for group in sorted(profiled.predictor.unknown_contention_factors) if profiled else ():
        report.note(f"how much {' and '.join(group)} slow each other down was not measured: taken for not at all")
    for note in found.diagnostics:
        report.note(f"not branched: {note}")
    if found.unpredicted:
        operators = ", ".join(found.unpredicted)
        report.note(f"not in the predictions, because no processor has a routine for it: {operators}")
    for name, error in finding.errors.items():
        report.note(f"{name}: predictions of layers that were not measured miss by {error or 'an unknown amount'}")
