"""The ablation of a branching: a design beside its alternatives, and designs without branches."""

import os
import re
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir
import pytest
import torch

from nnstretch.api.options import CompileOptions
from nnstretch.bench.ablation.ablation import ablate
from nnstretch.bench.ablation.answer import comparison_answer
from nnstretch.bench.ablation.result import PLACED, SPLIT
from nnstretch.bench.timing import (
    MeasurementOptions,
    TimingOptions,
    describe_machine,
    perfect_split,
)
from nnstretch.branching.design.blueprint import BranchChoice, SegmentChoice, blueprint
from nnstretch.branching.design.design import BranchDesign, Design, SegmentDesign
from nnstretch.branching.design.from_choices import make_design
from nnstretch.branching.transform.build import build
from nnstretch.branching.transform.control import single_branch_control
from nnstretch.branching.transform.network import export_branched
from nnstretch.compiler.pool import place_without_branches
from nnstretch.devices.base.spec import ProcessorSpec, all_cores, default_cores, format_cores, parse_processors
from nnstretch.errors import UsageError
from nnstretch.frontends.torch_module import export
from nnstretch.report.documents.branching import branching_document
from nnstretch.report.tables.ablation import branch_cells, prediction_text
from nnstretch.report.tables.text import ms_text
from nnstretch.scheduler.measurement.runner.runner import Runner
from nnstretch.scheduler.placement import joint
from nnstretch.scheduler.runtime.session import PlanSession
from nnstretch.support.progress import Progress
from tests.kits.networks.two_stages import IMAGE, two_stages

CORES = tuple(sorted(os.sched_getaffinity(0)))
UNTUNED = CompileOptions(tune=False)
TWO_CORES = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")


def networks(graph: ir.Model) -> tuple[Design, tuple[ir.Model, ir.Model, ir.Model]]:
    """A design of two half-width branches per stage; original, control and branched network."""
    module, image = two_stages(), torch.zeros(IMAGE)
    plan = blueprint(module, image)
    choices = [
        SegmentChoice(stage, tuple(BranchChoice(processor, tuple(stage.blocks), 0.5) for processor in (0, 1)))
        for stage in plan.traced.stages
    ]
    design = make_design(plan, choices)
    control = single_branch_control(module, image, design.macs)
    return design, (graph, export(control, image), export_branched(build(plan, design), image))


def with_predictions(design: Design) -> Design:
    """The design with a prediction for every branch, another one for each."""
    segments = tuple(
        replace(
            segment,
            branches=tuple(
                replace(branch, predicted_ms=1.0 + number + place / 10) for place, branch in enumerate(segment.branches)
            ),
        )
        for number, segment in enumerate(design.segments)
    )
    return replace(design, segments=segments, predicted_ms=2.5)


