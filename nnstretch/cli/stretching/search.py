"""The search of `nnstretch stretch`: for local processors, or with --predict-only for remote or profiled ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.api.options import StretchOptions
from nnstretch.cli.stretching.answer import branches_table, designs_table, pruning_table
from nnstretch.errors import UsageError
from nnstretch.report.tables.text import FAR_OFF, clocks_text, ms_text, plain_table, share_text
from nnstretch.support.progress import silent

if TYPE_CHECKING:
    from rich.table import Table

    from nnstretch.branching.design.design import Design
    from nnstretch.branching.stretch import StretchResult
    from nnstretch.cli.console import Reporter
    from nnstretch.cli.models.networks import Network
    from nnstretch.compiler.processors import Processors
    from nnstretch.compiler.profile_files import DesignUncertainty, Profiled
    from nnstretch.compiler.targets.opened import OpenTarget
    from nnstretch.scheduler.costmodel.trees import Errors, Spread


_OTHER_CLOCK = 0.05
"""Deviation of a processor's frequency from the reference frequency from which on both latencies are said."""


@dataclass(frozen=True)
class FoundDesigns:
    """The result of a search.

    Attributes:
        results: designs, best first.
        errors: cross-validated errors of the predictions of unmeasured layers, by processor; None: unknown or none.
        uncertainty: of each design's prediction, where nothing was run; else empty.
        clocks: frequency of each processor after the search, by name, over the reference frequency that predictions hold at;
            empty for processors that are not here.
    """

    results: Sequence[StretchResult]
    errors: Mapping[str, Spread | None]
    uncertainty: Sequence[DesignUncertainty] = ()
    clocks: Mapping[str, float] = field(default_factory=dict)

    def present_ms(self, design: Design) -> float | None:
        """A design's predicted latency if all of it ran at the clock of the slowest processor; None if that is not known."""
        slowest = min(self.clocks.values(), default=None)
        return None if slowest is None or design.predicted_ms is None else design.predicted_ms / slowest


def size_text(network: Network) -> str:
    """Channels, height and width of the images that designs are for."""
    return "×".join(map(str, network.example_input.shape[1:]))


def find(
    report: Reporter,
    network: Network,
    options: StretchOptions,
    profiled: Profiled | None,
    target: OpenTarget | None = None,
) -> FoundDesigns:
    """Searches designs for the processors of a profile or of a target if there is one, else for those of this machine."""
    from nnstretch.api.stretch import stretch, stretch_on
    from nnstretch.compiler.costs import present_clocks
    from nnstretch.compiler.processors import build_processors

    is_said = network.options.image_size is not None
    with report.progress("Searching" if is_said else f"Searching for images of {size_text(network)}") as advance:
        options = replace(options, progress=advance)
        if profiled is not None:
            return predict(network, profiled, options)
        if target is not None:
            results = target.do(lambda: stretch_on(network.module, network.example_input, options, target.processors))
            opened = target.processors
        else:
            results = stretch(network.module, network.example_input, options=options)
            opened = build_processors(options.processors)
        errors = _prediction_errors(opened) if options.learned is not False else {}
        return FoundDesigns(results, errors, clocks={} if target is not None else present_clocks(opened))


def _prediction_errors(opened: Processors) -> dict[str, Spread | None]:
    """Cross-validated errors of learned predictions by processor; None where everything had to be measured."""
    from nnstretch.compiler.costs import latency_predictor

    return _errors_by_name([processor.name for processor in opened.named], latency_predictor(opened).error)


def show(report: Reporter, found: FoundDesigns, names: Sequence[str], profiled: Profiled | None) -> None:
    """Tables of the designs, and notes on what the search left out."""
    search = found.results[0].report
    report.show(pruning_table(search))
    designs = [one.design for one in found.results]
    report.note(search.gain_note(designs[0], names))
    report.show(designs_table(designs, names, search.original_ms, search.measured_ms, search.product_macs))
    report.note(_slow_note(designs, search.measured_ms))
    report.show(branches_table(designs, names, search))
    report.note(_clock_note(found))
    if found.uncertainty:
        report.show(uncertainty_table(found, names))
    for group in sorted(profiled.predictor.unknown_contention_factors) if profiled else ():
        report.note(f"contention of {' and '.join(group)} was not measured; the predictions assume none")
    report.note(search.lifted_note)
    report.note(search.unbranched_note(names))
    for note in search.diagnostics:
        report.note(f"not branched: {note}")
    if search.cut_short:
        report.note(
            f"the time limit ended the search after {len(search.measured_ms)} tuned runs of designs; a longer one may find "
            "a faster design"
        )
    if search.recalled:
        report.note(_recalled_note(search.measured_ms))
    if search.unpredicted:
        operators = ", ".join(name.removeprefix("torch/") for name in search.unpredicted)
        report.note(f"operations that the predictions leave out, and runs of designs include: {operators}")
    for name, error in found.errors.items():
        if error or found.uncertainty:  # without errors, a search on open processors has measured every layer
            report.note(f"{name}: predictions of layers that were not measured miss by {error or 'an unknown amount'}")


def _recalled_note(measured: Mapping[str, float]) -> str:
    """Says that no design ran, because designs ran in the same search before, and what the fastest of them took."""
    fastest = min(measured, key=lambda name: measured[name], default="")
    took = f" (the fastest is {fastest} with {ms_text(measured[fastest])} ms)" if fastest else ""
    return f"branches are balanced by the runs of designs in the same search before{took}; --fresh runs designs again"


