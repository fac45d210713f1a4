"""The answer of a job (`transform_and_train`) in a few lines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nnstretch.cli.job.transform_options import MEASURE
from nnstretch.support.measures import Measure


def summary(answer: Mapping[str, Any], folder: Path) -> str:
    """The answer of a job in a few lines: scores, the gain, and where the products are."""
    measure = Measure(**answer["measure"])
    networks, why = [answer["original"], *answer["candidates"]], answer["unbranched"]
    lines = [] if why is None else [f"the network was not branched, and nothing was retrained: {why}"]
    mark = " (chosen)" if why is None else " (the original network)"
    lines += [
        f"{one['name']}: {measure.name} {one[f'test_{measure.key}']:.2f} % on the test images, "
        f"{one[f'validation_{measure.key}']:.2f} % on the validation images{mark if one['name'] == answer['chosen'] else ''}"
        for one in networks
    ]
    lines += [
        f"{one['name']} in int8: {measure.name} {one[measure.key]:.2f} % on the test images" for one in answer["int8"]
    ]
    if answer["comparison"] is not None:
        best = answer["comparison"]["best_alternative"]
        gain = answer["comparison"]["speedup_best_alternative"]
        other = f"the {best['network']}, {best['how']}, on {best['processors']}"
        lines.append(f"{gain:.2f}× as fast as the best alternative: {other}")
        product = "branched network" if why is None else "compiled network"
        lines.append(f"{folder / MEASURE} has report.html, the {product} and its timeline")
    return "\n".join(lines)
