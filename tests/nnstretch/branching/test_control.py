"""The single-branch control meets its MAC target and keeps the function."""

import pytest
import torch
from torch import nn

from nnstretch import zoo
from nnstretch.branching.design.accounting import count_macs
from nnstretch.branching.transform.control import single_branch_control
from nnstretch.errors import DesignError

IMAGES = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
# One network of every kind of block; the others are deeper or wider ones of the same.
CHAINS = ("resnet18", "resnet50", "vgg11", "mobilenetv2", "regnet_x_1_6gf", "squeezenet1_1", "googlenet")
FIRST_WIDTHS = ("resnet18", "vgg11", "mobilenetv2")  # with and without shortcuts and depthwise convolutions


@pytest.mark.parametrize(
    ("name", "share"), [*((name, 0.31) for name in CHAINS), *((name, 0.8) for name in FIRST_WIDTHS)]
)
def test_macs_are_within_one_percent(name: str, share: float) -> None:
    network = zoo.build(name, num_classes=10, small_images=True)
    target = round(share * count_macs(network, IMAGES))
    control = single_branch_control(network, IMAGES, target)
    assert abs(count_macs(control, IMAGES) - target) <= 0.01 * target
    control(IMAGES).sum().backward()
    assert all(parameter.grad is not None for parameter in control.parameters())


@pytest.mark.parametrize("name", ["resnet18", "mobilenetv2", "regnet_x_1_6gf"])
def test_a_wider_control_is_equivalent_to_the_network(name: str) -> None:
    network = zoo.build(name, num_classes=10, small_images=True)
    target = round(1.2 * count_macs(network, IMAGES))
    control = single_branch_control(network, IMAGES, target)
    assert abs(count_macs(control, IMAGES) - target) <= 0.01 * target
    with torch.no_grad():
        torch.testing.assert_close(control(IMAGES), network(IMAGES), rtol=1e-4, atol=1e-4)


def test_at_the_networks_own_macs_it_is_the_network() -> None:
    network = zoo.build("resnet18", num_classes=10, small_images=True)
    control = single_branch_control(network, IMAGES, count_macs(network, IMAGES))
    assert torch.equal(control(IMAGES), network(IMAGES))
    assert control.training is network.training


def test_the_layers_keep_their_names_and_their_best_filters() -> None:
    network = zoo.build("vgg16", num_classes=10, small_images=True)
    control = single_branch_control(network, IMAGES, count_macs(network, IMAGES) // 2)
    before, after = (module.get_submodule("stem.0") for module in (network, control))
    assert isinstance(before, nn.Conv2d)
    assert isinstance(after, nn.Conv2d)
    norms = before.weight.detach().flatten(1).norm(dim=1)
    best = norms.topk(after.out_channels).indices.sort().values
    assert after.out_channels < before.out_channels
    assert torch.equal(after.weight.detach(), before.weight.detach()[best])


def test_unreachable_macs_are_refused_with_the_nearest() -> None:
    network = zoo.build("resnet18", num_classes=10, small_images=True)
    with pytest.raises(DesignError, match="no width of the network has 1000 MACs; the nearest has"):
        single_branch_control(network, IMAGES, 1000)


def test_channels_are_rounded_less_until_the_macs_are_within_one_percent() -> None:
    """Multiples of 64 of the only width, 320, are steps of a fifth of the MACs."""
    images = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    network = nn.Sequential(nn.Conv2d(3, 320, 3, padding=1), nn.ReLU(), nn.Conv2d(320, 10, 3, padding=1))
    target = round(count_macs(network, images) * 100.4 / 320)
    control = single_branch_control(network, images, target, multiple=64)
    assert abs(count_macs(control, images) - target) <= 0.01 * target
