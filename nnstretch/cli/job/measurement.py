"""The measurement of a job (`transform_and_train`): the chosen design beside its alternatives, and the products for users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.cli.job.stages import Answer
from nnstretch.support.measures import Measure

if TYPE_CHECKING:
    import onnx_ir as ir

    from nnstretch.bench.ablation.result import Ablation
    from nnstretch.branching.design.design import Design
    from nnstretch.cli.console import Reporter
    from nnstretch.cli.job.transform_options import TransformOptions
    from nnstretch.scheduler.runtime.session import PlanSession

_PRECISION = 0.02  # of measured latencies, where a quiet machine allows it


@dataclass(frozen=True)
class Measured:
    """What is measured.

    Attributes:
        graphs: of the "original", the "control" and the "branched" network.
        measure: of the scores.
        scores: of these networks on the test images, in percent.
        design: the branched network's.
        unbranched: why the network is the original, without branches; None if it is branched.
        histories: network -> its training, epoch by epoch.
    """

    graphs: Mapping[str, ir.Model]
    measure: Measure
    scores: Mapping[str, float]
    design: Design
    unbranched: str | None
    histories: Mapping[str, Sequence[Mapping[str, Any]]]


def measure(options: TransformOptions, measured: Measured, folder: Path, report: Reporter) -> Answer:
    """Measures, and writes package, ONNX file, timeline and report to a folder; returns the comparison."""
    from nnstretch.bench.ablation.answer import comparison_answer
    from nnstretch.bench.timing import describe_machine
    from nnstretch.devices.base.spec import usable_cores
    from nnstretch.report.tables.ablation import ablation_table

    found = _compared(options, measured, folder / "branched.nns", report)
    name = Path(options.model).name
    answer = comparison_answer(
        name,
        found,
        measured.design,
        describe_machine(usable_cores()),
        unbranched=measured.unbranched,
        histories=measured.histories,
    )
    _write(measured, found, answer, folder)
    report.show(ablation_table(found))
    return answer


def _compared(options: TransformOptions, measured: Measured, package: Path, report: Reporter) -> Ablation:
    """The comparison; the branched network's session is saved as a package."""
    from nnstretch.bench.ablation.ablation import ablate
    from nnstretch.bench.timing import MeasurementOptions, TimingOptions
    from nnstretch.compiler.pool import place_without_branches
    from nnstretch.devices.base.spec import parse_processors

    def keep(session: PlanSession) -> None:
        about = {"name": f"branched {Path(options.model).name}", measured.measure.key: measured.scores["branched"]}
        session.save(package, about)

    design, processors = measured.design, parse_processors(options.processors)
    with report.progress("Measuring") as advance:
        return ablate(
            measured.graphs["original"],
            measured.graphs["control"],
            measured.graphs["branched"],
            options.processors,
            scores=measured.scores,
            measure=measured.measure,
            design=design,
            unbranched_on=None if design.meeting_points else place_without_branches(design, processors),
            options=MeasurementOptions(
                TimingOptions(turn=options.turn, precision=_PRECISION), coordinate_descent=options.coordinate_descent
            ),
            progress=advance,
            keep=keep,
        )


def _write(measured: Measured, found: Ablation, answer: Answer, folder: Path) -> None:
    """Writes the branched network and its design, a traced run, and the report."""
    from nnstretch.branching.design.design import save_design
    from nnstretch.frontends.onnx_file import save
    from nnstretch.report.charts.timeline import timeline_svg
    from nnstretch.report.documents.branching import branching_document
    from nnstretch.report.documents.writers import write
    from nnstretch.support.settings import write_text

    save(measured.graphs["branched"].clone(), folder / "branched.onnx")
    save_design(measured.design, folder / "design.json")
    write_text(folder / "timeline.json", found.timeline.to_chrome_json())
    write_text(folder / "timeline.svg", timeline_svg(found.timeline))
    write(branching_document(answer), folder / "report.html")
