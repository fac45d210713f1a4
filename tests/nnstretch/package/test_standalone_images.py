"""Plans whose kernels read weights from images: sessions, standalone models, drivers that fail, and files that are damaged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from nnstretch.branching.transform.network import export_module
from nnstretch.devices.base.routine import IMAGES_MACRO, PIXEL_NUMBERS
from nnstretch.devices.engine.build.instruction_sets import local_isa, parse_target
from nnstretch.devices.engine.build.standalone import build_binaries
from nnstretch.devices.opencl import drivers, processor
from nnstretch.devices.opencl.queues import installed_runtime
from nnstretch.devices.opencl.routines import OpenCLRoutine, routines
from nnstretch.errors import PackageError
from nnstretch.graph.reference import relative_error
from nnstretch.package.standalone import FIRST_FORMAT, HAS_DEVICES, HAS_IMAGES, write_model_file
from nnstretch.package.standalone_head import read_head
from nnstretch.scheduler.plan.schema import Plan, PlanStep
from nnstretch.scheduler.plan.validate import validate
from nnstretch.support.settings import cache_dir
from tests.devices.opencl.test_other_drivers import OCLGRIND
from tests.kits.c_libraries import c_library
from tests.kits.networks.model_library import ModelError, ModelLibrary
from tests.kits.opencl.opencl_faults import Faults, host_library
from tests.nnstretch.package.test_standalone_devices import KITS_FOLDER, stubbed
from tests.nnstretch.package.test_standalone_opencl import Case, answers, are_equal, make_case, refusal

pytestmark = pytest.mark.opencl


class Network(nn.Sequential):
    """A convolution, a depthwise one and dense layers, with more weights than an image of Oclgrind has pixels for."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(
            *(nn.Conv2d(16, 48, 1), nn.ReLU(), nn.Conv2d(48, 48, 3, padding=1, groups=48), nn.AdaptiveAvgPool2d(1)),
            *(nn.Flatten(), nn.Linear(48, 448), nn.ReLU(), nn.Linear(448, 512), nn.ReLU(), nn.Linear(512, 96)),
        )


def last_setting(routine: OpenCLRoutine) -> OpenCLRoutine:
    """A routine with its last setting alone, which reads an image if one does."""
    settings = routine.parameter_space
    vars(routine)["parameter_space"] = lambda layer: settings(layer)[-1:]
    return routine


