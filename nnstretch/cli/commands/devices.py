"""`nnstretch devices`: lists the processors of this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from nnstretch.cli.console import reporting
from nnstretch.cli.options import Json
from nnstretch.report.tables.text import plain_table


def devices_command(
    peak: Annotated[bool, typer.Option("--peak", help="Measure the float32 peak of one core.")] = False,
    json: Json = False,
) -> None:
    """List the processors of this machine that branches can run on.

    Example: nnstretch devices --peak
    """
    with reporting(as_json=json) as report:
        from nnstretch.api.devices import list_devices

        with report.progress("Looking for processors") as advance:
            found = list_devices(peak=peak, progress=advance)
        shown = plain_table("processor", "device", ">cores", "computes in", "instruction set", "usable")
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
