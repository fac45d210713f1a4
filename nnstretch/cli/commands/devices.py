"""`nnstretch devices`: which processors there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from nnstretch.cli.console import reporting
from nnstretch.cli.options import Json
from nnstretch.report.tables.text import plain_table


@dataclass(frozen=True)
class Found:
    """One processor of this machine, as `devices --json` lists it."""

    name: str
    kind: str
    device: str
    cores: int
    dtypes: tuple[str, ...]
    usable: bool
    why_not: str | None
    isa: str | None = None
    peak_gflops_per_core: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields."""
        return dict(vars(self)) | {"dtypes": list(self.dtypes)}


def devices(
    peak: Annotated[bool, typer.Option("--peak", help="Measure the float32 peak of one core.")] = False,
    json: Json = False,
) -> None:
    """List the processors of this machine that branches can run on.

    Example: nnstretch devices --peak
    """
    with reporting(as_json=json) as report:
        with report.progress("Looking for processors") as told:
            told(0, 3, "CPU")
            found = [_cpu(peak=peak)]
            told(1, 3, "OpenCL")
            found += _opencl()
            told(2, 3, "other engines")
            found += [_engine(kind) for kind in ("tflite", "ort")]
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
                "No OpenCL device was found; on Debian or Ubuntu, `apt-get install pocl-opencl-icd` brings one."
            )
        report.finish({"processors": [one.to_json() for one in found]})


def _cpu(*, peak: bool) -> Found:
    from nnstretch.devices.base.spec import format_cores, usable_cores
    from nnstretch.devices.cpu.processor import cpu_model
    from nnstretch.devices.engine.build.instruction_sets import local_isa
    from nnstretch.errors import BuildError, DeviceError

    cores = usable_cores()
    name, isa, gflops, why_not = f"cpu:{format_cores(cores)}", None, None, None
    try:
        isa = local_isa().name
        if peak:
            from nnstretch.devices.engine.binding.library import engine

            gflops = round(engine().peak_gflops(cores[0]), 1)
    except (BuildError, DeviceError) as error:
        why_not = str(error)
    return Found(name, "cpu", cpu_model(), len(cores), ("float32",), why_not is None, why_not, isa, gflops)


def _opencl() -> list[Found]:
    from nnstretch.devices.opencl.runtime.drivers import probe

    return [
        Found(
            name=f"opencl:{device.index}",
            kind="opencl",
            device=f"{device.name} ({device.platform})",
            cores=device.compute_units,
            dtypes=("float32", "float16") if device.fp16 else ("float32",),
            usable=device.usable,
            why_not=device.why_not or None,
        )
        for device in probe()
    ]


def _engine(kind: str) -> Found:
    """An engine of others as a processor on all cores."""
    from nnstretch.devices.base.spec import format_cores, parse_processors, usable_cores
    from nnstretch.devices.external.processor import EXTERNAL_KINDS, open_external_processor
    from nnstretch.errors import DeviceError, MissingExtraError

    cores = usable_cores()
    (spec,) = parse_processors(f"{kind}@{format_cores(cores)}")
    device, why_not = EXTERNAL_KINDS[kind], None
    try:
        device = open_external_processor(spec).device
    except (DeviceError, MissingExtraError) as error:
        why_not = str(error)
    return Found(str(spec), kind, device, len(cores), ("float32",), why_not is None, why_not)
