"""MACs and parameters of layers that were counted by hand."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

import nnstretch as nns
from nnstretch.branching.design.accounting import all_macs, count_macs, count_parameters, layer_macs
from nnstretch.errors import ModelError


@pytest.mark.parametrize(
    ("layer", "shape", "macs", "parameters"),
    [
        pytest.param(nn.Conv2d(3, 8, 3, padding=1), (3, 5, 7), 5 * 7 * 8 * 3 * 9, 8 * 27 + 8, id="conv"),
        # 11 x 9 shrinks to 5 x 4 with stride 2 and no padding.
        pytest.param(nn.Conv2d(4, 6, 3, stride=2, bias=False), (4, 11, 9), 5 * 4 * 6 * 36, 216, id="stride"),
        pytest.param(nn.Conv2d(8, 12, 1, groups=4), (8, 3, 3), 9 * 12 * 2, 12 * 2 + 12, id="groups"),
        pytest.param(nn.Conv2d(6, 6, 5, padding=2, groups=6, bias=False), (6, 4, 4), 16 * 6 * 25, 150, id="depthwise"),
        # A dilated 3x3 spans 5 pixels, so 6 x 6 shrinks to 2 x 2.
        pytest.param(nn.Conv2d(2, 3, 3, dilation=2, bias=False), (2, 6, 6), 4 * 3 * 18, 54, id="dilation"),
        pytest.param(nn.Conv2d(2, 3, (1, 3), bias=False), (2, 4, 5), 4 * 3 * 3 * 2 * 3, 18, id="oblong"),
        # Each of 3 x 3 inputs in 4 channels is multiplied with a 2 x 2 kernel for 3 outputs in its group.
        pytest.param(
            nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2, bias=False), (4, 3, 3), 9 * 4 * 4 * 3, 48, id="up"
        ),
        pytest.param(nn.Linear(10, 7), (10,), 70, 77, id="dense"),
        pytest.param(nn.Linear(10, 7), (5, 10), 350, 77, id="dense-rows"),
        pytest.param(nn.BatchNorm2d(4), (4, 3, 3), 0, 8, id="norm"),
    ],
)
def test_layers_counted_by_hand(layer: nn.Module, shape: tuple[int, ...], macs: int, parameters: int) -> None:
    assert count_macs(layer, torch.zeros(1, *shape)) == all_macs(layer, torch.zeros(2, *shape)) == macs
    assert count_parameters(layer) == parameters


@settings(max_examples=30, deadline=None)
@given(
    groups=st.integers(1, 3),
    widths=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 3),
    size=st.integers(5, 9),
)
def test_transposed_convolution_costs_what_its_adjoint_costs(
    groups: int, widths: tuple[int, int], kernel: int, stride: int, size: int
) -> None:
    reads, writes = widths[0] * groups, widths[1] * groups
    down = nn.Conv2d(reads, writes, kernel, stride, groups=groups, bias=False)
    up = nn.ConvTranspose2d(writes, reads, kernel, stride, groups=groups, bias=False)
    x = torch.zeros(1, reads, size, size)
    assert count_macs(up, down(x)) == count_macs(down, x) > 0


class Attention(nn.Module):
    """Pixels as tokens of one head of 8 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Conv2d(3, 24, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        queries, keys, values = self.project(x).flatten(2).transpose(1, 2).chunk(3, 2)
        return functional.scaled_dot_product_attention(queries, keys, values)


def test_products_of_attention_are_no_part_of_the_macs_of_layers() -> None:
    module, image = Attention(), torch.zeros(1, 3, 4, 5)
    assert count_macs(module, image) == 20 * 3 * 24
    assert all_macs(module, image) == 20 * 3 * 24 + 2 * 20 * 20 * 8
    assert module.training


def test_counts_one_sample_of_a_batch() -> None:
    layer = nn.Conv2d(3, 4, 3)
    assert count_macs(layer, torch.zeros(5, 3, 8, 8)) == count_macs(layer, torch.zeros(1, 3, 8, 8)) == 36 * 4 * 27


class _Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(4, 4)
        self.unused = nn.Linear(4, 9)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.used(self.used(x))
        return y


def test_a_layer_counts_as_often_as_it_runs() -> None:
    assert layer_macs(_Twice(), torch.zeros(1, 4)) == {"used": 32, "unused": 0}


def test_shared_parameters_count_once() -> None:
    layer = nn.Linear(4, 4, bias=False)
    assert count_parameters(nn.Sequential(layer, nn.ReLU(), layer)) == 16


def test_leaves_the_module_as_it_was() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5))
    module.train()
    module[1].eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    count_macs(module, torch.randn(2, 3, 8, 8))
    assert [layer.training for layer in module] == [True, False, True]
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert not module[0]._forward_hooks


def test_hooks_go_when_the_module_fails() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(5, 1))
    with pytest.raises(ModelError, match="does not run on an input of shape"):
        count_macs(module, torch.zeros(1, 3, 8, 8))
    assert not module[0]._forward_hooks
    assert module.training


class Headed(Attention):
    """With an axis of its own for the head, as exporters need it."""

    def forward(self, x: Tensor) -> Tensor:
        operands = self.project(x).flatten(2).transpose(1, 2).unsqueeze(1).chunk(3, 3)
        return functional.scaled_dot_product_attention(*operands)


def test_plans_and_modules_count_the_same() -> None:
    """Products of matrices that are computed at run time are counted apart."""
    network = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), Headed(), nn.Flatten(), nn.Linear(200, 4)).eval()
    image = torch.zeros(1, 3, 5, 5)
    with nns.compile(network, image, tune=False) as session:
        assert session.plan.macs == count_macs(network, image)
        assert session.plan.product_macs == all_macs(network, image) - count_macs(network, image) > 0
