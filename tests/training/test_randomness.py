"""Random numbers that depend on their place alone."""

import random
import subprocess
import sys

import numpy as np
import pytest
import torch

from nnstretch.training.randomness import (
    ImageDraws,
    hashes,
    normals,
    permutation,
    preserved_generators,
    seed_generators,
    seed_of,
    uniforms,
)

NUMBERS = np.arange(20_000)


def test_numbers_are_the_same_everywhere() -> None:
    """Values that were computed once: another version or machine must give the same."""
    assert seed_of(0, 0, 0, "order") == 16597204807069270302
    assert seed_of(2**63 - 1, 10**6, 10**9, "mixing") == 18314755676645213098
    assert permutation(7, 3, 8).tolist() == [2, 1, 4, 5, 7, 6, 0, 3]


def test_seeds_of_many_are_the_seeds_of_each() -> None:
    assert hashes(3, 4, NUMBERS[:50], "image").tolist() == [seed_of(3, 4, number, "image") for number in range(50)]
    draws = ImageDraws(3, 4, NUMBERS[10:13])
    assert draws.seeds("image") == [seed_of(3, 4, number, "image") for number in (10, 11, 12)]
    whole = uniforms(3, 4, NUMBERS[:50], "affine", 5)
    assert np.array_equal(draws.uniforms("affine", 5), whole[10:13])
    assert np.array_equal(draws.normals("affine", 2), normals(3, 4, NUMBERS[:50], "affine", 2)[10:13])


@pytest.mark.parametrize("changed", [(1, 0, "a"), (0, 1, "a"), (0, 0, "b")])
def test_other_places_are_independent(changed: tuple[int, int, str]) -> None:
    seed, epoch, purpose = changed
    first, second = (uniforms(s, e, NUMBERS, p, 1)[:, 0] for s, e, p in ((0, 0, "a"), (seed, epoch, purpose)))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03
    assert not np.array_equal(permutation(0, 0, 100, "a"), permutation(seed, epoch, 100, purpose))


def test_distributions_are_uniform_and_normal() -> None:
    flat = uniforms(1, 2, NUMBERS, "x", 3)
    assert 0 <= flat.min() < flat.max() < 1
    counts, _ = np.histogram(flat, 20, (0, 1))
    assert np.abs(counts / flat.size - 0.05).max() < 0.005
    assert np.abs(np.corrcoef(flat.T) - np.eye(3)).max() < 0.03
    bell = normals(1, 2, NUMBERS, "x", 3)
    assert abs(bell.mean()) < 0.02
    assert abs(bell.std() - 1) < 0.02
    assert abs((np.abs(bell) < 1).mean() - 0.6827) < 0.01
    assert np.abs(np.corrcoef(bell.T) - np.eye(3)).max() < 0.03


def test_a_permutation_has_every_number_once() -> None:
    assert sorted(permutation(1, 2, 1000).tolist()) == list(range(1000))
    assert permutation(1, 2, 0).tolist() == []


def seed_and_fail() -> None:
    seed_generators(5)
    raise ZeroDivisionError


def test_a_block_is_seeded_and_the_generators_are_put_back() -> None:
    def drawn() -> tuple[float, float, float]:
        return random.random(), float(np.random.random()), float(torch.rand(()))  # noqa: NPY002

    before = random.getstate(), torch.get_rng_state()
    with preserved_generators():
        seed_generators(2**64 - 1)
        first = drawn()
        seed_generators(2**64 - 1)
        assert drawn() == first
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    with pytest.raises(ZeroDivisionError), preserved_generators():
        seed_and_fail()
    assert random.getstate() == before[0]


def test_drawing_needs_no_torch() -> None:
    modules = "nnstretch.training.data.sources.textures, nnstretch.training.randomness"
    code = f"import sys; import {modules}; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert result.stdout.strip() == "False"
