"""The block-wise start: segments learn the original's feature maps, each by itself."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from nnstretch.branching.transform.features import meeting_point_features
from nnstretch.branching.transform.network import BranchedNetwork
from nnstretch.errors import DesignError, FileError, ModelError, UsageError
from nnstretch.training.data.loader import TrainingBatches
from nnstretch.training.data.preprocessing import Preprocessing
from nnstretch.training.data.sources.unlabelled import unlabelled_images
from nnstretch.training.data.split import ArraySplit, Dataset, Split
from nnstretch.training.distillation.blockwise import BlockwiseResult, BlockwiseStart, StepProgress, train_segments
from nnstretch.training.distillation.segments import Features, FeatureView, SegmentStudent, segment_students
from nnstretch.training.recipe import Recipe
from tests.kits.networks.splits import UntouchableSplit
from tests.kits.networks.tiny_branching import CLASSES, SIDE, branched, original
from tests.kits.processes.forks import run_in_group

RECIPE = Recipe(batch_size=16, blockwise_epochs=6.0, blockwise_lr=3e-3, amp_dtype="float32", threads=1)


@pytest.fixture(scope="module")
def images() -> ArraySplit:
    generator = torch.Generator().manual_seed(0)
    return ArraySplit(torch.randn(64, 1, SIDE, SIDE, generator=generator).numpy(), np.zeros(64, np.int64))


def dataset_of(split: Split) -> Dataset:
    """A data set that trains on these images."""
    names = tuple(map(str, range(CLASSES)))
    return Dataset("noise", CLASSES, 1, SIDE, names, (0.0,), (1.0,), split, split, UntouchableSplit())


def learn(
    students: list[SegmentStudent],
    features: Features,
    images: ArraySplit,
    recipe: Recipe,
    progress: StepProgress | None = None,
) -> BlockwiseResult:
    """The result of a whole start."""
    start = BlockwiseStart(students, features, batches_of(images, recipe), everything(images)[:8], recipe)
    start.run(progress)
    assert start.finished
    return start.result()


def batches_of(images: Split, recipe: Recipe) -> TrainingBatches:
    return TrainingBatches(dataset_of(images), recipe)


def features_of(network: BranchedNetwork) -> nn.Module:
    return meeting_point_features(original(), torch.randn(1, 1, SIDE, SIDE), network.design)


def everything(split: ArraySplit) -> Tensor:
    """All images."""
    return torch.from_numpy(split.pixels)


def test_feature_maps_are_those_of_the_original(images: ArraySplit) -> None:
    network = branched(0.5)
    found = features_of(network).train()(everything(images))
    layers = original()
    assert torch.equal(found[0], everything(images))
    torch.testing.assert_close(found[1], layers[:2](everything(images)))
    torch.testing.assert_close(found[2], layers[:5](everything(images)))
    assert not any(feature.requires_grad for feature in found)


def test_a_channel_stands_for_its_origin(images: ArraySplit) -> None:
    """Branches of full width compute exactly what their origins say."""
    network = branched(1.0)
    students = segment_students(network.eval())
    found = features_of(network)(everything(images))
    assert [len(student.target.channels) for student in students] == [len(each) for each in network.origins[1:]]
    assert all(float(student.loss(found).detach()) < 1e-6 for student in students)


def test_segments_come_closer_to_the_original_and_exact_ones_are_left_alone(images: ArraySplit) -> None:
    network = branched(0.5)
    exact = [value.clone() for value in network.segments[0].state_dict().values()]
    head = [value.clone() for value in network.head.state_dict().values()]
    reports: list[tuple[int, int, float]] = []
    result = learn(
        segment_students(network), features_of(network), images, RECIPE, lambda *report: reports.append(report)
    )
    assert result.steps == 24 == len(reports)
    assert result.after[0] == result.before[0] < 1e-6
    assert result.after[1] < 0.7 * result.before[1]
    assert all(map(torch.equal, exact, network.segments[0].state_dict().values()))
    assert all(map(torch.equal, head, network.head.state_dict().values()))
    assert all(value.is_contiguous() for value in network.state_dict().values())
    assert all(parameter.grad is None for parameter in network.parameters())


def test_the_same_seed_gives_the_same_weights(images: ArraySplit) -> None:
    networks = [branched(0.5) for _ in range(3)]
    features = features_of(networks[0])
    torch.manual_seed(3)
    before = torch.get_rng_state()
    for network, seed in zip(networks, (0, 0, 1), strict=True):
        learn(segment_students(network), features, images, replace(RECIPE, seed=seed))
    first, second, third = (network.segments[1].state_dict().values() for network in networks)
    assert all(map(torch.equal, first, second))
    assert not all(map(torch.equal, first, third))
    assert torch.equal(torch.get_rng_state(), before)


def test_any_part_can_learn_from_any_teacher(images: ArraySplit) -> None:
    """Students and features are all that a training needs: other tasks bring their own."""

    def features(batch: Tensor) -> list[Tensor]:
        return [batch, torch.cat([batch * 2, batch + 1], dim=1)]

    student = SegmentStudent(
        nn.Conv2d(1, 1, 1), (FeatureView(0, torch.tensor([0])),), FeatureView(1, torch.tensor([1]))
    )
    result = learn([student], features, images, replace(RECIPE, blockwise_epochs=50.0, blockwise_lr=0.05))
    assert result.after[0] < 0.01 < result.before[0]


def test_a_loss_that_is_not_finite_and_another_network_are_refused(images: ArraySplit) -> None:
    network = branched(0.5)
    broken = ArraySplit(images.pixels * np.float32(np.nan), images.labels)
    with pytest.raises(ModelError, match=r"loss of segment 0 is nan in step 1 of .*; lower blockwise_lr, and look for"):
        learn(segment_students(branched(0.5)), features_of(network), broken, RECIPE)
    with pytest.raises(DesignError, match="5 blocks"):
        meeting_point_features(nn.Sequential(*list(original())[:2]), torch.randn(1, 1, SIDE, SIDE), network.design)


def test_a_start_names_the_images_of_a_loss_that_is_not_finite() -> None:
    pixels = np.zeros((32, 1, SIDE, SIDE), np.float32)
    pixels[7] = np.nan

    class Named(ArraySplit):
        def image_name(self, index: int) -> str:
            return f"{index}.png"

    dataset = dataset_of(Named(pixels, np.zeros(32, np.int64)))
    recipe = replace(RECIPE, batch_size=2, blockwise_epochs=1.0)
    start = BlockwiseStart.of(branched(0.5), original(), dataset, recipe)
    with pytest.raises(ModelError, match=r"look for values that are not finite in the images of this step, .*\b7\.png"):
        start.run()


def test_a_start_with_weights_that_are_not_finite_gives_no_state(images: ArraySplit) -> None:
    network = branched(0.5)
    start = BlockwiseStart.of(network, original(), dataset_of(images), RECIPE)
    with torch.no_grad():
        next(network.segments[1].parameters())[0] = torch.inf
    with pytest.raises(ModelError, match=r"weight of segment 1 is not finite after step 0 of the block-wise start"):
        start.state()


class StopError(Exception):
    """Ends a start."""


def start_of(network: BranchedNetwork, images: ArraySplit, recipe: Recipe) -> BlockwiseStart:
    return BlockwiseStart.of(network, original(), dataset_of(images), recipe)


@pytest.mark.parametrize("stop", [1, 3, 4, 7, 11])
def test_a_start_that_was_stopped_goes_on_bit_for_bit(stop: int, images: ArraySplit) -> None:
    """Both segments learn; 4 steps are an epoch."""
    recipe = replace(RECIPE, blockwise_epochs=3.0, shift=0.1)
    whole = branched(0.5, 0.5)
    first = start_of(whole, images, recipe)
    first.run()
    network = branched(0.5, 0.5)
    stopped = start_of(network, images, recipe)

    def after_step() -> None:
        if stopped.step == stop:
            raise StopError

    with pytest.raises(StopError):
        stopped.run(after_step=after_step)
    tensors, values = stopped.state()
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    weights = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    again = branched(0.5, 0.5)
    again.load_state_dict(weights)
    resumed = start_of(again, images, recipe)
    resumed.restore(tensors, values)
    assert (resumed.step, resumed.steps) == (stop, 12)
    resumed.run()
    assert all(map(torch.equal, whole.state_dict().values(), again.state_dict().values()))
    assert resumed.result().after == first.result().after
    assert resumed.result().before == first.result().before
    assert not any(part.training for part in again.modules() if part is not again and part is not again.head)


def test_a_state_of_another_network_is_refused(images: ArraySplit) -> None:
    start = start_of(branched(0.5), images, RECIPE)
    tensors, values = start.state()
    with pytest.raises(ModelError, match=r"3 segments.*2"):
        start.restore(tensors, {**values, "before": [0.0, 0.0, 0.0]})


def test_nothing_to_learn_takes_no_step(images: ArraySplit) -> None:
    result = train_segments(branched(1.0), original(), dataset_of(images), RECIPE)
    assert result.steps == 0
    assert result.before == result.after


def _in_processes(rank: int, count: int, folder: str, images: ArraySplit) -> None:
    network = branched(0.5, 0.5)
    start = start_of(network, images, replace(RECIPE, blockwise_epochs=2.0))
    states = []
    start.run(after_step=lambda: states.append(start.state()[1]["step"]) if start.step == 3 else None)
    assert states == [3]
    torch.save([dict(network.state_dict()), start.result().after, list(start._learners)], f"{folder}/{rank}")


def test_processes_share_the_segments_and_have_the_weights_of_one(images: ArraySplit, tmp_path: Path) -> None:
    run_in_group(_in_processes, 2, str(tmp_path), images)
    network = branched(0.5, 0.5)
    start = start_of(network, images, replace(RECIPE, blockwise_epochs=2.0))
    start.run()
    found = [torch.load(tmp_path / str(rank)) for rank in (0, 1)]
    assert sorted(number for _, _, learning in found for number in learning) == [0, 1]
    assert all(learning for _, _, learning in found)
    for weights, after, _ in found:
        assert all(map(torch.equal, weights.values(), network.state_dict().values()))
        assert after == start.result().after


def test_images_without_labels(images: ArraySplit, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "photos" / "inside").mkdir(parents=True)
    for number in range(20):
        pixels = rng.integers(0, 256, (20, 30), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / ("inside" if number % 2 else ".") / f"{number}.png")
    dataset = dataset_of(images)
    plain = unlabelled_images(str(tmp_path / "photos"), dataset)
    assert len(plain.train) == 20
    result = train_segments(branched(0.5), original(), plain, replace(RECIPE, batch_size=4))
    assert result.steps == 30
    assert result.after[1] < 0.7 * result.before[1]
    textures = unlabelled_images("textures", dataset)
    assert textures.preprocessing == Preprocessing(SIDE, 1, (0.0,), (1.0,), dataset.crop_pct, dataset.interpolation)
    assert textures.train.images(torch.arange(2)).shape == (2, 1, SIDE, SIDE)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match="no images"):
        unlabelled_images(str(tmp_path / "empty"), dataset)
    with pytest.raises(UsageError, match=r"nowhere.*digits"):
        unlabelled_images("nowhere", dataset)
