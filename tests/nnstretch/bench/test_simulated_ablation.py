"""The equal-MACs comparison on processors of a profile: its figures, and what the table and the page say of them."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import onnx_ir as ir
import pytest
import torch
from rich.console import Console

from nnstretch.bench.ablation.answer import comparison_answer
from nnstretch.bench.ablation.result import Ablation, SimulatedSource
from nnstretch.bench.ablation.simulation import simulate_ablation, simulated_source
from nnstretch.branching.design.blueprint import BranchChoice, SegmentChoice, blueprint
from nnstretch.branching.design.design import BranchDesign, Design, SegmentDesign
from nnstretch.branching.design.from_choices import make_design
from nnstretch.branching.transform.build import build
from nnstretch.branching.transform.control import single_branch_control
from nnstretch.branching.transform.network import export_branched
from nnstretch.compiler.pool import place_without_branches
from nnstretch.devices.base.spec import parse_processors
from nnstretch.devices.simulated.processor import layer_seconds
from nnstretch.devices.simulated.profile import ProcessorProfile, SocProfile, load_profile, save_profile
from nnstretch.errors import DeviceError, UsageError
from nnstretch.frontends.torch_module import export
from nnstretch.graph.layers import layers
from nnstretch.passes import optimize
from nnstretch.report.documents.branching import branching_document
from nnstretch.report.documents.writers import html
from nnstretch.report.tables.ablation import ablation_table, causes_table
from nnstretch.scheduler.simulation.costs import costs_nothing
from tests.kits.networks.two_stages import IMAGE, two_stages

PHONE = ("sim:phone/cpu", "sim:phone/gpu")
Networks = tuple[Design, tuple[ir.Model, ir.Model, ir.Model]]


def branched_networks(graph: ir.Model, processors: int = 2) -> Networks:
    """A design of half-width branches, one per processor, and original, control and branched network."""
    module, image = two_stages(), torch.zeros(IMAGE)
    plan = blueprint(module, image)
    choices = [
        SegmentChoice(stage, tuple(BranchChoice(number, tuple(stage.blocks), 0.5) for number in range(processors)))
        for stage in plan.traced.stages
    ]
    design = make_design(plan, choices)
    control = single_branch_control(module, image, design.macs)
    return design, (graph, export(control, image), export_branched(build(plan, design), image))


@pytest.fixture(scope="module")
def networks(graph: ir.Model) -> Networks:
    return branched_networks(graph)


@pytest.fixture(scope="module")
def found(networks: Networks) -> Ablation:
    design, graphs = networks
    return simulate_ablation(*graphs, ",".join(PHONE), design=design, scores={"original": 90.0})


def alone_ms(soc: SocProfile, profile: ProcessorProfile, graph: ir.Model) -> float:
    """Milliseconds of all layers one after another, by the profile."""
    every = [node.layer for node in layers(optimize(graph))]
    return 1e3 * sum(layer_seconds(profile, layer, soc.element_bytes) for layer in every if not costs_nothing(layer))


def test_all_ways_that_a_profile_has_are_rows(found: Ablation) -> None:
    assert [(row.network, row.processors) for row in found.rows] == [
        *(("original", where) for where in (*PHONE, ",".join(PHONE))),
        *[("branched", ",".join(PHONE))] * 2,
        *(("control", where) for where in (*PHONE, ",".join(PHONE))),
        ("control", ",".join(PHONE)),
    ]
    assert [row.how for row in found.rows if row.network == "branched"] == ["concurrent", "one after another"]
    assert [row.is_bound for row in found.rows] == [False] * 8 + [True]
    assert {row.latency for row in found.rows} == {None}
    assert {row.score for row in found.rows if row.network == "original"} == {90.0}


def test_latencies_are_those_of_the_profile(found: Ablation, networks: Networks) -> None:
    soc, (original, control, _) = load_profile("phone"), networks[1]
    for name, part in zip(PHONE, ("cpu", "gpu"), strict=True):
        profile = soc.processors[part]
        assert found.original_ms[name] == pytest.approx(alone_ms(soc, profile, original), rel=1e-4)
        assert found.control_ms[name] == pytest.approx(alone_ms(soc, profile, control), rel=1e-4)
    # Branches wait for each other, and for transfers; they do not wait for what another branch computes meanwhile.
    spans = [sum(branch.time.alone_ms for branch in found.branches if branch.time.processor == name) for name in PHONE]
    assert max(spans) < found.branched_ms < found.branched_serial_ms
    assert found.branched_serial_ms > sum(spans)
    assert found.original_split_ms <= min(found.original_ms.values())
    assert found.perfect_split_ms == pytest.approx(1 / sum(1 / ms for ms in found.control_ms.values()))
    assert found.speedup_equal_macs == min(found.control_ms.values()) / found.branched_ms


def test_causes_add_up_to_the_latency(found: Ablation) -> None:
    assert "tracing" not in found.causes
    assert sum(found.causes.values()) == pytest.approx(found.branched_ms, abs=1e-3)
    assert found.causes["meeting"] > 0.05  # a meeting point of the profile takes 50 µs


def test_the_answer_has_the_figures_and_null_for_what_does_not_exist(found: Ablation, networks: Networks) -> None:
    answer = comparison_answer("net", found, networks[0], None)
    assert answer["simulated"] == {**asdict(load_source()), "profile": "phone"}
    absent = ("original_all_cores_ms", "control_all_cores_ms", "onnxruntime_ms", "control_onnxruntime_ms")
    assert {answer[name] for name in (*absent, "max_rel_error", "widest_interval", "machine")} == {None}
    assert (answer["intervals"], answer["disturbed"]) == ({}, False)
    assert answer["branched_ms"] == pytest.approx(found.branched_ms, rel=1e-4)
    kept = Ablation.from_json(json.loads(json.dumps(answer)))
    assert kept.simulated == found.simulated
    assert kept.rows[0].p50_ms == answer["original_ms"]["sim:phone/cpu"]
    assert kept.best_alternative.how == found.best_alternative.how


def load_source() -> SimulatedSource:
    source = simulated_source(",".join(PHONE))
    assert source is not None
    return source


def test_terminal_and_page_say_that_latencies_are_simulated(found: Ablation, networks: Networks) -> None:
    console = Console(width=160)
    with console.capture() as shown:
        console.print(ablation_table(found), causes_table(found))
    text = shown.get()
    assert "latencies are simulated, from the profile phone; nothing was run" in text
    assert not any(word in text for word in ("p90", "interval", "measured", "largest error"))
    document = branching_document(comparison_answer("net", found, networks[0], None))
    assert document.lead.startswith("Latencies are simulated, from the profile phone. Nothing was run")
    assert "Predicted and simulated" in [section.title for section in document.sections]
    assert document.facts["profile"] == "phone"
    page = html(document)
    assert not any(word in page for word in ("ONNX Runtime</", "interleaved", "measured latency", "p90"))


def test_designs_without_branches_run_where_they_are_predicted_to(networks: Networks) -> None:
    design, (original, control, _) = networks
    for split in ((), (0, 1)):
        whole = SegmentDesign(0, 1, (BranchDesign(1, (0,), 1.0, 1.0, 32, design.original_macs),), split)
        made = replace(design, segments=(whole,), macs=design.original_macs)
        where = place_without_branches(made, parse_processors(",".join(PHONE)))
        found = simulate_ablation(original, control, original, ",".join(PHONE), design=made, unbranched_on=where)
        assert found.branched_row.processors == (",".join(PHONE) if split else PHONE[1])
        if not split:
            assert (found.branched_row.how, found.branched_ms) == ("alone", found.original_ms[PHONE[1]])
            assert found.branched_serial_ms == found.branched_ms
        else:
            assert found.branched_ms == found.original_split_ms


def test_three_processors_and_one_that_stays_idle(graph: ir.Model, networks: Networks) -> None:
    names = [*PHONE, "sim:phone/dsp"]
    design, graphs = branched_networks(graph, 3)
    three = simulate_ablation(*graphs, ",".join(names), design=design)
    assert list(three.control_ms) == names
    assert len({branch.time.processor for branch in three.branches}) == 3
    two = simulate_ablation(*networks[1], ",".join(names), design=networks[0])
    assert "sim:phone/dsp" in two.idle


def test_processors_that_cannot_be_simulated_are_refused(networks: Networks, tmp_path: Path) -> None:
    graphs, soc = networks[1], load_profile("phone")
    with pytest.raises(UsageError, match="not two or more simulated processors"):
        simulate_ablation(*graphs, "cpu:0")
    with pytest.raises(UsageError, match="not two or more simulated processors"):
        simulate_ablation(*graphs, PHONE[0])
    gpu = soc.processors["gpu"]
    rates = {kind: found for kind, found in gpu.compute.items() if kind != "dense"}
    path = tmp_path / "other.json"
    save_profile(replace(soc, processors={**soc.processors, "gpu": replace(gpu, compute=rates)}), path)
    with pytest.raises(DeviceError, match=r"other\.json/gpu cannot compute .*\(Dense\): .* no rate for 'dense'"):
        simulate_ablation(*graphs, f"sim:{path}/cpu,sim:{path}/gpu")
    assert simulated_source("cpu:0") is None
