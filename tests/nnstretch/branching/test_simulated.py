"""Searches for simulated processors, and simulation of the resulting designs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import nnstretch as nns
from nnstretch.branching.transform.network import export_branched
from nnstretch.compiler.compile import simulate_model
from nnstretch.compiler.processors import build_processors

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
