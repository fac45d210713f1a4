"""Changed images: nothing by default, and never more than asked for."""

import pytest
import torch

from nnstretch.training.augmentation import Augmentation


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_nothing_is_changed_or_drawn_by_default() -> None:
    images = torch.randn(3, 1, 8, 8)
    source = generator()
    before = source.get_state()
    assert Augmentation().apply(images, source) is images
    assert torch.equal(source.get_state(), before)


def test_the_same_seed_gives_the_same_images_and_each_image_its_own_change() -> None:
    images = torch.randn(1, 2, 16, 16).expand(4, -1, -1, -1)
    change = Augmentation(shift=0.1, rotation=15, scale=0.1)
    first, second = change.apply(images, generator()), change.apply(images, generator())
    assert torch.equal(first, second)
    assert not torch.allclose(first[0], first[1])


def test_mirroring_flips_about_half_and_does_nothing_else() -> None:
    images = torch.randn(200, 1, 5, 5)
    changed = Augmentation(mirror=True).apply(images, generator())
    same = torch.isclose(changed, images, atol=1e-5).flatten(1).all(dim=1)
    flipped = torch.isclose(changed, images.flip(-1), atol=1e-5).flatten(1).all(dim=1)
    assert bool((same ^ flipped).all())
    assert 70 < int(flipped.sum()) < 130


def test_a_dot_moves_by_no_more_than_the_shift() -> None:
    images = torch.zeros(100, 1, 40, 40)
    images[:, :, 19:21, 19:21] = 1.0
    changed = Augmentation(shift=0.25).apply(images, generator())[:, 0]
    torch.testing.assert_close(changed.sum(dim=(1, 2)), torch.full((100,), 4.0), atol=1e-3, rtol=0)
    positions = torch.arange(40.0) - 19.5
    across = (changed.sum(dim=1) * positions).sum(dim=1) / 4
    down = (changed.sum(dim=2) * positions).sum(dim=1) / 4
    for moved in (across, down):
        assert 8 < float(moved.abs().max()) <= 10.01
        assert float(moved.min()) < 0 < float(moved.max())


@pytest.mark.parametrize(
    ("change", "low", "high"),
    [(Augmentation(rotation=30), 1.0, 1.0), (Augmentation(scale=0.5), 1 / 2.25, 2.25)],
)
def test_areas_change_by_the_scale_alone(change: Augmentation, low: float, high: float) -> None:
    areas = torch.det(change.matrices(500, generator())[:, :, :2])
    assert low - 1e-5 <= float(areas.min()) <= float(areas.max()) <= high + 1e-5
    if high > 1:
        assert float(areas.max()) > 1.5


def test_rotation_stays_within_its_angle() -> None:
    matrices = Augmentation(rotation=30).matrices(500, generator())
    angles = torch.rad2deg(torch.atan2(matrices[:, 1, 0], matrices[:, 0, 0]))
    assert 28 < float(angles.abs().max()) <= 30.001
