"""All CPU cores of several processors as one processor, which branches must beat."""

from __future__ import annotations

from dataclasses import replace

from nnstretch.branching.latency.prediction import Pool
from nnstretch.compiler.costs import latency_predictor
from nnstretch.compiler.processors import Processors, build_processors
from nnstretch.devices.base.spec import all_cores, format_cores


def pool_of(processors: Processors, *, learned: bool | None = None, working_set: int | None = None) -> Pool | None:
    """All cores of several processors as one, if at least two of them compute on cores of this machine's CPU.

    These are groups of cores, and OpenCL devices that are the CPU. The arguments are those of `latency_predictor`.
    """
    on_cores = [p for p in processors.named if p.spec.kind in ("cpu", "opencl") and p.spec.cores]
    cores = all_cores(processor.spec for processor in on_cores)
    alone = any(processor.spec.kind == "cpu" and processor.spec.cores == cores for processor in on_cores)
    if processors.site is not None or len(on_cores) < 2 or alone:
        return None
    name = f"cpu:{format_cores(cores)}"
    opened = build_processors(replace(processors.options, processors=name, threads=None))
    shares = {
        number: len(processor.spec.cores) / len(cores)
        for number, processor in enumerate(processors.named)
        if processor.spec.kind == "cpu"
    }
    return Pool(name, latency_predictor(opened, learned=learned, working_set=working_set), shares)
