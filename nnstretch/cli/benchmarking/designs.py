"""`nnstretch bench --design`: a branched network beside its alternatives, measured here or simulated from a profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.cli.benchmarking.engine_comparison import write_answer
from nnstretch.cli.console import Reporter
from nnstretch.cli.outputs import note_written
from nnstretch.report.tables.text import count_text
from nnstretch.support.measures import MEASURES, TOP1, Measure

if TYPE_CHECKING:
    import onnx_ir as ir

    from nnstretch.bench.ablation.result import Ablation
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

        if not self.is_for_these_images:
            report.note(
                f"the design was made for {count_text(self.design.original_macs)} MACs, the network has "
                f"{count_text(self.original.macs)}: the input or head differs (see --image-size), so the predictions do not "
                "apply"
            )
        with report.progress("Comparing") as advance:
            found = self._compared(advance)
        why = "its design has no branches" if self.design.is_original else None
        answer = comparison_answer(Path(self.model).name, found, self.design, self._machine(), unbranched=why)
        written = write_answer(outputs, answer)
        _show(report, found, self.design)
        note_written(report, written)
        report.finish(answer)

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
