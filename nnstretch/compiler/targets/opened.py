"""A target with its processors, on which layers are measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from nnstretch.api.options import CompileOptions
from nnstretch.compiler.processors import Processors
from nnstretch.compiler.targets.opencl import names_opencl
from nnstretch.compiler.targets.processors import target_processors
from nnstretch.compiler.targets.site import TargetSite
from nnstretch.devices.targets.device import Device
from nnstretch.devices.targets.probe import Probe
from nnstretch.devices.targets.schemes import open_device
from nnstretch.devices.targets.side_by_side import alone_on
from nnstretch.support.progress import Progress, silent

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class OpenTarget:
    """A target and its processors, on which layers are measured."""

    device: Device
    processors: Processors

    def do(self, work: Callable[[], _Answer]) -> _Answer:
        """Does some work that measures on the target.

        A signal ends what runs there; measurements that were made are kept.
        """
        return alone_on(self.device, work)


@contextmanager
def open_target_processors(
    options: CompileOptions, *, clusters: bool = False, progress: Progress = silent
) -> Iterator[OpenTarget]:
    """The target of some options within the block.

    Args:
        options: name the target and the processors.
        clusters: the processors that the options name by default are all clusters of cores, the fastest first.
        progress: called while the target is prepared.

    Raises:
        UsageError: the target or its processors are not understood.
        TargetError: it cannot be used.
    """
    with open_device(options.target, opencl=names_opencl(options.processors)) as device, TargetSite(device) as site:

        def prepared() -> Processors:
            named = _clusters(device.probe) if clusters else options.processors
            return target_processors(device, replace(options, processors=named), site)

        progress(0, 0, f"{device.name}: the runner")
        yield OpenTarget(device, alone_on(device, prepared))


def _clusters(probe: Probe) -> str:
    return ",".join(cluster.specification for cluster in reversed(probe.clusters)) or "cpu"
