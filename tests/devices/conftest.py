"""Engines of every instruction set that runs here with their routines, and an OpenCL device, for the tests of kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pytest

from nnstretch.devices.base.routine import Routine
from nnstretch.devices.base.spec import ProcessorSpec, usable_cores
from nnstretch.devices.engine.binding.library import Engine
from nnstretch.devices.engine.build.instruction_sets import Isa
from nnstretch.devices.opencl import drivers
from tests.kits.kernels import kernel_driver
from tests.kits.kernels.cpu_features import masked_engine, runnable_isas, variant_masks
from tests.kits.kernels.cpu_routines import compute_bound_routines
from tests.kits.opencl.opencl_driver import quickly_compiling

if TYPE_CHECKING:
    import pyopencl

    from nnstretch.devices.opencl.processor import OpenCLProcessor

KERNELS = ("attention", "convolution", "memory_bound", "winograd")
"""Folders of the kernels for float32; tests of the others have variants of their own."""
VARIANTS = [
    (isa, mask)
    for isa in runnable_isas()
    for mask in dict.fromkeys(mask for folder in KERNELS for mask in variant_masks(isa, folder))
]


@pytest.fixture(scope="module", params=VARIANTS, ids=[f"{isa.name}{mask}" for isa, mask in VARIANTS])
def variant(request: pytest.FixtureRequest) -> tuple[Isa, str]:
    """Each instruction set in turn, and the features to hide so that each variant of its kernels is chosen once."""
    isa, mask = request.param
    return isa, mask


@pytest.fixture(scope="module")
def isa(variant: tuple[Isa, str]) -> Isa:
    """The instruction set of the variant."""
    return variant[0]


@pytest.fixture(scope="module")
def native(variant: tuple[Isa, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """The engine of one instruction set and variant, which the kernel driver uses meanwhile."""
    made = masked_engine(*variant, tmp_path_factory.mktemp("engine"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel_driver, "engine", lambda: made)
        patch.setattr("nnstretch.devices.engine.binding.program.engine", lambda: made)
        yield made


@pytest.fixture(scope="module")
def routines(isa: Isa, native: Engine) -> tuple[Routine, ...]:
    """The heavy routines of that engine."""
    assert native.block == isa.block
    return compute_bound_routines(isa)


@pytest.fixture(scope="module")
def optimised_processor(optimised_opencl: None) -> OpenCLProcessor:
    """The first OpenCL device, on all cores if it lives on the CPU."""
    from nnstretch.devices.opencl.processor import OpenCLProcessor

    return OpenCLProcessor(ProcessorSpec("opencl", 0, usable_cores()))


@pytest.fixture(scope="module")
def processor(optimised_processor: OpenCLProcessor) -> OpenCLProcessor:
    """The same device, which compiles kernels without optimisation: that takes a quarter of the time.

    Optimised kernels run in the tests of tiles and of the zoo's networks, and by the commands of README.
    """
    found = quickly_compiling(optimised_processor.spec)
    assert found.runtime.traits == optimised_processor.runtime.traits
    return found


@pytest.fixture(scope="session", autouse=True)
def _silent_compilers() -> Iterator[None]:
    """No OpenCL program that a test builds makes the compiler warn: drivers print that, whoever is on the terminal.

    Vectors that are longer than the CPU's may change the binary interface. Programs for half vectors have them in tests alone.
    """
    build_program = drivers.build

    def checked(program: pyopencl.Program, options: Sequence[str]) -> pyopencl.Program:
        import pyopencl as cl

        built = build_program(program, options)
        wanted = cl.program_build_info.LOG
        logs = [built.get_build_info(device, wanted) for device in built.devices]  # type: ignore[no-untyped-call]
        lines = [line for log in logs for line in log.splitlines()]
        warnings = [line for line in lines if "warning" in line and "changes the ABI" not in line]
        assert not warnings, f"{' '.join(options)}: {warnings}"
        return built

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drivers, "build", checked)
        yield
