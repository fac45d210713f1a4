"""Random changes of training images: by timm and torchvision for one whole image, and for a batch of inputs.

Every image draws its own amounts, from its own seed (`training.randomness`).

Method of the colours: Krizhevsky, Sutskever and Hinton, "ImageNet Classification with Deep Convolutional Neural Networks"
(2012), section 4.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from nnstretch.errors import UsageError, first_line
from nnstretch.training.data.preprocessing import Pixels, Preprocessing, in_channels, pillow
from nnstretch.training.libraries import library
from nnstretch.training.randomness import ImageDraws, preserved_generators, seed_generators
from nnstretch.training.recipe import Recipe
from nnstretch.training.tasks.base import SpatialTask, as_array

ImageTransform = Callable[[Pixels], Pixels]
SpatialTransform = Callable[[Pixels, Any], tuple[Pixels, Any]]

# Principal components of the colours (0 … 1; red, green, blue) of ImageNet's training images: the square roots of the
# eigenvalues of their covariance, and the eigenvectors, one per column.
_COLOR_SCALES = (0.2175, 0.0188, 0.0045)
_COLOR_COMPONENTS = ((-0.5675, 0.7192, 0.4009), (-0.5808, -0.0045, -0.8140), (-0.5836, -0.6948, 0.4203))
_LONGEST_TRANSLATION = 0.45  # of the side; timm's


def image_transform(recipe: Recipe, preprocessing: Preprocessing) -> ImageTransform | None:
    """What makes ``height x width x C`` pixels of a whole image by random crops, automatic augmentation and colour jitter.

    It draws from the global generators. None if the recipe wants none of these.

    Raises:
        UsageError: timm does not know the name of the automatic augmentation.
    """
    if recipe.scale is None and recipe.aa is None and not recipe.color_jitter:
        return None
    colors = _color_transforms(recipe, preprocessing)
    channels = preprocessing.channels
    working = 3 if colors else channels  # transforms of colours want three channels
    crop = _crop(recipe, preprocessing)

    def changed(raw: Pixels) -> Pixels:
        image = crop(in_channels(raw, working))
        for transform in colors:
            image = transform(image)
        pixels = np.array(image, np.uint8)
        return in_channels(pixels.reshape(*pixels.shape[:2], -1), channels)

    return changed


def _crop(recipe: Recipe, preprocessing: Preprocessing) -> Callable[[Pixels], Any]:
    """From a whole image to a Pillow image of the input's size, with as many channels."""
    image_module = pillow()

    def opened(raw: Pixels) -> Any:
        return image_module.fromarray(raw if raw.shape[2] == 3 else raw[..., 0])

    if recipe.scale is None:
        return lambda raw: opened(preprocessing.cropped(raw))
    crop = library("timm.data.transforms").RandomResizedCropAndInterpolation(
        preprocessing.shape, recipe.scale, _crop_ratio(recipe, preprocessing), interpolation=preprocessing.interpolation
    )
    return lambda raw: crop(opened(raw))


def _crop_ratio(recipe: Recipe, preprocessing: Preprocessing) -> tuple[float, float]:
    """The least and the largest aspect ratio of random crops."""
    height, width = preprocessing.shape
    low, high = (ratio * (width / height) for ratio in recipe.ratio)
    return low, high


def _color_transforms(recipe: Recipe, preprocessing: Preprocessing) -> list[Callable[[Any], Any]]:
    """Automatic augmentation, or the jitter that timm turns off beside it, but for policies with `3a`."""
    transforms = []
    if recipe.aa is not None:
        transforms.append(_automatic(recipe.aa, preprocessing))
    if recipe.color_jitter and (recipe.aa is None or "3a" in recipe.aa):
        jitter = library("torchvision.transforms").ColorJitter
        transforms.append(jitter(*(recipe.color_jitter,) * 3))
    return transforms