@TWO_CORES
def test_ablation_of_a_branched_network(graph: ir.Model, tmp_path: Path) -> None:
    design, models = networks(graph)
    design = with_predictions(design)
    processors = f"cpu:{CORES[0]},cpu:{CORES[1]}"
    events: list[tuple[int, int, str]] = []
    kept: list[int] = []

    def keep(session: PlanSession) -> None:
        session.save(tmp_path / "measured.nns")
        kept.append(len(session.plan.queues))

    ablation = ablate(
        *models,
        processors,
        scores={"branched": 91.5},
        design=design,
        keep=keep,
        options=MeasurementOptions(TimingOptions(rounds=3, turn=0.01), compiling=UNTUNED),
        progress=lambda *event: events.append(event),
    )
    assert kept == [2]
    assert (tmp_path / "measured.nns").stat().st_size > 0
    names = processors.split(",")
    split = {row.network: row.how for row in ablation.rows if "layer" in row.how or "placed" in row.how}
    assert [(row.network, row.how) for row in ablation.rows] == [
        ("original", "alone"),
        ("original", "alone"),
        ("original", "all CPU cores"),
        ("original", split["original"]),
        ("original", "ONNX Runtime"),
        ("branched", "concurrent"),
        ("branched", "one after another"),
        ("control", "alone"),
        ("control", "alone"),
        ("control", "all CPU cores"),
        ("control", split["control"]),
        ("control", "ONNX Runtime"),
        ("control", "perfect split, a bound"),
    ]
    assert all(re.fullmatch(r"split layer by layer|placed on .* alone", how) for how in split.values())
    assert list(ablation.original_ms) == list(ablation.control_ms) == names
    assert ablation.max_rel_error is not None
    assert ablation.max_rel_error < 1e-4
    assert {row.macs for row in ablation.rows if row.network == "branched"} == {design.macs}
    assert {row.parameters for row in ablation.rows if row.network == "branched"} == {design.params}
    assert {row.score for row in ablation.rows if row.network != "branched"} == {None}
    control_macs = next(row.macs for row in ablation.rows if row.network == "control")
    assert control_macs == pytest.approx(design.macs, rel=0.02)
    assert len(ablation.timeline.queues) == 2
    answer = ablation.to_json()
    assert answer["speedup"] == pytest.approx(min(answer["original_ms"].values()) / answer["branched_ms"], rel=1e-3)
    equal = min(answer["control_ms"].values()) / answer["branched_ms"]
    assert answer["speedup_equal_macs"] == pytest.approx(equal, rel=1e-3)
    others = [*answer["original_ms"].values(), *answer["control_ms"].values()]
    others += [answer["onnxruntime_ms"], answer["control_onnxruntime_ms"]]
    others += [answer[f"{network}_{how}_ms"] for network in ("original", "control") for how in ("all_cores", "split")]
    best = answer["best_alternative"]
    assert best["p50_ms"] == min(others)
    assert best["network"] != "branched"
    assert answer["speedup_best_alternative"] == pytest.approx(best["p50_ms"] / answer["branched_ms"], rel=1e-3)
    low, high = answer["intervals"]["speedup_best_alternative"]
    assert low <= high
    assert {"control_split_ms", "control_all_cores_ms", "original_split_ms"} <= answer["intervals"].keys()
    assert answer["perfect_split_ms"] == pytest.approx(perfect_split(list(answer["control_ms"].values())), rel=1e-3)
    assert any("round 3 of 3" in what for _, _, what in events)
    wanted = [branch.predicted_ms for segment in design.segments for branch in segment.branches]
    assert [branch["predicted_ms"] for branch in answer["branches"]] == wanted
    assert [branch_cells(branch)[2] for branch in ablation.branches] == [ms_text(ms) for ms in wanted]
    assert all(branch.error == branch.time.alone_ms / (branch.predicted_ms or 0) - 1 for branch in ablation.branches)
    assert "the whole: predicted 2.500 ms" in prediction_text(ablation)


