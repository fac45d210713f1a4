"""Description of the machine for reports."""

from __future__ import annotations

from typing import Any

from nnstretch.bench.timing.statistics import significant


def describe_machine(cores: tuple[int, ...], peak_gflops: float | None = None) -> dict[str, Any]:
    """CPU, number of cores in use, and the float32 FMA peak of one core in GFLOP/s, measured now if it is not given.

    Raises:
        BuildError: the engine that measures it cannot be built.
    """
    from nnstretch.devices.cpu.processor import cpu_model

    if peak_gflops is None:
        from nnstretch.devices.engine.binding.library import engine

        peak_gflops = engine().peak_gflops(cores[0])
    return {"cpu": cpu_model(), "cores": len(cores), "peak_gflops_per_core": significant(peak_gflops)}