def _automatic(policy: str, preprocessing: Preprocessing) -> Callable[[Any], Any]:
    """A policy by timm's name: random augment, AugMix or AutoAugment, with the parameters that timm's transforms give it."""
    makers = library("timm.data.auto_augment")
    mean = preprocessing.mean if preprocessing.channels == 3 else preprocessing.mean * 3
    settings: dict[str, Any] = {
        "translate_const": int(min(preprocessing.shape) * _LONGEST_TRANSLATION),
        "img_mean": tuple(min(255, round(255 * value)) for value in mean),
        "interpolation": library("timm.data.transforms").str_to_pil_interp(preprocessing.interpolation),
    }
    make = makers.auto_augment_transform
    if policy.startswith("rand"):
        make = makers.rand_augment_transform
    elif policy.startswith("augmix"):
        make, settings["translate_pct"] = makers.augment_and_mix_transform, 0.3
    try:
        transform: Callable[[Any], Any] = make(policy, settings)
    except (AssertionError, KeyError, ValueError, IndexError, UnboundLocalError) as error:
        raise UsageError(
            f"recipe: aa is {policy!r}, which timm does not know ({first_line(error)}); write a policy such as "
            "rand-m7-mstd0.5-inc1, augmix-m3-w3 or original"
        ) from error
    return transform


def spatial_transform(recipe: Recipe, preprocessing: Preprocessing, task: SpatialTask) -> SpatialTransform:
    """What makes an input's pixels ``height x width x C`` and its target of a whole image and its own.

    Random crops, flips, shifts, rotations and zooms are torchvision's, which move masks and boxes with the pixels. What lies
    outside an image has the mean colour. Crops and colour jitter draw from the global generators.
    """
    library_of_transforms, tensors = library("torchvision.transforms.v2"), library("torchvision.tv_tensors")
    random_crop = recipe.scale is not None
    steps = _spatial_steps(recipe, preprocessing, task, library_of_transforms, tensors)
    change = library_of_transforms.Compose(steps) if steps else None

    def changed(raw: Pixels, target: Any) -> tuple[Pixels, Any]:
        pixels = in_channels(raw, preprocessing.channels)
        if not random_crop:
            pixels, target = preprocessing.cropped(pixels), task.fitted(target, preprocessing)
        if change is None:  # wrapping alone takes longer than a small network's step
            return pixels, target
        image = tensors.Image(torch.from_numpy(pixels.transpose(2, 0, 1).copy()))
        image, moved = change(image, task.wrapped(target, tensors))
        return np.ascontiguousarray(as_array(image).transpose(1, 2, 0)), task.unwrapped(moved)

    return changed


def _spatial_steps(
    recipe: Recipe, preprocessing: Preprocessing, task: SpatialTask, transforms: Any, tensors: Any
) -> list[Any]:
    """The transforms of torchvision that a recipe wants, in their order."""
    interpolation = transforms.InterpolationMode[preprocessing.interpolation.upper()]
    steps = []
    if recipe.scale is not None:
        steps.append(
            transforms.RandomResizedCrop(
                preprocessing.shape, recipe.scale, _crop_ratio(recipe, preprocessing), interpolation=interpolation
            )
        )
    if recipe.hflip:
        steps.append(transforms.RandomHorizontalFlip(recipe.hflip))
    if recipe.shift or recipe.rotation or recipe.zoom:
        fill: dict[Any, Any] = {tensors.Image: [255 * value for value in preprocessing.mean], tensors.Mask: task.fill}
        steps.append(
            transforms.RandomAffine(
                recipe.rotation,
                (recipe.shift, recipe.shift),
                (1 / (1 + recipe.zoom), 1 + recipe.zoom),
                interpolation=transforms.InterpolationMode.BILINEAR,
                fill=fill,
            )
        )
    if recipe.color_jitter:
        steps.append(transforms.ColorJitter(*(recipe.color_jitter,) * 3))
    return steps


def without_moves(recipe: Recipe) -> Recipe:
    """The recipe with changes of colours only: what is left for batches of images whose targets lie in them."""
    return replace(recipe, shift=0.0, rotation=0.0, zoom=0.0, hflip=0.0)


