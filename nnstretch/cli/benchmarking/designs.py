"""`nnstretch bench --design`: a branched network beside its alternatives, measured here or simulated from a profile."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.cli.benchmarking.engine_comparison import write_answer
from nnstretch.cli.console import Reporter
from nnstretch.cli.outputs import note_written
from nnstretch.errors import UsageError
from nnstretch.report.tables.text import count_text
from nnstretch.support.measures import MEASURES, TOP1, Measure

if TYPE_CHECKING:
    import onnx_ir as ir

    from nnstretch.bench.ablation.result import Ablation
    from nnstretch.bench.design_throughput import DesignThroughput, ThroughputGoal
    from nnstretch.bench.timing import MeasurementOptions
    from nnstretch.branching.design.design import Design
    from nnstretch.cli.models.networks import Network
    from nnstretch.support.progress import Progress


@dataclass(frozen=True)
class DesignComparison:
    """The networks of a comparison, and how they are compared.

    Attributes:
        model: the original, as it was named.
        original, branched: the networks.
        processors: one branch runs on each.
        simulated: whether the processors are those of a profile.
        measuring: how runs are timed; what it says of compiling holds for simulated runs, too.
    """

    model: str
    original: Network
    branched: Network
    processors: str
    simulated: bool
    measuring: MeasurementOptions

    @property
    def design(self) -> Design:
        """The branched network's."""
        assert self.branched.design is not None
        return self.branched.design

    @property
    def is_for_these_images(self) -> bool:
        """Whether the design was made for the original's MACs, so that its predictions hold."""
        return self.original.macs == self.design.original_macs

    def compare(self, report: Reporter, outputs: Sequence[Path]) -> None:
        """Compares, shows and writes the result.

        Raises:
            DesignError: no control can be made, or the design is for other processors.
            DeviceError: a processor does not work, or its profile has no rate for a layer.
            FileError: an output cannot be written.
        """
        from nnstretch.bench.ablation.answer import comparison_answer

        self._note_other_images(report)
        with report.progress("Comparing") as advance:
            found = self._compared(advance)
        why = "its design has no branches" if self.design.is_original else None
        answer = comparison_answer(Path(self.model).name, found, self.design, self._machine(), unbranched=why)
        written = write_answer(outputs, answer)
        _show(report, found, self.design)
        note_written(report, written)
        report.finish(answer)

    def compare_streams(self, report: Reporter, goal: ThroughputGoal, outputs: Sequence[Path], file: Path) -> None:
        """Compares images per second with inputs in flight; shows and writes the result, and says what to run.

        Args:
            report: shows it.
            goal: inputs in flight, and their latency limit.
            outputs: files to write.
            file: the design's.

        Raises:
            DesignError: no control can be made, or the design is for other processors.
            DeviceError: a processor does not work.
            FileError: an output cannot be written.
            UsageError: the design has no branches, or the processors are simulated.
        """
        from nnstretch.bench.design_throughput import measure_design_throughput
        from nnstretch.report.tables.design_throughput import design_throughput_table

        if not self.design.meeting_points:
            raise UsageError(
                f"design {self.design.id} has no branches; compare the network's own ways with "
                f"`nnstretch bench {self.model} --streams {goal.streams}`"
            )
        self._note_other_images(report)
        graphs = dict(zip(("original", "control", "branched"), self._graphs(), strict=True))
        with report.progress("Comparing") as advance:
            found = measure_design_throughput(
                Path(self.model).name, graphs, self.processors, goal, self.measuring, advance
            )
        answer = {
            **found.to_json(),
            "machine": self._machine(),
            "design": json.loads(self.design.to_json()),
        }
        written = write_answer(outputs, answer)
        report.show(design_throughput_table(found))
        self._advise(report, found, file)
        note_written(report, written)
        report.finish(answer)

    def _advise(self, report: Reporter, found: DesignThroughput, file: Path) -> None:
        """Says which network gives the most images per second, and the commands that run it."""
        best = found.best
        if best is None or best.rate.arrangement is None:
            return
        streams = best.rate.arrangement.streams
        if best.network == "control":
            report.note(
                "a network of the same MACs without branches gives the most images per second: scale the original in width, "
                f"and run it with --streams {streams}"
            )
            return
        copies = f"whole copies of the {best.network} network, {best.rate.how}, give"
        what = f"the branches, {best.rate.how}, give" if best.is_branched else copies
        report.note(f"{what} the most images per second:")
        model = self.model if best.network == "original" else f"{self.model} --design {file}"
        if not best.is_branched:
            report.command(f"nnstretch run {model} -p {self.processors} --streams {streams}")
            return
        package = f"{file.stem}.nns"  # has the plan in which branches meet; `run` of a model may choose whole copies
        report.command(f"nnstretch compile {model} -p {self.processors} -o {package}")
        report.command(f"nnstretch run {package}" + (f" --streams {streams}" if streams > 1 else ""))

    def _note_other_images(self, report: Reporter) -> None:
        """Says that predictions do not hold if the design was made for other images."""
        if not self.is_for_these_images:
            report.note(
                f"the design was made for {count_text(self.design.original_macs)} MACs, the network has "
                f"{count_text(self.original.macs)}: the input or head differs (see --image-size), so the predictions do not "
                "apply"
            )

    def _compared(self, progress: Progress) -> Ablation:
        from nnstretch.bench.ablation.ablation import ablate
        from nnstretch.bench.ablation.simulation import simulate_ablation
        from nnstretch.compiler.pool import place_without_branches
        from nnstretch.devices.base.spec import parse_processors

        design = self.design
        specs = parse_processors(self.processors)
        common: dict[str, Any] = {
            "scores": self._scores(measure := self._measure),
            "measure": measure,
            "design": design if self.is_for_these_images else None,
            "unbranched_on": None if design.meeting_points else place_without_branches(design, specs),
            "progress": progress,
        }
        graphs = self._graphs()
        if self.simulated:
            return simulate_ablation(*graphs, self.processors, options=self.measuring.compiling, **common)
        return ablate(*graphs, self.processors, options=self.measuring, **common)

    def _graphs(self) -> tuple[ir.Model, ir.Model, ir.Model]:
        """Original, control and branched network."""
        from nnstretch.branching.transform.control import single_branch_control
        from nnstretch.frontends.torch_module import export

        original, branched = self.original, self.branched
        control = single_branch_control(original.module, original.example_input, branched.macs, self.design.multiple)
        return original.export(), export(control, original.example_input), branched.export()

    @property
    def _measure(self) -> Measure:
        """That of the weights; top-1 where they say none."""
        said = {*self.original.about, *self.branched.about}
        return next((one for one in MEASURES if one.key in said), TOP1)

    def _scores(self, measure: Measure) -> dict[str, float]:
        """The measure in percent by network, where weights say it."""
        found = {
            "original": self.original.about.get(measure.key),
            "branched": None if self.branched.inherits else self.branched.about.get(measure.key),
        }
        return {name: float(value) for name, value in found.items() if value is not None}

    def _machine(self) -> dict[str, Any] | None:
        """What was measured on; None if nothing was."""
        from nnstretch.bench.timing import describe_machine
        from nnstretch.devices.base.spec import usable_cores

        return None if self.simulated else describe_machine(usable_cores())


def _show(report: Reporter, found: Ablation, design: Design) -> None:
    """Tables and notes of a comparison."""
    from nnstretch.report.tables.ablation import ablation_table, branches_table, causes_table, where_text
    from nnstretch.report.tables.runs import idle_text

    report.show(ablation_table(found), causes_table(found))
    if found.branches:
        report.show(branches_table(found))
    if design.is_original:
        report.note(f"the design has no branches: “branched” is the original network, {where_text(found)}")
    report.note(idle_text(found.idle))
    if found.onnxruntime_error:
        report.note(f"ONNX Runtime failed: {found.onnxruntime_error}")
