"""The loss and the boxes of `--head yolo`, against plain loops over cells and boxes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from nnstretch.errors import ModelError, UsageError
from nnstretch.training.tasks.detection import Detection, with_head
from nnstretch.training.tasks.task_alignment import TaskAlignment
from nnstretch.training.tasks.yolo import LossWeights, YoloHead, distribution_losses
from tests.kits.hypothesis_examples import examples
from tests.kits.networks.anchor_free import BINS, SIDE, STRIDES, anchor_free, decoding

CLASSES = 3
SIZES = [(SIDE // stride, SIDE // stride) for stride in STRIDES]
CENTRES = [
    ((column + 0.5) * stride, (row + 0.5) * stride, stride)
    for (rows, columns), stride in zip(SIZES, STRIDES, strict=True)
    for row in range(rows)
    for column in range(columns)
]
"""x, y and stride of every cell."""


def boxes(draw: np.random.Generator, counts: list[int]) -> Tensor:
    """As many boxes for every image: ``N x M x 5``."""
    found = np.zeros((len(counts), max(1, *counts), 5), np.float32)
    found[..., 4] = -1
    for rows, count in zip(found, counts, strict=True):
        corners, extents = draw.uniform(0, SIDE * 0.6, (count, 2)), draw.uniform(2, SIDE * 0.4, (count, 2))
        rows[:count] = np.concatenate((corners, corners + extents, draw.integers(0, CLASSES, (count, 1))), 1)
    return torch.from_numpy(found)


def maps(draw: np.random.Generator, images: int) -> list[Tensor]:
    """Random outputs of a network."""
    channels = 4 * BINS + CLASSES
    return [torch.from_numpy(draw.normal(0, 2, (images, channels, *size)).astype(np.float32)) for size in SIZES]


def rows_of(outputs: list[Tensor]) -> np.ndarray:
    """The cells of maps: ``N x A x channels``."""
    return torch.cat([one.flatten(2) for one in outputs], 2).transpose(1, 2).detach().double().numpy()


def overlap(one: np.ndarray, other: np.ndarray) -> float:
    width, height = (min(one[i + 2], other[i + 2]) - max(one[i], other[i]) for i in range(2))
    both = max(0.0, width) * max(0.0, height)
    areas = float(sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)))
    return float(both / (areas - both))


def assigned(
    scores: np.ndarray, found: np.ndarray, wanted: np.ndarray, how: TaskAlignment
) -> dict[int, tuple[int, float]]:
    """Cell -> its box and the quality, for one image, by TOOD's text."""
    choices: dict[int, list[int]] = {}

    def alignment(cell: int, box: int) -> float:
        score = scores[cell, int(wanted[box, 4])]
        return float(score**how.alpha * overlap(found[cell], wanted[box]) ** how.beta)

    for box, (left, top, right, bottom, label) in enumerate(wanted):
        inside = [cell for cell, (x, y, _) in enumerate(CENTRES) if left < x < right and top < y < bottom]
        if label >= 0:
            for cell in sorted(inside, key=lambda cell: -alignment(cell, box))[: how.cells]:
                choices.setdefault(cell, []).append(box)
    owners = {cell: max(some, key=lambda box: overlap(found[cell], wanted[box])) for cell, some in choices.items()}
    answer = {}
    for cell, box in owners.items():
        own = [other for other, owner in owners.items() if owner == box]
        highest = max(alignment(other, box) for other in own)
        quality = alignment(cell, box) / highest * max(overlap(found[other], wanted[box]) for other in own)
        answer[cell] = box, quality
    return answer


def complete_overlap_loss(one: np.ndarray, other: np.ndarray) -> float:
    """1 - IoU, the squared distance of centres over that of the corners around both, and the term of aspect ratios."""
    share = overlap(one, other)
    centres = sum(((one[i] + one[i + 2]) - (other[i] + other[i + 2])) ** 2 / 4 for i in range(2))
    around = sum((max(one[i + 2], other[i + 2]) - min(one[i], other[i])) ** 2 for i in range(2))
    angles = [math.atan((box[2] - box[0]) / (box[3] - box[1])) for box in (one, other)]
    aspect = 4 / math.pi**2 * (angles[0] - angles[1]) ** 2
    return float(1 - share + centres / around + aspect * aspect / (1 - share + aspect + 1e-7))


def softmax(values: np.ndarray) -> np.ndarray:
    powers = np.exp(values - values.max())
    found: np.ndarray = powers / powers.sum()
    return found


