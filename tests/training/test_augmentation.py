"""Changed images: nothing by default, and never more than asked for."""

import math

import numpy as np
import pytest
import torch

from nnstretch.training.augmentation import affine_maps, augmented, color_shifts
from nnstretch.training.randomness import ImageDraws
from nnstretch.training.recipe import Recipe

PHOTO_STD = (0.229, 0.224, 0.225)


def draws(count: int, seed: int = 0) -> ImageDraws:
    return ImageDraws(seed, 0, np.arange(count))


def test_nothing_is_changed_by_default() -> None:
    images = torch.randn(3, 1, 8, 8)
    before = images.clone()
    state = torch.get_rng_state()
    assert augmented(images, draws(3), Recipe(), (1.0,)) is images
    assert torch.equal(images, before)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_same_seed_gives_the_same_images_and_each_image_its_own_change() -> None:
    images = torch.randn(1, 2, 16, 16).repeat(4, 1, 1, 1)
    recipe = Recipe(shift=0.1, rotation=15, zoom=0.1)
    first, second = (augmented(images.clone(), draws(4), recipe, (1.0, 1.0)) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.allclose(first[0], first[1])
    assert not torch.allclose(first, augmented(images.clone(), draws(4, seed=1), recipe, (1.0, 1.0)))


def test_an_images_change_does_not_depend_on_its_batch() -> None:
    images = torch.randn(6, 3, 16, 16)
    recipe = Recipe(shift=0.1, hflip=0.5, color_pca=0.1, reprob=0.9)
    whole = augmented(images.clone(), draws(6), recipe, PHOTO_STD)
    part = augmented(images[2:5].clone(), ImageDraws(0, 0, np.arange(2, 5)), recipe, PHOTO_STD)
    torch.testing.assert_close(part, whole[2:5], rtol=0, atol=1e-6)


@pytest.mark.parametrize(("share", "low", "high"), [(0.5, 70, 130), (0.1, 8, 35), (1.0, 200, 200)])
@pytest.mark.parametrize("zoom", [0.0, 1e-9])  # alone, and with the affine maps
def test_flips_happen_in_their_share_and_change_nothing_else(share: float, low: int, high: int, zoom: float) -> None:
    images = torch.randn(200, 1, 5, 5)
    changed = augmented(images.clone(), draws(200), Recipe(hflip=share, zoom=zoom), (1.0,))
    same = torch.isclose(changed, images, atol=1e-5).flatten(1).all(dim=1)
    flipped = torch.isclose(changed, images.flip(-1), atol=1e-5).flatten(1).all(dim=1)
    assert bool((same ^ flipped).all())
    assert low <= int(flipped.sum()) <= high


def test_a_dot_moves_by_no_more_than_the_shift() -> None:
    images = torch.zeros(100, 1, 40, 40)
    images[:, :, 19:21, 19:21] = 1.0
    changed = augmented(images, draws(100), Recipe(shift=0.25), (1.0,))[:, 0]
    torch.testing.assert_close(changed.sum(dim=(1, 2)), torch.full((100,), 4.0), atol=1e-3, rtol=0)
    positions = torch.arange(40.0) - 19.5
    across = (changed.sum(dim=1) * positions).sum(dim=1) / 4
    down = (changed.sum(dim=2) * positions).sum(dim=1) / 4
    for moved in (across, down):
        assert 8 < float(moved.abs().max()) <= 10.01
        assert float(moved.min()) < 0 < float(moved.max())


@pytest.mark.parametrize(
    ("recipe", "low", "high"),
    [(Recipe(rotation=30), 1.0, 1.0), (Recipe(zoom=0.5), 1 / 2.25, 2.25)],
)
def test_areas_change_by_the_zoom_alone(recipe: Recipe, low: float, high: float) -> None:
    areas = torch.det(affine_maps(draws(500), recipe)[:, :, :2])
    assert low - 1e-5 <= float(areas.min()) <= float(areas.max()) <= high + 1e-5
    if high > 1:
        assert float(areas.max()) > 1.5


@pytest.mark.parametrize(("height", "width"), [(16, 16), (16, 48)])
def test_rotation_stays_within_its_angle_and_bends_nothing(height: int, width: int) -> None:
    maps = affine_maps(draws(500), Recipe(rotation=30), aspect=width / height)[:, :, :2]
    sides = torch.tensor([width, height], dtype=torch.float32)
    turns = maps * sides[:, None] / sides  # from coordinates to pixels
    torch.testing.assert_close(turns @ turns.transpose(1, 2), torch.eye(2).expand(500, 2, 2), atol=1e-5, rtol=0)
    angles = torch.rad2deg(torch.atan2(turns[:, 1, 0], turns[:, 0, 0]))
    assert 28 < float(angles.abs().max()) <= 30.001
    assert abs(float(angles.mean())) < 3


def test_colours_change_along_the_principal_components() -> None:
    images = torch.zeros(4000, 3, 2, 2)
    changed = augmented(images, draws(4000), Recipe(color_pca=0.1), PHOTO_STD)
    assert torch.equal(changed[..., :1, :1].expand_as(changed), changed)
    colours = changed[:, :, 0, 0] * torch.tensor(PHOTO_STD)
    deviations = torch.linalg.eigvalsh(colours.T.cov()).flip(0).sqrt()
    torch.testing.assert_close(deviations, 0.1 * torch.tensor([0.2175, 0.0188, 0.0045]), rtol=0.05, atol=0)
    grey = torch.randn(3, 1, 4, 4)
    unchanged = augmented(grey.clone(), draws(3), Recipe(color_pca=0.1), (1.0,))
    torch.testing.assert_close(unchanged, grey, atol=1e-5, rtol=0)


def test_colours_are_divided_by_the_standard_deviation_of_the_data_set() -> None:
    wide, narrow = (color_shifts(draws(5), 0.1, (deviation,) * 3) for deviation in (0.5, 0.25))
    torch.testing.assert_close(narrow, 2 * wide)


def test_parts_are_erased_by_noise_in_their_share() -> None:
    images = torch.full((400, 3, 20, 20), 7.0)
    changed = augmented(images.clone(), draws(400), Recipe(reprob=0.25), PHOTO_STD)
    erased = (changed != images).any(dim=1).flatten(1).float().mean(dim=1)
    assert 70 < int((erased > 0).sum()) < 130
    assert float(erased.max()) < 0.4
    noise = changed[changed != 7.0]
    assert abs(float(noise.mean())) < 0.1
    assert abs(float(noise.std()) - 1) < 0.1
    assert math.isfinite(float(changed.sum()))
