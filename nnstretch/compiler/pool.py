"""All CPU cores of several processors as one processor, which branches must beat, and where designs without branches run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nnstretch.branching.design.design import Design
from nnstretch.branching.latency.prediction import Pool
from nnstretch.compiler.costs import latency_predictor
from nnstretch.compiler.processors import Processors, build_processors
from nnstretch.devices.base.spec import ProcessorSpec, all_cores, pool_name
from nnstretch.errors import UsageError
from nnstretch.support.settings import core_speeds


def pool_of(
    processors: Processors, *, learned: bool | None = None, working_set: int | None = None, quick: bool = False
) -> Pool | None:
    """All cores of several processors as one, if at least two of them compute on cores of this machine's CPU.

    These are groups of cores, and OpenCL devices that are the CPU. The arguments are those of `latency_predictor`.
    """
    on_cores = _on_cores([processor.spec for processor in processors.named])
    cores = all_cores(on_cores)
    alone = any(spec.kind == "cpu" and spec.cores == cores for spec in on_cores)
    if processors.site is not None or len(on_cores) < 2 or alone:
        return None
    name = pool_name(cores)
    opened = build_processors(replace(processors.options, processors=name, threads=None))
    shares = {
        number: _speed(processor.spec.cores) / _speed(cores)
        for number, processor in enumerate(processors.named)
        if processor.spec.kind == "cpu"
    }
    return Pool(name, latency_predictor(opened, learned=learned, working_set=working_set, quick=quick), shares)


def place_without_branches(design: Design, processors: Sequence[ProcessorSpec]) -> str:
    """Where a design without branches is predicted to run, as `--processors` takes it.

    Args:
        design: a design without meeting points.
        processors: those that the design is for, in the order of its indices.

    Raises:
        UsageError: there are fewer processors than the design has, or no CPU cores where it is for all of them.
    """
    names, on_cores = [str(spec) for spec in processors], _on_cores(processors)
    if design.pool and on_cores:
        return pool_name(all_cores(on_cores))
    if design.pool or design.processors[-1] >= len(names):
        wanted = "CPU cores" if design.pool else f"{design.processors[-1] + 1} processors"
        raise UsageError(
            f"design {design.id} is for {wanted}, and {','.join(names)} was given; give those of its search"
        )
    return ",".join(names[number] for number in design.processors)


def _on_cores(specs: Sequence[ProcessorSpec]) -> list[ProcessorSpec]:
    """The processors that compute on cores of this machine's CPU."""
    return [spec for spec in specs if spec.kind in ("cpu", "opencl") and spec.cores]


def _speed(cores: Sequence[int]) -> float:
    """Relative speed of several cores together; 1 is that of a core that is not made slow."""
    slowed = core_speeds()
    return sum(slowed.get(core, 1.0) for core in cores)
