"""Weights in images: which devices and layers are offered them, what kernels compute from them, and drivers that fail."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nnstretch.devices.base.spec import ProcessorSpec
from nnstretch.devices.engine.build.instruction_sets import ISAS
from nnstretch.devices.opencl import drivers, verdicts
from nnstretch.devices.opencl.probe_worker import check_images, why_no_images
from nnstretch.devices.opencl.processor import OpenCLProcessor
from nnstretch.devices.opencl.properties import DeviceInfo
from nnstretch.devices.opencl.routines import routines
from nnstretch.devices.opencl.routines.images import STORAGE, reads_image
from nnstretch.devices.opencl.runtime import OpenCLRuntime
from nnstretch.devices.opencl.sources import kernel_source
from nnstretch.devices.opencl.traits import traits_of
from nnstretch.errors import DeviceError
from tests.devices.opencl.test_runtime import worker_that
from tests.kits.opencl.opencl_parity import check_setting, tolerance_of
from tests.kits.opencl.phones import ADRENO, LAYERS, PHONES, traits
from tests.kits.opencl.small_layers import IMAGES, image_cases

pytestmark = pytest.mark.opencl

WITH_WEIGHTS = {"implicit_gemm", "planar_gemm", "winograd_gemm", "direct", "planar", "depthwise", "dense"}
DTYPES = ("float32", "float16")


def gpu() -> DeviceInfo:
    """This machine's device as if it were a GPU whose buffers are no larger than its images."""
    info = drivers.device_info(0)
    return replace(info, on_cpu=False, image_buffer=1 << 20, allocation_bytes=1 << 20)


# -- what is offered ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("device", ["adreno", "mali"])
def test_settings_of_a_gpu_with_images_are_those_without_and_the_same_with_images(device: str, name: str) -> None:
    layer = LAYERS[name]
    plain, more = (routines(PHONES[key], DTYPES) for key in (device, f"{device} with images"))
    for routine, other in zip(plain, more, strict=True):
        if not routine.supports(layer):
            continue
        before, now = routine.parameter_space(layer), other.parameter_space(layer)
        without = [{key: value for key, value in one.items() if key != STORAGE} for one in now]
        assert without[: len(before)] == list(before)
        assert not any(map(reads_image, now[: len(before)]))
        assert all(map(reads_image, now[len(before) :]))
        assert all(one in before for one in without)
        if device == "adreno":
            assert len(now) == len(before) * (1 + (routine.algorithm in WITH_WEIGHTS))


def test_weights_that_no_image_holds_stay_in_buffers() -> None:
    """Images of Mali's driver have 65,536 pixels: a 3×3 convolution of 64 channels takes 9216, one of 512 takes 589,824."""
    direct = next(one for one in routines(PHONES["mali with images"]) if one.algorithm == "direct")
    assert any(map(reads_image, direct.parameter_space(LAYERS["3x3"])))
    assert not any(STORAGE in one for one in direct.parameter_space(LAYERS["3x3 small image"]))


@pytest.mark.parametrize("scalar", [False, True])
def test_cpus_are_offered_no_images(scalar: bool) -> None:
    """The driver of a CPU has images, too, which `test_settings_that_were_measured_stay` relies on."""
    given = traits_of(replace(ADRENO, on_cpu=True, scalar=scalar, image_buffer=1 << 27), 2, ISAS[0])
    assert given.image_buffer == 0
    assert not any(
        STORAGE in one
        for r in routines(given)
        for x in LAYERS.values()
        if r.supports(x)
        for one in r.parameter_space(x)
    )


def test_only_weights_are_images() -> None:
    limits = traits(replace(ADRENO, image_buffer=1 << 27))
    for layer in LAYERS.values():
        for routine in routines(limits, DTYPES):
            settings = routine.parameter_space(layer) if routine.supports(layer) else ()
            for parameters in settings:
                found = [call.launch.images for call in routine.lower(layer, parameters).calls if call.launch]
                assert max(found) == (2 if reads_image(parameters) else 0)
                assert found.count(2) <= 1


# -- what is computed -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", IMAGES)
def test_every_algorithm_computes_the_same_from_images(processor: OpenCLProcessor, kind: str) -> None:
    """A layer of every algorithm and type; tests of other drivers have all small layers."""
    computed = set()
    for routine, layer, parameters in image_cases(IMAGES[kind]):
        # PoCL computes this kernel wrongly from buffers, too, in groups of several items that it chooses.
        is_refused = routine.descriptor.algorithm == "dense" and not IMAGES[kind].works_in_groups
        if routine.descriptor not in computed and not is_refused:
            computed.add(routine.descriptor)
            check_setting(processor, routine, layer, parameters, tolerance=tolerance_of(routine))
    wanted = WITH_WEIGHTS - (
        {"planar"} if IMAGES[kind].works_in_groups else {"implicit_gemm", "planar_gemm", "winograd_gemm", "dense"}
    )
    assert {one.algorithm for one in computed} == wanted


# -- drivers that fail ----------------------------------------------------------------------------------------------


def runtime_of(info: DeviceInfo, source: str | None = None) -> OpenCLRuntime:
    sources = {"conv.cl": source or kernel_source("conv.cl")}
    return OpenCLRuntime(ProcessorSpec("opencl", 0), sources=sources, info=info)


def test_images_are_tested_by_kernels() -> None:
    check_images(runtime_of(gpu()))
    source = kernel_source("conv.cl").replace("(int)((place) >> 2)", "(int)((place) >> 2 | 1)")
    with pytest.raises(DeviceError, match=r"^kernel conv\.cl computed .*% of a test layer's numbers wrongly$"):
        check_images(runtime_of(gpu(), source))


def test_devices_without_images_and_cpus_say_so() -> None:
    assert why_no_images(runtime_of(replace(gpu(), image_buffer=0))) == "there are none"
    assert why_no_images(runtime_of(replace(gpu(), on_cpu=True))) == "a CPU has no cache for them"


def test_images_of_parts_are_tested_where_buffers_may_be_larger_than_images() -> None:
    """PoCL makes images of whole buffers alone; other drivers make both."""
    found = runtime_of(replace(gpu(), allocation_bytes=1 << 30))
    reason = why_no_images(found)
    assert reason == "" or "makes no image of" in reason
    assert found.largest_image == 1 << 20


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("say({'why_no_images': ''})", ""),
        ("say({'why_no_images': 'they are wrong'})", "they are wrong"),
        ("os.abort()", "ended a test of them: killed by signal 6"),
        ("time.sleep(60)", "ended a test of them: no answer within 1 s"),
    ],
)
def test_a_gpu_whose_driver_fails_with_images_reads_buffers(
    code: str, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NNSTRETCH_CACHE_DIR", str(tmp_path))
    answers = "say({'why_not': '', 'command_times': True}); say({'semaphores': True}); "
    monkeypatch.setattr(verdicts, "WORKER", worker_that(answers + code))
    monkeypatch.setattr(verdicts, "_BUILD_SECONDS", 1 if "sleep" in code else 60)
    info = gpu()
    monkeypatch.setattr(drivers, "device_info", lambda _: info)
    found = drivers.probe_device.__wrapped__(0)
    assert found.usable
    assert found.image_buffer == (0 if reason else info.image_buffer)
    (kept,) = (one for one in (tmp_path / "opencl").glob("*.json") if not one.name.startswith("drivers-"))
    assert reason in json.loads(kept.read_text())["why_no_images"]
    assert found.atomics == info.atomics
