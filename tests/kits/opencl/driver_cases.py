"""Checks the kernels of an OpenCL driver in one process: `python -m tests.kits.opencl.driver_cases [-h] …`.

The first OpenCL device computes small layers and networks, which are compared with ONNX Runtime and torch. Prints one
JSON object:

    {"sources": [kernel files], "image_sources": [those that read images], "compared": number of cases,
     "wrong": [one line for each case that is], "refused": [one line for each case whose kernel the device does not take]}
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from nnstretch.devices.base.spec import ProcessorSpec
from nnstretch.devices.opencl import programs
from nnstretch.devices.opencl.drivers import device_info
from nnstretch.devices.opencl.routines import Traits
from nnstretch.devices.opencl.runtime import OpenCLRuntime
from nnstretch.errors import DeviceError, NNStretchError
from nnstretch.graph.layer import Layer
from tests.kits.kernels.convolution_parity import reference
from tests.kits.opencl import opencl_driver
from tests.kits.opencl.opencl_parity import feeds_of, relative_error, tolerance_of
from tests.kits.opencl.small_layers import IMAGES, KINDS, cases, image_cases

DEVICE = "device"
"""The kind of the driver's own device."""
_SIDE = 32
_NETWORK_TOLERANCE = 5e-4  # as of `nnstretch run --check`


@dataclass
class Findings:
    """What was compared.

    Attributes:
        used: kernel files that were used, each with a storage type and the reads that were images.
        compared: number of cases.
        wrong: a line for each case that failed or is wrong.
        refused: a line for each case whose kernel the device does not take.
    """

    used: set[tuple[str, str, int]] = field(default_factory=set)
    compared: int = 0
    wrong: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def to_json(self) -> str:
        sources = sorted({source for source, *_ in self.used})
        with_images = sorted({source for source, _, images in self.used if images})
        found = {"sources": sources, "image_sources": with_images, "compared": self.compared}
        return json.dumps({**found, "wrong": self.wrong, "refused": self.refused})


def compare_layers(
    runtime: OpenCLRuntime,
    traits: Traits,
    findings: Findings,
    settings: int | None,
    *,
    once: bool = False,
    conversions: bool = True,
) -> None:
    """Compares every routine of a device with `traits` on small layers.

    Args:
        runtime: the device.
        traits: what kernels are made for; with images, only settings that read these are compared.
        findings: gets the results.
        settings: how many settings of each routine; None: all.
        once: leave out what only uses kernel files that were compared with the same storage type and images.
        conversions: compare those between int8 and floats, too.
    """
    wanted: dict[int, tuple[Layer, np.ndarray]] = {}  # by id of the layer, which its reference keeps unique
    chosen = image_cases if traits.image_buffer else cases
    for routine, layer, parameters in chosen(traits, settings):
        layouts = routine.layouts(layer, parameters)
        if not conversions and layer.op == "Reorder" and any(one.dtype for some in layouts for one in some):
            continue
        lowering = routine.lower(layer, parameters)
        launches = [call.launch for call in lowering.calls if call.launch]
        used = {(launch.source, routine.descriptor.dtype, launch.images) for launch in launches}
        if once and used <= findings.used:
            continue
        if id(layer) not in wanted:
            feeds = feeds_of(layer)
            is_same = routine.descriptor.algorithm == "reorder"
            wanted[id(layer)] = layer, feeds[0] if is_same else reference(layer, feeds)
        try:
            (found,) = opencl_driver.run_lowering(runtime, lowering, layer, feeds_of(layer), *layouts)
            error = relative_error(found, wanted[id(layer)][1])
        except DeviceError as refusal:
            findings.refused.append(f"{routine.descriptor}: {refusal}")
            continue
        except (AssertionError, NNStretchError) as failure:
            reason = f"{type(failure).__name__} {failure}".splitlines()[0]
        else:
            findings.used |= used
            findings.compared += 1
            if error <= tolerance_of(routine):
                continue
            reason = f"{error:.1e} of the range"
        findings.wrong.append(f"{routine.descriptor} {dict(parameters)} {layer.workload} of {traits}: {reason}")


def compare_network(name: str, findings: Findings) -> None:
    """Compares a network of the zoo for small images, compiled without tuning, with torch."""
    import torch

    import nnstretch as nns
    from nnstretch import zoo

    module = zoo.build(name, num_classes=10, small_images=True)
    image = torch.randn((1, 3, _SIDE, _SIDE), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted = module(image).numpy()
    with nns.compile(module, image, processors="opencl:0", tune=False) as session:
        (found,) = session.run(None, {session.get_inputs()[0].name: image.numpy()})
    findings.compared += 1
    error = relative_error(found, wanted)
    if not error <= _NETWORK_TOLERANCE:
        findings.wrong.append(f"{name}: {error:.1e} of the range")


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Checks the kernels of the first OpenCL device.")
    parser.add_argument(
        "--kinds", nargs="*", default=[], choices=[*KINDS, *IMAGES, DEVICE], help="devices to make kernels for"
    )
    parser.add_argument("--settings", type=int, help="settings of every routine (all)")
    parser.add_argument("--once", action="store_true", help="each kernel file once for each storage type")
    parser.add_argument("--no-conversions", action="store_true", help="leave out those between int8 and floats")
    parser.add_argument("--parts", action="store_true", help="images are made of parts of buffers")
    parser.add_argument("--guard", type=int, default=opencl_driver.GUARD, help="bytes around every tensor")
    parser.add_argument("--networks", nargs="*", default=[], help="networks of the zoo")
    parser.add_argument("--optimised", nargs="*", default=[], help="networks that are compiled without `--option`")
    parser.add_argument("--option", action="append", default=[], help="another option of the compiler")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Compares what the arguments name and prints the findings."""
    chosen = _arguments(arguments)
    opencl_driver.GUARD = chosen.guard
    findings = Findings()
    for name in chosen.optimised:
        compare_network(name, findings)
    programs._OPTIONS = (*programs._OPTIONS, *chosen.option)
    runtime = OpenCLRuntime(ProcessorSpec("opencl", 0), info=device_info(0))
    if chosen.parts:
        runtime.largest_image = 0
    for kind in chosen.kinds:
        traits = runtime.traits if kind == DEVICE else {**KINDS, **IMAGES}[kind]
        conversions = not chosen.no_conversions
        compare_layers(runtime, traits, findings, chosen.settings, once=chosen.once, conversions=conversions)
    for name in chosen.networks:
        compare_network(name, findings)
    sys.stdout.write(findings.to_json())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
