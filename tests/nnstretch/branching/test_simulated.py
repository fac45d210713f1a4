"""Searches for simulated processors, and simulation of the resulting designs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import nnstretch as nns
from nnstretch import zoo
from nnstretch.branching.design.blueprint import blueprint
from nnstretch.branching.latency.table import LatencyTable
from nnstretch.branching.search.unbranched import split_estimate
from nnstretch.branching.transform.network import export_branched
from nnstretch.compiler.compile import plan_model, simulate_model
from nnstretch.compiler.costs import latency_predictor
from nnstretch.compiler.processors import build_processors
from nnstretch.devices.simulated.profile import load_profile, save_profile
from nnstretch.frontends.torch_module import export

PHONE = "sim:phone/cpu,sim:phone/dsp"


def chain() -> nn.Module:
    """Three stages of three convolutions, which halve the image and double the channels."""
    layers: list[nn.Module] = []
    for reads, writes in ((3, 64), (64, 128), (128, 256)):
        for number in range(3):
            layers += [nn.Conv2d(reads if number == 0 else writes, writes, 3, 2 if number == 0 else 1, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10)).eval()


@pytest.mark.parametrize("processors", [PHONE, "sim:phone/cpu,sim:phone/gpu"])
def test_designs_found_for_a_phone_are_confirmed_by_simulation(processors: str) -> None:
    network, image = chain(), torch.zeros(1, 3, 128, 128)
    (result,) = nns.stretch(network, image, processors)
    opened = build_processors(processors)
    compiled, timeline = simulate_model(export_branched(result.module, image), opened)
    assert {subgraph.queue for subgraph in compiled.plan.subgraphs} == {0, 1}
    predicted = result.design.predicted_ms
    assert predicted is not None
    assert timeline.total * 1e-6 == pytest.approx(predicted, rel=0.05)
    serial = compiled.plan.predicted_ms
    assert serial is not None
    assert timeline.total * 1e-6 < 0.8 * serial


def test_processors_of_a_phone_cannot_run() -> None:
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
    with pytest.raises(nns.NNStretchError, match="only exist in a profile"):
        nns.compile(network, torch.zeros(1, 3, 8, 8), PHONE)


def phone(folder: Path, sync_us: float, gb_per_s: float, names: tuple[str, ...] = ("cpu", "gpu")) -> str:
    """Processors of a phone with other transfers between them."""
    soc = load_profile("phone")
    pairs = tuple(replace(pair, sync_us=sync_us, gb_per_s=gb_per_s) for pair in soc.pairs)
    save_profile(replace(soc, pairs=pairs), folder / "other.json")
    return ",".join(f"sim:{folder / 'other.json'}/{name}" for name in names)


@pytest.mark.parametrize(
    ("transfers", "macs", "is_split"), [((1.0, 50.0), 1.6, True), ((1e5, 0.1), 0.8, False)], ids=["split", "alone"]
)
def test_a_network_that_stays_whole_is_confirmed_by_simulation(
    tmp_path: Path, transfers: tuple[float, float], macs: float, is_split: bool
) -> None:
    """Branches with many MACs are behind layers that the scheduler splits where transfers are cheap."""
    network, image = chain(), torch.zeros(1, 3, 128, 128)
    processors = phone(tmp_path, *transfers)
    (result,) = nns.stretch(network, image, processors, min_macs=macs, beta=2.0)
    report = result.report
    assert report.unbranched is not None
    assert (result.design.meeting_points, report.unbranched.processor) == (0, None if is_split else 0)
    compiled, timeline = simulate_model(export_branched(result.module, image), build_processors(processors))
    assert (len({subgraph.queue for subgraph in compiled.plan.subgraphs}) == 2) == is_split
    assert timeline.total * 1e-6 == pytest.approx(result.design.predicted_ms)


@pytest.mark.parametrize(
    ("network", "names"),
    [("chain", ("cpu", "gpu", "dsp")), ("resnet18", ("cpu", "dsp")), ("squeezenet1_1", ("gpu", "cpu"))],
)
def test_the_estimate_of_split_layers_is_not_above_the_plan_of_the_scheduler(
    tmp_path: Path, network: str, names: tuple[str, ...]
) -> None:
    """It decides whether the scheduler is asked at all."""
    module = chain() if network == "chain" else zoo.build(network, num_classes=10)
    image = torch.zeros(1, 3, 96, 96)
    graph, plan = export(module, image), blueprint(module, image)
    for transfers in ((0.0, 100.0), (5.0, 10.0), (50.0, 0.84), (400.0, 0.84)):
        processors = build_processors(phone(tmp_path, *transfers, names))
        placement = plan_model(graph, processors).placement
        assert placement is not None
        latencies = LatencyTable(plan, latency_predictor(processors), len(names))
        assert split_estimate(latencies) <= placement.seconds * (1 + 1e-6)
