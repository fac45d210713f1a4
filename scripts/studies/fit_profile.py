"""Fits a profile of simulated processors to measured latencies of networks, and reports the errors.

    python scripts/studies/fit_profile.py measured.json -o mine.json --hold-out resnet50 --hold-out regnet_x_4gf
    nnstretch stretch resnet50 --processors sim:mine.json/cpu,sim:mine.json/gpu -o designs/

The table is one JSON object: `measurements`, a list of `{"model": …, "processors": [names], "ms": milliseconds}`, and optional
assumptions: `launch_us` (processor -> microseconds per layer), `sync_us`, `step`, `half`, `element_bytes`,
`channel_multiple`, `description`, as in docs/formats.md. A model is any MODEL of `nnstretch compile`. A model for
two processors is an ONNX file of `nnstretch stretch`, whose nodes name their processor.

Every processor needs at least two networks, three if some have grouped convolutions. More kinds of networks give a better fit.
Errors of held-out networks, which the profile is not fitted to, are reported apart. They say how well the profile predicts.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from nnstretch.cli.console import exit_status
from nnstretch.devices.simulated.profile import SocProfile, save_profile
from nnstretch.errors import FileError, NNStretchError, UsageError
from nnstretch.frontends.resolve import load_any
from nnstretch.passes import optimize
from nnstretch.scheduler.simulation.fit import (
    Assumptions,
    Measurement,
    fit_profile,
    relative_errors,
    simulated_seconds,
)


def main() -> int:
    """Reads the table, fits, and writes the profile."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True, help="the profile, a .json file")
    parser.add_argument(
        "--hold-out", action="append", default=[], metavar="MODEL", help="test this model only; repeat for several"
    )
    arguments = parser.parse_args()
    return exit_status(lambda: fit(arguments.table, arguments.output, arguments.hold_out))


def fit(table: Path, output: Path, held_out: Sequence[str] = ()) -> None:
    """Writes the profile and prints its errors.

    Args:
        table: JSON file of measurements.
        output: the profile.
        held_out: models of the table that the profile is tested on and not fitted to.

    Raises:
        UsageError: a held-out model is not in the table, or too few networks are left.
    """
    names, measured, given = read_table(table)
    for name in held_out:
        if name not in names:
            raise UsageError(
                f"{table} has no model {name!r} to hold out; name one of {', '.join(dict.fromkeys(names))}"
            )
    fitted = [one for name, one in zip(names, measured, strict=True) if name not in held_out]
    profile = fit_profile(fitted, given)
    save_profile(profile, output)
    for title, is_shown in (("fitted", False), ("held out", True)):
        shown = [(n, m) for n, m in zip(names, measured, strict=True) if (n in held_out) == is_shown]
        if shown:
            print_errors(title, profile, shown)
    print("cross-validation: each network by a profile fitted to the other fitted ones")
    for name, one in zip(names, measured, strict=True):
        if name not in held_out:
            print(f"{1e3 * one.seconds:11.2f}  {_cross_validated(one, fitted, given)}  {_named(name, one)}")


def print_errors(title: str, profile: SocProfile, networks: Sequence[tuple[str, Measurement]]) -> None:
    """Prints measured and simulated milliseconds of networks, and the errors of all.

    Args:
        title: heading of the table.
        profile: the profile.
        networks: names and measurements, at least one.
    """
    errors = relative_errors(profile, [one for _, one in networks])
    print(f"{title}\nmeasured ms  simulated ms    error")
    for (name, one), error in zip(networks, errors, strict=True):
        milliseconds = 1e3 * one.seconds
        print(f"{milliseconds:11.2f}  {milliseconds * (1 + error):12.2f}  {error:+7.1%}  {_named(name, one)}")
    print(f"root mean square {np.sqrt(np.mean(errors**2)):.1%}, largest {np.abs(errors).max():.1%}\n")


def read_table(path: Path) -> tuple[list[str], list[Measurement], Assumptions]:
    """Names of the models, measurements, and assumptions.

    Raises:
        FileError: the table cannot be read.
        UsageError: its structure is wrong.
        ModelError: a model cannot be read.
    """
    try:
        raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        rows = [
            (str(r["model"]), tuple(map(str, r["processors"])), float(r["ms"]) * 1e-3) for r in raw.pop("measurements")
        ]
        step, half = map(int, raw.pop("step", (1, 1))), map(float, raw.pop("half", (0, 0)))
        given = Assumptions(**raw, step=_two(step), half=_two(half))
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is no table of measurements ({error!r}); see `{sys.argv[0]} --help`") from error
    models = {name: optimize(load_any(name)) for name in dict.fromkeys(name for name, _, _ in rows)}
    measured = [Measurement(models[name], processors, seconds) for name, processors, seconds in rows]
    return [name for name, _, _ in rows], measured, given


_Number = TypeVar("_Number", int, float)


def _two(numbers: Iterable[_Number]) -> tuple[_Number, _Number]:
    one, other = numbers
    return one, other


def _named(name: str, measured: Measurement) -> str:
    return f"{name} on {', '.join(measured.processors)}"


def _cross_validated(one: Measurement, measured: Sequence[Measurement], given: Assumptions) -> str:
    """Milliseconds of a network by a profile fitted to all others; a dash where these are too few."""
    others = [other for other in measured if other.model is not one.model]
    try:
        return f"{1e3 * simulated_seconds(fit_profile(others, given), one):12.2f}"
    except NNStretchError:
        return f"{'–':>12}"


if __name__ == "__main__":
    sys.exit(main())