def _slow_note(designs: Sequence[Design], measured: Mapping[str, float]) -> str:
    """What to do if a design took much longer than predicted; "" if none did."""
    predicted = {design.id: design.predicted_ms or math.inf for design in designs}
    if all(ms <= FAR_OFF * predicted.get(name, math.inf) for name, ms in measured.items()):
        return ""
    return (
        "a design took much longer than predicted: either the machine was disturbed, or its layers are slow together; search "
        "again on a quiet machine, with --fresh"
    )


def _clock_note(found: FoundDesigns) -> str:
    """What the first design takes at the present clock; "" if that is about the reference frequency."""
    ms = found.present_ms(found.results[0].design)
    if ms is None or all(abs(clock - 1) <= _OTHER_CLOCK for clock in found.clocks.values()):
        return ""
    return (
        "predictions hold at the reference frequency; the processors run at another one now "
        f"({clocks_text(found.clocks)} of it), at which the first design takes about {ms_text(ms)} ms"
    )


def opened_profiles(file: Path | None, processors: str) -> Profiled:
    """The processors of a profile file, or those that this machine's store knows.

    Raises:
        NNStretchError: the file cannot be read, or does not have them.
    """
    from nnstretch.compiler.profile_files import open_profiles
    from nnstretch.scheduler.measurement.store.store import ProfileStore

    if "sim:" in processors:
        raise UsageError(
            f"--processors {processors}: simulated processors are always predicted only, from their profile; leave out "
            "--predict-only"
        )
    return open_profiles(ProfileStore().path if file is None else file, processors)


def predict(network: Network, profiled: Profiled, options: StretchOptions) -> FoundDesigns:
    """Searches designs without running anything.

    Raises:
        DesignError: the network cannot be branched, or nothing is within the limits.
        DeviceError: too little was measured.
        MissingExtraError: layers must be estimated, and xgboost is not installed.
    """
    from nnstretch.branching.design.accounting import working_set
    from nnstretch.branching.design.blueprint import blueprint
    from nnstretch.branching.design.design import parse_merge
    from nnstretch.branching.search.options import SearchOptions
    from nnstretch.branching.stretch import stretch
    from nnstretch.compiler.profile_files import design_uncertainty

    progress = options.progress or silent
    progress(0, 0, "tracing the network")
    prepared = blueprint(network.module, network.example_input, profiled.block, parse_merge(options.merge))
    count = len(profiled.names)
    predictor = profiled.predictor.in_network(working_set(network.module, network.example_input))
    limits = options.search_limits()
    wanted = SearchOptions(
        count,
        limits,
        options.designs,
        options.pareto,
        best_effort=options.best_effort,
        even_if_slower=options.even_if_slower,
        progress=progress,
    )
    results = stretch(prepared, predictor, wanted)
    uncertainty = [design_uncertainty(prepared, one.design, one.prediction, predictor, count) for one in results]
    estimated = any(one.layers for one in uncertainty)
    errors = _errors_by_name(profiled.names, profiled.predictor.error) if estimated else {}
    return FoundDesigns(results, errors, uncertainty)


def _errors_by_name(names: Sequence[str], error: Callable[[int], Errors | None]) -> dict[str, Spread | None]:
    """Cross-validated errors by processor; None where nothing could be learned. `error` is asked by number."""
    errors = map(error, range(len(names)))
    return {name: found.all if found else None for name, found in zip(names, errors, strict=True)}


def uncertainty_table(predicted: FoundDesigns, names: Sequence[str]) -> Table:
    """A row per design, and one per branch of the best one."""
    shown = plain_table("predicted", "on", ">ms", "may be off by", ">guessed")
    for result, uncertainty in zip(predicted.results, predicted.uncertainty, strict=True):
        ms = ms_text(1e3 * result.prediction.seconds)
        shown.add_row(result.design.id, "all", ms, str(uncertainty.whole), share_text(uncertainty.whole.guessed))
    best, uncertainty = predicted.results[0], predicted.uncertainty[0]
    for number, (part, some) in enumerate(zip(best.prediction.segments, uncertainty.branches, strict=True)):
        for branch, uncertain in zip(part.branches, some, strict=True):
            ms = ms_text(1e3 * branch.alone)
            shown.add_row(
                f"segment {number}", names[branch.processor], ms, str(uncertain), share_text(uncertain.guessed)
            )
    shown.caption = (
        "may be off by: cross-validated errors of layers estimated from others, assuming they do not cancel; guessed: share "
        "of the time in such layers; segments are those of the first design, alone on their processors"
    )
    return shown


def uncertainty_object(predicted: FoundDesigns, names: Sequence[str]) -> dict[str, Any]:
    """What `--json` prints beside the designs."""
    layers = dict.fromkeys(layer for uncertainty in predicted.uncertainty for layer in uncertainty.layers)
    return {
        "errors": {
            result.design.id: {
                "whole": asdict(uncertainty.whole),
                "branches": [
                    {"segment": number, "processor": names[branch.processor], **asdict(uncertain)}
                    for number, (part, some) in enumerate(
                        zip(result.prediction.segments, uncertainty.branches, strict=True)
                    )
                    for branch, uncertain in zip(part.branches, some, strict=True)
                ],
            }
            for result, uncertainty in zip(predicted.results, predicted.uncertainty, strict=True)
        },
        "guessed_layers": [{"processor": names[number], "layer": layer} for number, layer in layers],
    }
