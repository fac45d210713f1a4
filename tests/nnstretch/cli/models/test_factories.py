"""Networks of factories, `FILE.py:FACTORY`, in the commands."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch

from nnstretch.cli.models.networks import NetworkOptions, build_network

FACTORY = """
import random

import numpy as np
import torch
from torch import nn

SHIFT = torch.randn(1)


def make():
    made = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    made[3].bias.data += SHIFT + random.random() + np.random.random()
    return made
"""


def test_weights_are_those_of_the_seed_and_other_draws_stay_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(FACTORY)

    def weights(seed: int) -> list[np.ndarray]:
        network = build_network(f"{file}:make", NetworkOptions(image_size=16, seed=seed))
        return [parameter.detach().numpy() for parameter in network.module.parameters()]

    generators = random.getstate(), torch.get_rng_state()
    first, again, other = weights(1), weights(1), weights(2)
    assert random.getstate() == generators[0]
    assert torch.equal(torch.get_rng_state(), generators[1])
    assert all(np.array_equal(one, two) for one, two in zip(first, again, strict=True))
    assert not any(np.array_equal(one, two) for one, two in zip(first, other, strict=True))
