"""The phone profile: it equals the fit to four of NN-Stretch's published networks; its errors on these and on the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from nnstretch.devices.simulated.profile import SocProfile, load_profile
from nnstretch.errors import UsageError
from nnstretch.graph.layers import layers
from nnstretch.passes import optimize
from nnstretch.scheduler.simulation.fit import (
    Assumptions,
    Measurement,
    fit_profile,
    nonnegative_least_squares,
    relative_errors,
    simulated_seconds,
)
from tests.kits.networks.published_latencies import (
    ASSUMED,
    FITTED,
    HELD_OUT,
    MEASURED_MS,
    PROCESSORS,
    measurements,
    network,
    optimized,
)

COLUMNS = ("C", "G", "D", "CG", "CD")


@pytest.fixture(scope="module")
def phone() -> SocProfile:
    return load_profile("phone")


def errors(soc: SocProfile, names: Sequence[str]) -> np.ndarray:
    """Relative errors, a row per network and a column per combination of processors."""
    return relative_errors(soc, measurements(names)).reshape(len(names), len(COLUMNS))


def rms(of: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.sqrt((of**2).mean(axis=0))
    return found


# As the settings' authors count them, in 10^9 MACs at the size that they train at.
@pytest.mark.parametrize(
    ("name", "processors", "size", "gmacs"),
    [
        ("R-34", "C", 224, 3.66),
        ("R-34", "CD", 224, 2.53),
        ("R-50", "C", 224, 4.09),
        ("R-50", "CG", 224, 3.61),
        ("RX-1.6", "C", 224, 1.60),
        ("RX-1.6", "CG", 224, 1.45),
        ("EN-L4", "C", 300, 2.55),
        ("EN-L4", "CG", 300, 2.72),
        ("EN-B5", "CD", 456, 10.89),
    ],
)
def test_networks_have_the_published_macs(name: str, processors: str, size: int, gmacs: float) -> None:
    found = sum(node.layer.macs for node in layers(optimize(network(name, processors, size))))
    assert round(found / 1e9, 2) == gmacs


def test_the_shipped_profile_is_what_the_fit_to_four_networks_gives(phone: SocProfile) -> None:
    assert fit_profile(measurements(FITTED), ASSUMED) == phone
    assert HELD_OUT == ("R-50", "RX-4")
    assert len(FITTED) == 4
    assert not {*FITTED} & {*HELD_OUT}


def test_the_fitted_latencies_are_reproduced(phone: SocProfile) -> None:
    missed = errors(phone, FITTED)
    assert (rms(missed) < [0.01, 0.03, 0.05, 0.07, 0.09]).all()
    assert rms(missed.ravel()) < 0.053
    assert np.abs(missed).max() < 0.13


def test_networks_that_were_held_out_are_predicted(phone: SocProfile) -> None:
    missed = errors(phone, HELD_OUT)
    assert (rms(missed) < [0.09, 0.12, 0.02, 0.05, 0.14]).all()
    assert rms(missed.ravel()) < 0.091
    assert np.abs(missed).max() < 0.19


def test_processors_rank_as_published_for_every_network(phone: SocProfile) -> None:
    """Held-out ones too."""
    names = (*FITTED, *HELD_OUT)
    published = np.array([[MEASURED_MS[name][column] for column in COLUMNS] for name in names])
    simulated = published * (1 + errors(phone, names))
    assert (np.argsort(simulated, axis=1) == np.argsort(published, axis=1)).all()
    gains = [times[:, :3].min(axis=1, keepdims=True) / times[:, 3:] for times in (published, simulated)]
    mean = [np.exp(np.log(gain).mean(axis=0)) for gain in gains]
    assert mean[1] == pytest.approx(mean[0], rel=0.03)


@pytest.mark.slow
def test_each_network_is_predicted_by_a_fit_to_the_others() -> None:
    found = [
        errors(fit_profile(measurements([n for n in MEASURED_MS if n != name]), ASSUMED), [name])
        for name in MEASURED_MS
    ]
    assert (rms(np.concatenate(found)) < [0.09, 0.13, 0.08, 0.10, 0.14]).all()


# -- the fit itself ------------------------------------------------------------------------------------------------


def test_a_fit_finds_the_profile_that_made_the_figures(phone: SocProfile) -> None:
    names = ("R-34", "R-50", "RX-1.6", "EN-L4")
    made = [
        Measurement(optimized(name, column), tuple(PROCESSORS[c] for c in column), 1.0)
        for name in names
        for column in ("C", "G", "CG")
    ]
    exact = [Measurement(m.model, m.processors, simulated_seconds(phone, m)) for m in made]
    found = fit_profile(exact, ASSUMED)
    for name in ("cpu", "gpu"):
        one, other = found.processors[name], phone.processors[name]
        assert one.compute["conv"].gmacs_per_s[0][1] == pytest.approx(other.compute["conv"].gmacs_per_s[0][1], rel=1e-3)
        assert one.compute["grouped"].group_us == pytest.approx(other.compute["grouped"].group_us, rel=1e-3)
        assert one.memory_gb_per_s["any"] == pytest.approx(other.memory_gb_per_s["any"], rel=1e-3)
    assert found.pair("cpu", "gpu").gb_per_s == pytest.approx(phone.pair("cpu", "gpu").gb_per_s, rel=0.01)


def test_too_few_networks_are_told() -> None:
    some = [m for m in measurements([*MEASURED_MS]) if m.processors == ("cpu",)]
    with pytest.raises(UsageError, match="2 networks were measured on cpu alone, but it has 3 unknowns"):
        fit_profile([some[0], some[2]], Assumptions())
    plain = fit_profile(some[:2], Assumptions())  # without groups there are two
    assert plain.processors["cpu"].compute["grouped"].group_us == 0.0


def test_a_transfer_is_not_faster_than_memory(phone: SocProfile) -> None:
    for measured in (
        measurements(FITTED),
        [replace(m, seconds=m.seconds / len(m.processors)) for m in measurements(FITTED)],
    ):
        found = fit_profile(measured, ASSUMED)
        for pair in found.pairs:
            assert pair.gb_per_s <= min(found.processors[name].memory_gb_per_s["any"] for name in pair.processors)


def test_a_pair_needs_its_processors_alone() -> None:
    some = [m for m in measurements([*MEASURED_MS]) if "dsp" not in m.processors and m.processors != ("gpu",)]
    with pytest.raises(UsageError, match="measured on cpu, gpu together"):
        fit_profile(some, Assumptions())


def test_nonnegative_least_squares_by_brute_force() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        rows, wanted = rng.standard_normal((6, 3)), rng.standard_normal(6)
        found = nonnegative_least_squares(rows, wanted)
        assert (found >= 0).all()
        gradient = rows.T @ (
            rows @ found - wanted
        )  # of half the squared error: the conditions of Karush, Kuhn and Tucker
        assert gradient[found > 0] == pytest.approx(0, abs=1e-9)
        assert (gradient[found == 0] >= -1e-9).all()
