"""`nnstretch stretch --predict-only`: branchings for remote or profiled processors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.api.options import StretchOptions
from nnstretch.errors import UsageError
from nnstretch.support.progress import silent

if TYPE_CHECKING:
    from rich.table import Table

    from nnstretch.branching.stretch import StretchResult
    from nnstretch.cli.networks import Network
    from nnstretch.latency.profile_files import Profiled
    from nnstretch.latency.uncertainty import DesignUncertainty
    from nnstretch.scheduler.costmodel.trees import Errors, Spread


@dataclass(frozen=True)
class PredictedDesigns:
    """Designs found without running anything, fastest first, with their prediction uncertainty."""

    results: Sequence[StretchResult]
    uncertainty: Sequence[DesignUncertainty]


def opened_profiles(file: Path | None, processors: str) -> Profiled:
    """The processors of a profile file, or those that this machine's store knows.

    Raises:
        NNStretchError: the file cannot be read, or does not have them.
    """
    from nnstretch.latency.profile_files import open_profiles
    from nnstretch.scheduler.measurement.store.store import ProfileStore

    if "sim:" in processors:
        raise UsageError(
            f"--processors {processors}: simulated processors are always predicted only, from their profile; leave out "
            "--predict-only"
        )
    return open_profiles(ProfileStore().path if file is None else file, processors)


def predict(network: Network, profiled: Profiled, options: StretchOptions) -> PredictedDesigns:
    """Searches designs without running anything.

    Raises:
        DesignError: the network cannot be branched, or nothing is within the limits.
        DeviceError: too little was measured.
        MissingExtraError: layers must be estimated, and xgboost is not installed.
    """
    from nnstretch.branching.design.accounting import working_set
    from nnstretch.branching.design.blueprint import blueprint
    from nnstretch.branching.design.design import parse_merge
    from nnstretch.branching.search.search import search_blueprint
    from nnstretch.branching.stretch import StretchResult
    from nnstretch.branching.transform.build import build
    from nnstretch.latency.uncertainty import design_uncertainty

    progress = options.progress or silent
    progress(0, 0, "tracing the network")
    prepared = blueprint(network.module, network.example_input, profiled.block, parse_merge(options.merge))
    count = len(profiled.names)
    predictor = profiled.predictor.in_network(working_set(network.module, network.example_input))
    found, report = search_blueprint(
        prepared,
        predictor,
        count,
        options.search_limits(),
        designs=options.designs,
        pareto=options.pareto,
        progress=progress,
    )
    results = [StretchResult(design, build(prepared, design), report) for design in found]
    uncertainty = [design_uncertainty(prepared, one.design, one.prediction, predictor, count) for one in results]
    return PredictedDesigns(results, uncertainty)


def predicted_errors(predicted: PredictedDesigns, profiled: Profiled) -> dict[str, Spread | None]:
    """Cross-validated errors of estimated layers by processor; empty if all layers were measured."""
    if not any(uncertainty.layers for uncertainty in predicted.uncertainty):
        return {}
    return errors_by_name(profiled.names, profiled.predictor.error)


def errors_by_name(names: Sequence[str], error: Callable[[int], Errors | None]) -> dict[str, Spread | None]:
    """Cross-validated errors by processor; None where nothing could be learned. `error` is asked by number."""
    errors = map(error, range(len(names)))
    return {name: found.all if found else None for name, found in zip(names, errors, strict=True)}


def uncertainty_table(predicted: PredictedDesigns, names: Sequence[str]) -> Table:
    """A row per design, and one per branch of the best one."""
    from nnstretch.report.tables.text import ms_text, plain_table, share_text

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
    shown.caption_justify = "left"
    return shown


def uncertainty_object(predicted: PredictedDesigns, names: Sequence[str]) -> dict[str, Any]:
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
