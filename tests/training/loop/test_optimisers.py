"""Fused updates of weights in channels-last memory: the same weights as without, and no copies of gradients."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from nnstretch.training.loop.optimisers import memory_order

IMAGES = torch.randn(2, 8, 6, 6, generator=torch.Generator().manual_seed(0))


def network(memory_format: torch.memory_format) -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.Conv2d(16, 4, 1), nn.Flatten(), nn.Linear(16, 3))
    module = nn.Sequential(*layers)
    module.to(memory_format=memory_format)  # type: ignore[call-overload]
    return module


def optimiser_of(module: nn.Module, kind: str, *, fused: bool) -> torch.optim.Optimizer:
    if kind == "sgd":
        return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2, fused=fused)
    return torch.optim.AdamW(module.parameters(), lr=1e-2, fused=fused)


def gradients(module: nn.Module) -> None:
    module.zero_grad(set_to_none=True)
    module(IMAGES).square().mean().backward()


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
def test_steps_give_the_weights_of_plain_updates(kind: str, memory_format: torch.memory_format) -> None:
    plain = network(memory_format)
    fused = copy.deepcopy(plain)
    layouts = [(p.shape, p.stride()) for p in plain.parameters()]
    one, other = optimiser_of(plain, kind, fused=False), optimiser_of(fused, kind, fused=True)
    for _ in range(3):
        gradients(plain)
        for mine, theirs in zip(fused.parameters(), plain.parameters(), strict=True):
            mine.grad = theirs.grad.clone()  # AdamW would enlarge differences of gradients near 0
        one.step()
        with memory_order(other):
            other.step()
    for mine, theirs in zip(fused.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-7)
    assert [(p.shape, p.stride()) for p in fused.parameters()] == layouts
    for parameter in fused.parameters():
        assert parameter.grad is not None
        assert parameter.grad.shape == parameter.shape
        kept = [value for value in other.state[parameter].values() if value.ndim]
        assert [(value.shape, value.stride()) for value in kept] == [(parameter.shape, parameter.stride())] * len(kept)


def test_gradients_are_not_copied() -> None:
    module = network(torch.channels_last)
    optimiser = optimiser_of(module, "sgd", fused=True)

    def clones() -> int:
        with profile(activities=[ProfilerActivity.CPU]) as events:
            optimiser.step()
        return sum(event.count for event in events.key_averages() if event.key == "aten::clone")

    gradients(module)
    optimiser.step()
    assert clones() > 0
    with memory_order(optimiser):
        assert clones() == 0


def test_a_step_that_fails_leaves_the_weights_in_their_shapes() -> None:
    module = network(torch.channels_last)
    optimiser = optimiser_of(module, "sgd", fused=True)
    gradients(module)
    before = [(p.shape, p.stride()) for p in module.parameters()]

    def fail() -> None:
        with memory_order(optimiser):
            assert next(module.parameters()).shape == (16, 3, 3, 8)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert [(p.shape, p.stride()) for p in module.parameters()] == before
