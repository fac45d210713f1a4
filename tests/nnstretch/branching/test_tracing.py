"""Cut points, blocks and stages of networks, and the messages for networks that have none."""

import copy
import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nnstretch import zoo
from nnstretch.branching.tracing.operators import channels_of
from nnstretch.branching.tracing.trace import Segment, trace
from nnstretch.errors import DesignError, ModelError

IMAGES = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(1))


def stages(name: str) -> list[tuple[int, list[bool]]]:
    traced = trace(zoo.build(name, num_classes=10, small_images=True), IMAGES)
    found = [traced.blocks_of(stage) for stage in traced.stages]
    return [(channels_of(blocks[-1].output), [block.droppable for block in blocks]) for blocks in found]


def test_projection_blocks_of_a_resnet_are_not_droppable() -> None:
    # The stem has the resolution of the first stage and the global pool makes what meets at the last end smaller.
    assert stages("resnet18") == [
        (64, [False, True, True]),
        (128, [False, True]),
        (256, [False, True]),
        (512, [False, True, False]),
    ]


def test_an_inverted_bottleneck_without_a_shortcut_is_one_block() -> None:
    traced = trace(zoo.build("mobilenetv2", num_classes=10), IMAGES)
    (blocks,) = (blocks for blocks in map(traced.blocks_of, traced.stages) if blocks[0].name == "stages.3.0")
    assert [block.name for block in blocks] == [f"stages.3.{i}" for i in range(7)]
    assert [block.droppable for block in blocks] == [False, True, True, True, False, True, True]


def test_a_fire_module_is_one_block_and_pools_close_stages() -> None:
    traced = trace(zoo.build("squeezenet1_1", num_classes=10), IMAGES)
    assert [[block.name for block in traced.blocks_of(stage)][:3] for stage in traced.stages][-3:] == [
        ["stages.0.0", "stages.0.1", "stages.1.0"],
        ["stages.1.1", "stages.1.2", "stages.2.0"],
        ["stages.2.1", "stages.2.2", "stages.2.3"],
    ]


def test_all_nodes_are_in_exactly_one_block() -> None:
    traced = trace(zoo.build("mobilenetv2", num_classes=10), IMAGES)
    found = [node for block in traced.chain for node in block.nodes]
    expected = [node for node in traced.graph.graph.nodes if node.op not in ("placeholder", "output")]
    assert found == expected
    for before, after in itertools.pairwise(traced.chain):
        assert after.source is before.output


def test_the_block_that_changes_its_input_least_is_known() -> None:
    network = zoo.build("resnet18", num_classes=10, small_images=True)
    closing = network.get_submodule("stages.0.1.body.1.1")
    assert isinstance(closing, nn.BatchNorm2d)
    with torch.no_grad():
        closing.weight.zero_()
        closing.bias.zero_()
    blocks = trace(network, IMAGES).blocks
    assert blocks[2].change == pytest.approx(0.0, abs=1e-9)
    assert blocks[1].change > 1e-3


def test_a_chain_needs_no_droppable_blocks() -> None:
    traced = trace(Plain(), IMAGES)
    assert [block.droppable for block in traced.blocks] == [False] * 3
    assert traced.stages == (Segment(0, 1), Segment(1, 3))  # the pool closes the second


@pytest.mark.parametrize("training", [True, False])
def test_the_callers_module_is_not_changed(training: bool) -> None:
    network = zoo.build("resnet18", num_classes=10, small_images=True).train(training)
    before = copy.deepcopy(network.state_dict())
    trace(network, IMAGES)
    assert network.training is training
    assert all(part.training is training for part in network.modules())
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])


class Plain(nn.Module):
    """Convolutions that all change the shape."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4)
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return y


class Decides(Plain):
    """Control flow that depends on a tensor."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.sum() > 0 else -x)


class Shares(Plain):
    """One convolution in two places."""

    def __init__(self) -> None:
        super().__init__()
        twice = nn.Conv2d(8, 8, 3, padding=1)
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3), twice, nn.ReLU(), twice, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
        )


class SharesWeight(Plain):
    """One weight in two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        first, second = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        second.weight = first.weight
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3), first, nn.ReLU(), second, nn.Flatten(), nn.LazyLinear(4))
        self.layers(torch.zeros(1, 3, 64, 64))


class TwoInputs(nn.Module):
    """Reads two tensors."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


class NoCut(nn.Module):
    """Two paths from input to output without a common tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 3, 3, padding=1)
        self.second = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(x) + self.first(x)
        return y


class Dense(nn.Module):
    """No image."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y


@pytest.mark.parametrize(
    ("factory", "example", "words"),
    [
        (Decides, IMAGES, ["Decides", "torch.fx", "control flow"]),
        (Shares, IMAGES, ["layers.1", "shares weights"]),
        (SharesWeight, IMAGES, ["layers.3", "layers.1", "shares weights"]),
        (TwoInputs, IMAGES, ["does not run", "missing 1 required positional argument"]),
        (NoCut, IMAGES, ["NoCut", "nothing to branch"]),
        (Dense, torch.zeros(1, 4), ["N,C,H,W"]),
        (Plain, torch.zeros(1, 5, 64, 64), ["does not run", "(1, 5, 64, 64)"]),
    ],
)
def test_what_cannot_be_branched_is_refused_in_one_line(
    factory: Callable[[], nn.Module], example: Tensor, words: list[str]
) -> None:
    with pytest.raises((DesignError, ModelError)) as caught:
        trace(factory(), example)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message
