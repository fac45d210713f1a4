"""`nnstretch devices`: lists the processors of this machine, or describes a target."""

from __future__ import annotations

from typing import Annotated

from nnstretch.cli.console import Reporter, reporting
from nnstretch.cli.options import Json, option
from nnstretch.cli.targets.several import for_each_target
from nnstretch.devices.targets.base import OTHER_MACHINES
from nnstretch.errors import UsageError
from nnstretch.report.tables.text import plain_table

Targets = Annotated[
    list[str] | None,
    option(
        "--target TARGET",
        f"Describe another machine: {OTHER_MACHINES}. Repeatable.",
    ),
]


def devices_command(
    peak: Annotated[bool, option("--peak", "Measure the float32 peak of one core.")] = False,
    targets: Targets = None,
    json: Json = False,
) -> int:
    """List the processors of this machine that branches can run on.

    With --target, describe another machine: clusters of cores, clocks, CPU features, memory, OpenCL devices, temperatures.

    Example: nnstretch devices --peak
    """
    with reporting(as_json=json) as report:
        if targets:
            if peak:
                raise UsageError("--peak measures this machine; leave it or --target out")
            return for_each_target(report, targets, _describe)
        from nnstretch.api.devices import list_devices

        with report.progress("Looking for processors") as advance:
            found = list_devices(peak=peak, progress=advance)
        shown = plain_table("processor", "device", ">cores", "tensors", "instruction set", "usable")
        for one in found:
            peak_text = f", {one.peak_gflops_per_core:.0f} GFLOP/s per core" if one.peak_gflops_per_core else ""
            shown.add_row(
                one.name,
                one.device,
                str(one.cores),
                ", ".join(one.dtypes),
                f"{one.isa or '–'}{peak_text}",
                "yes" if one.usable else f"no: {one.why_not}",
            )
        report.show(shown)
        if not any(one.kind == "opencl" for one in found):
            report.note(
                "No OpenCL device was found; on Debian or Ubuntu, `apt-get install pocl-opencl-icd` installs one."
            )
        report.finish({"processors": [one.to_json() for one in found]})
        return 0


def _describe(report: Reporter, target: str) -> int:
    """Shows what a target is; returns 0."""
    from nnstretch.devices.targets.schemes import open_device
    from nnstretch.report.tables.targets import device_card

    with report.progress("Looking at the target") as advance, open_device(target, opencl=True) as device:
        advance(0, 0, target)
        probe = device.probe
    report.show(device_card(target, probe))
    clusters = [
        {"processor": cluster.specification, "cpus": [c.number for c in cluster.cpus]} for cluster in probe.clusters
    ]
    report.finish({"target": target, "device": probe.raw, "clusters": clusters})
    return 0