@TWO_CORES
@pytest.mark.parametrize("pays", [True, False])
def test_a_row_says_whether_its_layers_were_split(pays: bool, graph: ir.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan of the scheduler is timed, whatever it decides."""
    processors = [f"cpu:{core}" for core in CORES[:2]]
    monkeypatch.setattr(joint, "_MARGIN", -10.0 if pays else 10.0)
    sessions: list[PlanSession] = []

    class Recording(MeasurementOptions):
        def session(
            self, graph: ir.Model, processors: str, progress: Progress, runner: Runner | None = None
        ) -> PlanSession:
            sessions.append(super().session(graph, processors, progress, runner))
            return sessions[-1]

    _, models = networks(graph)
    options = Recording(TimingOptions(rounds=1, turn=0.001), compiling=UNTUNED)
    ablation = ablate(*models, ",".join(processors), options=options)
    found = {row.how for row in ablation.rows if row.how.startswith(("split", "placed"))}
    reports = [s.compiled.placement for s in sessions if s.compiled.placement is not None]
    assert len(reports) == 2
    assert {report.pays for report in reports} == {pays}
    assert found <= ({SPLIT} if pays else {f"placed on {name} alone" for name in processors})
    assert ablation.control_split_ms > 0
    assert not ablation.intervals  # one round says nothing of them
    assert {row.interval_ms for row in ablation.rows} == {None}


@TWO_CORES
def test_a_processor_of_all_cores_has_one_row(graph: ir.Model) -> None:
    _, models = networks(graph)
    everything = f"cpu:{format_cores(default_cores())}"
    options = MeasurementOptions(TimingOptions(rounds=3, turn=0.001), compiling=UNTUNED)
    ablation = ablate(*models, f"{everything},cpu", options=options)
    assert "all CPU cores" not in {row.how for row in ablation.rows}
    assert ablation.control_all_cores_ms == ablation.control_ms[everything]
    assert ablation.original_all_cores_ms == ablation.original_ms[everything]
    assert "control_all_cores_ms" in ablation.intervals


@pytest.mark.parametrize("place", ["alone", "pool", "several"])
def test_a_network_without_branches_runs_where_it_is_predicted_to(place: str, graph: ir.Model) -> None:
    """Table, answer and page of a design without branches name the processors of its plan, and no run that it does not have."""
    design, (original, control, _) = networks(graph)
    specs = parse_processors(f"cpu:{CORES[0]},cpu")  # on a single core, both share it
    processors = ",".join(map(str, specs))
    branch = BranchDesign(0 if place == "pool" else 1, (0,), 1.0, 1.0, 32, design.original_macs)
    whole = SegmentDesign(0, 1, (branch,), (0, 1) if place == "several" else ())
    made = replace(design, segments=(whole,), macs=design.original_macs, pool=place == "pool")
    where = place_without_branches(made, specs)
    both = f"cpu:{format_cores(all_cores(specs))}"
    assert where == {"alone": str(specs[1]), "pool": both, "several": processors}[place]
    kept: list[tuple[str, ...]] = []
    options = MeasurementOptions(TimingOptions(rounds=1, turn=0.001), compiling=UNTUNED)
    ablation = ablate(
        original, control, original, processors, design=made, unbranched_on=where, options=options,
        keep=lambda session: kept.append(tuple(queue.processor for queue in session.plan.queues)),
    )  # fmt: skip
    rows = [row for row in ablation.rows if row.network == "branched"]
    assert {row.processors for row in rows} == {where}
    assert "concurrent" not in {row.how for row in rows}
    assert len(rows) == (2 if place == "several" else 1)
    assert kept[0] == ablation.timeline.queues
    if place == "several":
        assert re.fullmatch(r"split layer by layer|placed on .* alone", rows[0].how)
    else:
        is_alone = where in map(str, specs) or where != f"cpu:{format_cores(default_cores())}"
        assert rows[0].how == ("alone" if is_alone else "all CPU cores")
        assert kept == [tuple(map(str, parse_processors(where)))]
        assert ablation.branched_serial_ms == ablation.branched_ms
    assert not ablation.branches
    answer = comparison_answer("net", ablation, made, describe_machine(CORES), unbranched="why")
    document = branching_document(answer)
    named = f"{rows[0].how}, {'of' if rows[0].how.startswith(PLACED) else 'on'} {where}"
    assert f"the original network, {named}." in document.lead
    titles = [section.title for section in document.sections]
    assert ("The same steps, one after another" in titles) == (place == "several")
    assert any(meaning.startswith(f"not branched, {named}") for _, meaning in document.headline)
    shown = next(section for section in document.sections if section.title == "The network").panel
    assert shown is not None
    legend = {name for name in {both, *map(str, specs)} if f">{name}<" in "".join(shown[1])}
    assert legend == set(where.split(","))


def test_a_design_without_branches_is_refused_on_other_processors(graph: ir.Model) -> None:
    design, _ = networks(graph)
    branch = BranchDesign(2, (0,), 1.0, 1.0, 32, 1)
    made = replace(design, segments=(SegmentDesign(0, 1, (branch,)),))
    with pytest.raises(UsageError, match=r"is for 3 processors, and cpu:0 was given"):
        place_without_branches(made, [ProcessorSpec("cpu", cores=(0,))])
    pooled = replace(made, segments=(SegmentDesign(0, 1, (replace(branch, processor=0),)),), pool=True)
    with pytest.raises(UsageError, match=r"is for CPU cores, and opencl:0 was given"):
        place_without_branches(pooled, [ProcessorSpec("opencl")])


def test_ablation_needs_two_processors(graph: ir.Model) -> None:
    with pytest.raises(UsageError, match="names 1"):
        ablate(graph, graph, graph, f"cpu:{CORES[0]}")
