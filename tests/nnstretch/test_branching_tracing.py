"""Cut points, blocks and segments of networks, and the messages for networks that have none."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nnstretch import zoo
from nnstretch.branching.tracing import trace
from nnstretch.errors import DesignError

IMAGES = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(1))


def segments(name: str) -> list[tuple[int, list[bool]]]:
    traced = trace(zoo.build(name, num_classes=10, small_images=True), IMAGES)
    return [(segment.channels, [block.droppable for block in segment.blocks]) for segment in traced.segments]


def test_resnet_has_one_segment_per_stage_and_its_projecting_blocks_must_stay() -> None:
    # The stem has the resolution of the first stage and the global pool makes what meets at the last end smaller.
    assert segments("resnet18") == [
        (64, [False, True, True]),
        (128, [False, True]),
        (256, [False, True]),
        (512, [False, True, False]),
    ]


def test_an_inverted_bottleneck_without_a_shortcut_is_one_block() -> None:
    traced = trace(zoo.build("mobilenetv2", num_classes=10), IMAGES)
    names = [[block.name for block in segment.blocks] for segment in traced.segments]
    assert names[2] == [f"stages.3.{i}" for i in range(7)]
    assert [block.droppable for block in traced.segments[2].blocks] == [False, True, True, True, False, True, True]


def test_a_fire_module_is_one_block_and_pools_close_segments() -> None:
    traced = trace(zoo.build("squeezenet1_1", num_classes=10), IMAGES)
    assert [[block.name for block in segment.blocks][:3] for segment in traced.segments] == [
        ["stages.0.0", "stages.0.1", "stages.1.0"],
        ["stages.1.1", "stages.1.2", "stages.2.0"],
        ["stages.2.1", "stages.2.2", "stages.2.3"],
    ]


def test_all_nodes_are_in_exactly_one_block() -> None:
    traced = trace(zoo.build("mobilenetv2", num_classes=10), IMAGES)
    found = [node for block in traced.blocks for node in block.nodes]
    expected = [node for node in traced.graph.graph.nodes if node.op not in ("placeholder", "output")]
    assert found == expected
    for before, after in zip(traced.blocks, traced.blocks[1:], strict=False):
        assert after.source is before.output


def test_the_block_that_changes_its_input_least_is_known() -> None:
    network = zoo.build("resnet18", num_classes=10, small_images=True)
    closing = network.get_submodule("stages.0.1.body.1.1")
    assert isinstance(closing, nn.BatchNorm2d)
    with torch.no_grad():
        closing.weight.zero_()
        closing.bias.zero_()
    blocks = trace(network, IMAGES).segments[0].blocks
    assert blocks[2].change == pytest.approx(0.0, abs=1e-9)
    assert blocks[1].change > 1e-3


@pytest.mark.parametrize("training", [True, False])
def test_the_callers_module_is_left_alone(training: bool) -> None:
    network = zoo.build("resnet18", num_classes=10, small_images=True).train(training)
    before = copy.deepcopy(network.state_dict())
    trace(network, IMAGES)
    assert network.training is training
    assert all(part.training is training for part in network.modules())
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])


class Branchless(nn.Module):
    """Convolutions that all change the shape."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4)
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return y


class Decides(Branchless):
    """Control flow that depends on a tensor."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.sum() > 0 else -x)


class Shares(Branchless):
    """One convolution in two places."""

    def __init__(self) -> None:
        super().__init__()
        twice = nn.Conv2d(8, 8, 3, padding=1)
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3), twice, nn.ReLU(), twice, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
        )


class Ties(Branchless):
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
    """The input is read everywhere, so no tensor but it is crossed by all paths."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 3, 3, padding=1)
        self.second = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.first(x) + x) + x
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
        (Ties, IMAGES, ["layers.3", "layers.1", "shares weights"]),
        (TwoInputs, IMAGES, ["example input"]),
        (NoCut, IMAGES, ["NoCut", "nothing to branch"]),
        (Branchless, IMAGES, ["Branchless", "none writes the shape that it reads"]),
        (Dense, torch.zeros(1, 4), ["N,C,H,W"]),
        (Branchless, torch.zeros(1, 5, 64, 64), ["example input", "(1, 5, 64, 64)"]),
        (
            lambda: zoo.build("densenet121", num_classes=10, small_images=True),
            IMAGES,
            ["Chain", "none writes the shape"],
        ),
    ],
)
def test_what_cannot_be_branched_is_refused_in_one_line(
    factory: Callable[[], nn.Module], example: Tensor, words: list[str]
) -> None:
    with pytest.raises(DesignError) as caught:
        trace(factory(), example)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message
