"""Random numbers that are functions of their place in a training, never of a stream.

What is drawn for an image depends on the training's seed, the epoch, the number of the image and the purpose. A training
that resumes in the middle of an epoch replays nothing, and the number of workers or processes changes nothing.

The hash is SplitMix64's finaliser (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014, figure 16):
integer arithmetic only, the same on every machine and with every version of numpy.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from nnstretch.training.data.split import Indices

_WORD = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

Numbers = NDArray[np.float64]


def seed_of(seed: int, epoch: int, number: int, purpose: str) -> int:
    """A seed of 64 bits.

    Args:
        seed: of the training.
        epoch: from 0.
        number: of the image or of the step.
        purpose: what is drawn; different purposes are independent.
    """
    return _mixed(_key(seed, epoch, purpose) ^ _mixed(number & _WORD))


def hashes(seed: int, epoch: int, numbers: Indices, purpose: str) -> NDArray[np.uint64]:
    """`seed_of` for many numbers at once: uint64, of the shape of `numbers`."""
    return _mixed_array(np.uint64(_key(seed, epoch, purpose)) ^ _mixed_array(numbers.astype(np.uint64)))


def uniforms(seed: int, epoch: int, numbers: Indices, purpose: str, count: int) -> Numbers:
    """`count` uniform numbers in [0, 1) for each of `numbers`: float64, ``len(numbers) x count``."""
    draws = (np.arange(count, dtype=np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN)
    words = _mixed_array(hashes(seed, epoch, numbers, purpose)[:, None] + draws)
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def normals(seed: int, epoch: int, numbers: Indices, purpose: str, count: int) -> Numbers:
    """`count` standard normal numbers for each of `numbers`: float64, ``len(numbers) x count`` (Box-Muller)."""
    pairs = uniforms(seed, epoch, numbers, purpose, 2 * count)
    radius = np.sqrt(-2 * np.log1p(-pairs[:, :count]))
    turned: Numbers = radius * np.cos(2 * np.pi * pairs[:, count:])
    return turned


def permutation(seed: int, epoch: int, count: int, purpose: str = "order") -> Indices:
    """0 … ``count - 1`` in random order: int64."""
    return np.argsort(hashes(seed, epoch, np.arange(count), purpose), kind="stable").astype(np.int64)


@dataclass(frozen=True)
class ImageDraws:
    """Random numbers of the images of a batch, each from its own seed.

    Attributes:
        seed: of the training.
        epoch: from 0.
        numbers: the images' numbers in their split.
    """

    seed: int
    epoch: int
    numbers: Indices

    def uniforms(self, purpose: str, count: int) -> Numbers:
        """`count` uniform numbers in [0, 1) per image: ``N x count``."""
        return uniforms(self.seed, self.epoch, self.numbers, purpose, count)

    def normals(self, purpose: str, count: int) -> Numbers:
        """`count` standard normal numbers per image: ``N x count``."""
        return normals(self.seed, self.epoch, self.numbers, purpose, count)

    def seeds(self, purpose: str) -> list[int]:
        """A seed per image."""
        return [seed_of(self.seed, self.epoch, number, purpose) for number in self.numbers.tolist()]


@contextmanager
def preserved_generators() -> Iterator[None]:
    """Restores the global generators of Python, numpy and torch after a block that seeds them.

    Transforms of libraries draw from these.
    """
    import torch

    of_python, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 (libraries draw from it)
    of_torch = torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)  # noqa: NPY002
        torch.default_generator.set_state(of_torch)


def seed_generators(seed: int) -> None:
    """Seeds the global generators of Python, numpy and torch, within `preserved_generators`: saving them costs more."""
    import torch

    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002
    torch.default_generator.manual_seed(seed & (2**63 - 1))  # that of torch itself also seeds devices, which takes long


@lru_cache(maxsize=256)
def _key(seed: int, epoch: int, purpose: str) -> int:
    word = _mixed(seed & _WORD)
    for part in (epoch & _WORD, zlib.crc32(purpose.encode())):
        word = _mixed(word ^ _mixed(part))
    return word


def _mixed(word: int) -> int:
    word = (word + _GOLDEN) & _WORD
    word = ((word ^ (word >> 30)) * _FIRST) & _WORD
    word = ((word ^ (word >> 27)) * _SECOND) & _WORD
    return word ^ (word >> 31)


def _mixed_array(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    words = words + np.uint64(_GOLDEN)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(_FIRST)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(_SECOND)
    return words ^ (words >> np.uint64(31))