def augmented(images: Tensor, draws: ImageDraws, recipe: Recipe, std: Sequence[float]) -> Tensor:
    """A batch of inputs with random shift, rotation, zoom, flip, colours and erased parts.

    Args:
        images: normalised, ``N x C x H x W``; changed in place or returned as another tensor.
        draws: the random numbers of these images.
        recipe: the largest changes. Every image draws its own amounts, uniformly but for colours. What lies outside an image
            repeats its border.
        std: by which the images were divided.
    """
    if recipe.shift or recipe.rotation or recipe.zoom:
        maps = affine_maps(draws, recipe, aspect=images.shape[3] / images.shape[2])
        grid = functional.affine_grid(maps, list(images.shape), align_corners=False)
        images = functional.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
    elif recipe.hflip:
        flipped = torch.from_numpy(_flips(draws, recipe.hflip))
        images[flipped] = images[flipped].flip(-1)
    if recipe.color_pca and images.shape[1] == len(_COLOR_SCALES):
        images += color_shifts(draws, recipe.color_pca, std)[:, :, None, None]
    if recipe.reprob:
        erase = library("timm.data.random_erasing").RandomErasing(recipe.reprob, mode="pixel", device="cpu")
        with preserved_generators():
            for image, seed in zip(images, draws.seeds("erasing"), strict=True):
                seed_generators(seed)
                erase(image)
    return images


def affine_maps(draws: ImageDraws, recipe: Recipe, aspect: float = 1.0) -> Tensor:
    """Affine maps from output to input coordinates, ``N x 2 x 3``, both in [-1, 1]; they also flip.

    Args:
        draws: the random numbers of the images.
        recipe: the largest changes.
        aspect: width of the images over their height: coordinates of unlike sides have pixels of unlike lengths.
    """
    amounts = 2 * draws.uniforms("affine", 5) - 1
    angle = math.radians(recipe.rotation) * amounts[:, 0]
    zoom_x, zoom_y = np.exp(math.log1p(recipe.zoom) * amounts[:, 1:3].T)
    # The coordinates span 2, so a shift by the whole side is 2.
    shift_x, shift_y = 2 * recipe.shift * amounts[:, 3:5].T
    side = np.where(_flips(draws, recipe.hflip), -1.0, 1.0)
    cos, sin = np.cos(angle), np.sin(angle)
    across, down = sin * zoom_y / aspect, sin * zoom_x * side * aspect
    rows = [[cos * zoom_x * side, -across, shift_x], [down, cos * zoom_y, shift_y]]
    return torch.from_numpy(np.array(rows).transpose(2, 0, 1).astype(np.float32))


def color_shifts(draws: ImageDraws, deviation: float, std: Sequence[float]) -> Tensor:
    """What is added to the channels of normalised images: ``N x 3``.

    The amounts of the principal components have `deviation` times the components' own standard deviations.
    """
    amounts = draws.normals("colors", len(_COLOR_SCALES)) * deviation * _COLOR_SCALES
    return torch.from_numpy((amounts @ np.array(_COLOR_COMPONENTS).T / np.array(std)).astype(np.float32))


def _flips(draws: ImageDraws, share: float) -> NDArray[np.bool_]:
    flips: NDArray[np.bool_] = draws.uniforms("flip", 1)[:, 0] < share
    return flips


def mixed(images: Tensor, labels: Tensor, recipe: Recipe, num_classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """A batch with mixup or CutMix as timm does it: image ``i`` with image ``N - 1 - i``, one draw for the batch.

    Args:
        images: ``N x C x H x W``, N even; changed in place.
        labels: int64, ``N``.
        recipe: `mixup`, `cutmix`, their probabilities and `smoothing`.
        num_classes: number of classes.
        seed: of the draw.

    Returns:
        The images, and targets ``N x classes``.
    """
    mix = library("timm.data.mixup").Mixup(
        mixup_alpha=recipe.mixup,
        cutmix_alpha=recipe.cutmix,
        prob=recipe.mixup_prob,
        switch_prob=recipe.mixup_switch_prob,
        label_smoothing=recipe.smoothing,
        num_classes=num_classes,
    )
    with preserved_generators():
        seed_generators(seed)
        images, targets = mix(images, labels)
    return images, targets


def smoothed(labels: Tensor, smoothing: float, num_classes: int) -> Tensor:
    """Targets ``N x classes`` with a share spread over all classes."""
    targets = torch.full((len(labels), num_classes), smoothing / num_classes)
    return targets.scatter_(1, labels[:, None], 1 - smoothing + smoothing / num_classes)