def decoded(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distributions ``A x 4 x bins``, boxes and scores of the cells of an image."""
    shares = np.array([[softmax(side) for side in row[: 4 * BINS].reshape(4, BINS)] for row in rows])
    found = []
    for sides, (x, y, stride) in zip(shares, CENTRES, strict=True):
        left, top, right, bottom = (float(side @ np.arange(BINS)) * stride for side in sides)
        found.append((x - left, y - top, x + right, y + bottom))
    return shares, np.array(found), 1 / (1 + np.exp(-rows[:, 4 * BINS :]))


def expected_loss(outputs: list[Tensor], wanted: Tensor, weights: LossWeights, how: TaskAlignment) -> float:
    total = qualities = 0.0
    for rows, targets in zip(rows_of(outputs), wanted.double().numpy(), strict=True):
        shares, found, scores = decoded(rows)
        owners = assigned(scores, found, targets, how)
        aims = np.zeros_like(scores)
        for cell, (box, quality) in owners.items():
            aims[cell, int(targets[box, 4])] = quality
            qualities += quality
            total += weights.boxes * quality * complete_overlap_loss(found[cell], targets[box])
            x, y, stride = CENTRES[cell]
            left, top, right, bottom = targets[box, :4]
            for side, distance in enumerate((x - left, y - top, right - x, bottom - y)):
                place = min(distance / stride, BINS - 1)
                lower = min(int(place), BINS - 2)
                near, far = -np.log(shares[cell, side, lower]), -np.log(shares[cell, side, lower + 1])
                total += weights.distributions * quality / 4 * (near * (lower + 1 - place) + far * (place - lower))
        entropies = -(aims * np.log(scores) + (1 - aims) * np.log(1 - scores))
        total += weights.scores * float((np.abs(aims - scores) ** weights.focus * entropies).sum())
    return total / max(1.0, qualities)


@given(
    seed=st.integers(0, 2**32 - 1),
    counts=st.lists(st.integers(0, 4), min_size=1, max_size=2),
    cells=st.integers(1, 13),
    beta=st.sampled_from([1.0, 6.0]),
)
@settings(max_examples=examples(15), deadline=None)
def test_assignment_and_loss_are_those_of_the_papers(seed: int, counts: list[int], cells: int, beta: float) -> None:
    draw = np.random.default_rng(seed)
    wanted, outputs = boxes(draw, counts), maps(draw, len(counts))
    how, weights = TaskAlignment(1.0, beta, cells), LossWeights(1.5, 2.5, 0.7, 2.0)
    centres = torch.tensor(CENTRES)[:, :2]
    for image, rows in enumerate(rows_of(outputs)):
        _, found, scores = decoded(rows)
        own_scores, own_boxes = (torch.from_numpy(one).float()[None] for one in (scores, found))
        answer = how.assign(own_scores, own_boxes, centres, wanted[image : image + 1])
        expected = assigned(scores, found, wanted[image].double().numpy(), how)
        chosen = torch.nonzero(answer.boxes[0] >= 0)[:, 0].tolist()
        assert {cell: int(answer.boxes[0, cell]) for cell in chosen} == {
            cell: box for cell, (box, _) in expected.items()
        }
        for cell in range(len(CENTRES)):
            assert float(answer.quality[0, cell]) == pytest.approx(expected.get(cell, (0, 0.0))[1], abs=1e-5)
    head = YoloHead(CLASSES, SIDE, weights=weights, alignment=how)
    assert float(head.loss(outputs, wanted)) == pytest.approx(expected_loss(outputs, wanted, weights, how), rel=1e-4)


def test_distances_between_bins_cost_the_entropy_of_both() -> None:
    """Of a distribution that is the two bins' shares, the cross entropy is least."""
    exact = torch.full((1, 8), 1e-9)
    exact[0, 2:4] = torch.tensor((0.75, 0.25))
    loss = float(distribution_losses(exact.log(), torch.tensor([2.25])))
    assert loss == pytest.approx(-0.75 * math.log(0.75) - 0.25 * math.log(0.25), abs=1e-5)
    beyond = distribution_losses(torch.zeros(3, 8), torch.tensor((-1.0, 7.0, 40.0)))
    torch.testing.assert_close(beyond, torch.full((3,), math.log(8)))


def as_maps(outputs: list[Tensor]) -> Any:
    return outputs


def in_two_maps(outputs: list[Tensor]) -> Any:
    return tuple(part for one in outputs for part in (one[:, : 4 * BINS], one[:, 4 * BINS :]))


def joined(outputs: list[Tensor]) -> Any:
    return torch.cat([one.flatten(2) for one in outputs], 2)


def joined_in_two(outputs: list[Tensor]) -> Any:
    whole = joined(outputs)
    return whole[:, : 4 * BINS], whole[:, 4 * BINS :]


def beside_boxes(outputs: list[Tensor]) -> Any:
    return torch.zeros(outputs[0].shape[0], 4 + CLASSES, len(CENTRES)), outputs


@pytest.mark.parametrize("form", [in_two_maps, joined, joined_in_two, beside_boxes])
def test_forms_of_outputs_mean_the_same(form: Callable[[list[Tensor]], Any]) -> None:
    draw = np.random.default_rng(3)
    outputs, wanted, head = maps(draw, 2), boxes(draw, [3, 1]), YoloHead(CLASSES, SIDE)
    head.check_outputs(form(outputs), 2)
    assert float(head.loss(form(outputs), wanted)) == float(head.loss(as_maps(outputs), wanted))
    for one, other in zip(head.detections(form(outputs)), head.detections(outputs), strict=True):
        torch.testing.assert_close(one, other)


def test_boxes_and_probabilities_are_read_as_they_are() -> None:
    """Without distributions: the same boxes, and the loss without that part."""
    (raw, example), (finished, _) = anchor_free(), decoding()
    finished.load_state_dict(raw.state_dict(), strict=False)
    wanted = boxes(np.random.default_rng(0), [3])
    wanted[..., 4] = wanted[..., 4].clamp(max=1)
    with torch.no_grad():
        outputs, rows = raw.eval()(example), finished.eval()(example)
    without = YoloHead(2, SIDE, weights=LossWeights(distributions=0.0))
    torch.testing.assert_close(without.loss(outputs, wanted), without.loss(rows, wanted), rtol=1e-4, atol=1e-5)
    for one, other in zip(without.detections(outputs), without.detections(rows), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    "outputs",
    [
        torch.zeros(2, 5),
        [torch.zeros(2, 4 * BINS + CLASSES + 1, *size) for size in SIZES],
        [torch.zeros(2, 4 * BINS + CLASSES, *size) for size in [(8, 8), (5, 5)]],
        [torch.zeros(2 + len(size), 4 * BINS + CLASSES, *size) for size in [*SIZES[:2], (2, 2)]]
        + [torch.zeros(1, 67, 1, 1)],
        torch.zeros(2, 4 + CLASSES, 86),
        np.zeros((2, 4 + CLASSES + 1, 84)),
        (),
    ],
)
def test_other_outputs_are_refused(outputs: Any) -> None:
    with pytest.raises(
        ModelError, match=r"of 3 classes that --head yolo reads writes.*maps of 67 channels.*or 7 channels"
    ):
        YoloHead(CLASSES, SIDE).check_outputs(outputs, 2)


def test_a_network_for_other_classes_is_refused_before_training() -> None:
    task = with_head(Detection(), "yolo", 4, SIDE)
    network, example = anchor_free()
    with pytest.raises(ModelError, match=r"writes \[1, 66, 8, 8\] and \[1, 66, 4, 4\].* of 4 classes"):
        task.check_outputs(network(example), 1, 4)
    with pytest.raises(UsageError, match=r"--head 'yolov8' is not understood; write yolo or FILE\.py:FACTORY"):
        with_head(Detection(), "yolov8", 4, SIDE)


def test_images_that_are_no_squares_have_cells_of_their_own() -> None:
    """A box of four pixels around a cell of the second row of 48 x 80 pixels."""
    outputs = [torch.full((1, 4 * BINS + 1, -(-48 // stride), -(-80 // stride)), -30.0) for stride in STRIDES]
    for one in outputs:
        one[:, : 4 * BINS] = 0
    outputs[0][0, 4 * BINS, 1, 7] = 4.0
    for side in range(4):
        outputs[0][0, side * BINS + side, 1, 7] = 60.0  # the side's number is its distance in strides
    (found,) = YoloHead(1, (48, 80)).detections(outputs)
    assert found.shape == (1, 6)
    torch.testing.assert_close(found[0, :4], torch.tensor((60.0, 4.0, 76.0, 36.0)))
    assert float(found[0, 4]) == pytest.approx(1 / (1 + math.exp(-4)))


@pytest.mark.parametrize("scale", [0.0, 200.0])
def test_gradients_are_finite(scale: float) -> None:
    """Of images without boxes, of equal shares, and of distributions and scores that are all but certain."""
    draw = np.random.default_rng(1)
    outputs = [(scale * one).requires_grad_() for one in maps(draw, 2)]
    head = YoloHead(CLASSES, SIDE)
    loss = head.loss(outputs, boxes(draw, [4, 0]))
    loss.backward()  # type: ignore[no-untyped-call]
    assert math.isfinite(float(loss.detach()))
    assert all(one.grad is not None and bool(one.grad.isfinite().all()) for one in outputs)


def test_outputs_that_follow_the_loss_become_the_boxes() -> None:
    wanted = torch.tensor([[[6.0, 4, 30, 40, 0], [30, 20, 58, 60, 2], [2, 50, 16, 62, 1]]])
    outputs = [nn.Parameter(torch.zeros(1, 4 * BINS + CLASSES, *size)) for size in SIZES]
    head, optimiser = YoloHead(CLASSES, SIDE), torch.optim.Adam(outputs, 0.2)
    for _ in range(150):
        optimiser.zero_grad()
        head.loss(outputs, wanted).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    (found,) = head.detections([one.detach() for one in outputs])
    best = {int(row[5]): row for row in found.flip(0)}
    for row in wanted[0]:
        assert overlap(best[int(row[4])].numpy(), row.numpy()) > 0.9
        assert float(best[int(row[4])][4]) > 0.8
