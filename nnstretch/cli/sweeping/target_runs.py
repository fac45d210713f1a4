"""Runs of a grid's points on a target: models are compiled here and timed there by the runner."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from nnstretch.bench.targets.models import check_for_target
from nnstretch.cli.models.sources import Source
from nnstretch.compiler.compile import plan_model
from nnstretch.compiler.targets.processors import target_processors
from nnstretch.compiler.targets.site import TargetSite
from nnstretch.devices.targets.base import TargetError
from nnstretch.devices.targets.device import Device
from nnstretch.devices.targets.results import BenchOptions
from nnstretch.devices.targets.schemes import open_device
from nnstretch.devices.targets.side_by_side import alone_on
from nnstretch.errors import first_line
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.sweeps.grid import GridPoint, RunTimes

_WARMUP = 0.2


@dataclass(frozen=True)
class TargetRuns:
    """Times the runs of points on a target.

    Attributes:
        device: the target.
        site: measures routines there.
        source: the model of a point, with its settings.
        seconds: of timed runs per point.
    """

    device: Device
    site: TargetSite
    source: Callable[[GridPoint], Source]
    seconds: float

    def __call__(self, point: GridPoint) -> RunTimes:
        """Plans the model and runs it; a signal ends what runs there.

        Raises:
            NNStretchError: it cannot be planned or run.
        """
        return alone_on(self.device, lambda: self._timed(point))

    def _timed(self, point: GridPoint) -> RunTimes:
        compiled = self._compiled(self.source(point))
        options = BenchOptions(seconds=self.seconds, warmup=_WARMUP)
        found = self.site.timed(compiled, options, Path(point.model).stem)
        if found.p50_ms is None or found.p90_ms is None:
            raise TargetError(f"{self.device.name}: the runner gave no latency")
        return RunTimes(1e-3 * found.p50_ms, 1e-3 * found.p90_ms, found.runs or 0)

    def _compiled(self, source: Source) -> Compiled:
        """The plan of a model; what cannot run there is refused before anything is measured.

        Raises:
            NNStretchError: it cannot be planned.
        """
        processors = target_processors(self.device, source.options, self.site)
        estimated = plan_model(source.load(), replace(processors, site=None), tune=False)
        check_for_target(estimated, source.model)
        return plan_model(source.load(), processors) if source.options.tune else estimated


@contextmanager
def opened_targets(
    targets: Sequence[str], *, opencl: bool
) -> Iterator[tuple[dict[str, tuple[Device, TargetSite]], dict[str, str]]]:
    """Targets within the block, and why others cannot be used.

    Args:
        targets: as users write them.
        opencl: whether models may have OpenCL queues.

    Raises:
        UsageError: a target is not understood.
        NNStretchError: the only target cannot be used.
    """
    opened: dict[str, tuple[Device, TargetSite]] = {}
    failures: dict[str, str] = {}
    with ExitStack() as stack:
        for target in targets:
            try:
                device = stack.enter_context(open_device(target, opencl=opencl))
            except TargetError as error:
                if len(targets) == 1:
                    raise
                failures[target] = first_line(error)
            else:
                opened[target] = device, stack.enter_context(TargetSite(device))
        yield opened, failures