@pytest.fixture(scope="module", params=["float32", "float16"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    """A plan for this machine's device as if it were a GPU with images, whose layers read them wherever they may."""
    info = replace(
        drivers.device_info(0),
        on_cpu=False,
        vendor="qualcomm",
        local_memory=32 << 10,
        group_items=256,
        image_buffer=1 << 20,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drivers, "probe_device", lambda _: info)
        patch.setattr(
            processor, "routines", lambda traits, _: [last_setting(one) for one in routines(traits, [request.param])]
        )
        installed_runtime.cache_clear()
        yield make_case(tmp_path_factory.mktemp("case"), export_module(Network(), torch.zeros(1, 16, 3, 3)), "opencl:0")
    installed_runtime.cache_clear()


def images_of(case: Case) -> list[PlanStep]:
    return [step for step in case.compiled.plan.steps if step.launch and step.launch.images]


@pytest.fixture(scope="module")
def executable() -> Path:
    return build_binaries(parse_target("local")).executable


def test_sessions_and_models_compute_what_the_network_does(case: Case, executable: Path, tmp_path: Path) -> None:
    with torch.no_grad():
        wanted = Network().eval()(torch.from_numpy(case.x)).numpy()
    assert relative_error(case.outputs[0], wanted) < (1e-5 if "float32" in images_of(case)[0].routine else 3e-3)
    assert len(images_of(case)) == 5
    assert read_head(case.model).format == FIRST_FORMAT + HAS_DEVICES + HAS_IMAGES
    assert are_equal(answers(case, tmp_path, executable, "--cache", cache_dir("opencl")), case.outputs)


@pytest.mark.skipif(not OCLGRIND.exists(), reason="Oclgrind is not installed")
def test_a_driver_whose_images_are_smaller_than_all_constants(case: Case, tmp_path: Path) -> None:
    """Images are made of parts of their buffer. Oclgrind reports accesses beyond memory, too."""
    (size,) = {step.launch.item_bytes[1] for step in images_of(case) if step.launch}
    assert case.compiled.constants.nbytes > (1 << 16) * PIXEL_NUMBERS * size
    assert error_on_oclgrind(case, tmp_path) < 1e-3


@pytest.mark.parametrize("number", [1, 3])
def test_a_device_that_makes_no_image(case: Case, tmp_path: Path, number: int) -> None:
    """The call is reported and nothing is left."""
    faults = Faults(tmp_path, host_library())
    models = ModelLibrary(tmp_path, str(host_library()), cache_dir("opencl"))
    before = faults.live_objects
    faults.set("clCreateImage", number)
    with pytest.raises(ModelError, match=r"makes no image of \d+ bytes: error -5"):
        models.load(case.model)
    assert faults.clear() == 1
    assert faults.live_objects == before
    with models.loaded(case.model) as model:
        assert are_equal(models.run(model, case.x, [y.shape for y in case.outputs]), case.outputs)
    assert faults.live_objects == before


def test_a_driver_without_images_is_named(case: Case, tmp_path: Path) -> None:
    stub = c_library(KITS_FOLDER / "opencl_stub.c", includes=(KITS_FOLDER / "opencl_double.c",))
    models = ModelLibrary(tmp_path, str(stub))
    with pytest.raises(ModelError, match=r"has no images; compile the model for this device"):
        models.load(case.model)


def test_images_of_other_memory_are_refused(case: Case, executable: Path, tmp_path: Path) -> None:
    """Of tensors, and of reads that a kernel does not have: by the plan's check, and by the reader of model files."""
    for images, what in (
        (1, "is made of what is no constant of whole pixels"),
        (1 << 9, "reads other images than its"),
    ):
        other = with_images(case.compiled.plan, images)
        with pytest.raises(PackageError, match="reads an image of what is no constant of whole pixels"):
            validate(other)
        path = tmp_path / f"{images}.nnm"
        write_model_file(replace(case.compiled, plan=other), "model", local_isa(), path)
        assert what in refusal(executable, "-m", path, "--info")
    step = images_of(case)[0]
    assert step.reads[1] is not None
    moved = list(case.compiled.plan.buffers)
    moved[step.reads[1]] = replace(moved[step.reads[1]], bytes=moved[step.reads[1]].bytes - 4)
    with pytest.raises(PackageError, match="reads an image of what is no constant of whole pixels"):
        validate(replace(case.compiled.plan, buffers=tuple(moved)))


def with_images(plan: Plan, images: int) -> Plan:
    """A plan whose kernels that read images say that they read others."""

    def changed(step: PlanStep) -> PlanStep:
        if step.launch is None or not step.launch.images:
            return step
        defines = tuple((name, images if name == IMAGES_MACRO else value) for name, value in step.launch.defines)
        return replace(step, launch=replace(step.launch, defines=defines))

    return replace(plan, steps=tuple(map(changed, plan.steps)))


def error_on_oclgrind(case: Case, folder: Path) -> float:
    """The error of the outputs that the executable computes with Oclgrind, which must report nothing."""
    log, vendors = folder / "log", folder / "vendors"
    vendors.mkdir()
    (vendors / "driver.icd").write_text(f"{OCLGRIND}\n")
    places = dict.fromkeys(("OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH"), str(vendors))
    y, _ = stubbed(case, Path("libOpenCL.so.1"), folder, "-n", "1", OCLGRIND_LOG=str(log), **places)
    assert not log.read_text()
    return relative_error(np.frombuffer(y, np.float32), np.concatenate([one.reshape(-1) for one in case.outputs]))
