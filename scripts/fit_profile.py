"""Fits a profile of simulated processors to measured latencies of networks, and reports the errors.

    python scripts/fit_profile.py measured.json -o mine.json
    nnstretch stretch resnet50 --processors sim:mine.json/cpu,sim:mine.json/gpu -o designs/

The table is one JSON object: `measurements`, a list of `{"model": …, "processors": [names], "ms": milliseconds}`, and optional
assumptions: `launch_us` (processor -> microseconds per layer), `sync_us`, `step`, `half`, `element_bytes`,
`channel_multiple`, `description`, as in docs/formats.md. A model is any MODEL of `nnstretch compile`. A model for
two processors is an ONNX file of `nnstretch stretch`, whose nodes name their processor.

Every processor needs at least two networks, three if some have grouped convolutions. More kinds of networks give a better fit.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from nnstretch.cli.scripts import exit_status
from nnstretch.compiler.loading import load_any
from nnstretch.devices.simulated.profile import save_profile
from nnstretch.errors import FileError, NNStretchError, UsageError
from nnstretch.passes import optimize
from nnstretch.scheduler.simulation.fit import Assumptions, Measurement, fit_profile, simulated_seconds


def main() -> int:
    """Reads the table, fits, and writes the profile."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True, help="the profile, a .json file")
    arguments = parser.parse_args()
    return exit_status(lambda: fit(arguments.table, arguments.output))


def fit(table: Path, output: Path) -> None:
    """Writes the profile and prints its errors."""
    names, measured, given = read_table(table)
    profile = fit_profile(measured, given)
    save_profile(profile, output)
    print("measured ms  fitted ms  held out ms")
    for number, (name, one) in enumerate(zip(names, measured, strict=True)):
        fitted = f"{1e3 * simulated_seconds(profile, one):9.2f}"
        print(
            f"{1e3 * one.seconds:11.2f}  {fitted}  {_held_out(number, measured, given)}  {name} on {', '.join(one.processors)}"
        )


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


def _held_out(number: int, measured: Sequence[Measurement], given: Assumptions) -> str:
    """Cross-validation: the latency of a model by a profile fitted to all other models."""
    one = measured[number]
    others = [other for other in measured if other.model is not one.model]
    try:
        return f"{1e3 * simulated_seconds(fit_profile(others, given), one):11.2f}"
    except NNStretchError:
        return f"{'–':>11}"


if __name__ == "__main__":
    sys.exit(main())
