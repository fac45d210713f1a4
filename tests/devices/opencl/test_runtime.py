"""Drivers, cores, building and memory of the OpenCL processor."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nnstretch.devices.base.routine import Launch
from nnstretch.devices.base.spec import ProcessorSpec, usable_cores
from nnstretch.devices.engine.binding.image import Sharing
from nnstretch.devices.engine.binding.program import opencl_library
from nnstretch.devices.opencl import drivers, verdicts
from nnstretch.devices.opencl.drivers import load_drivers, probe
from nnstretch.devices.opencl.probe_worker import check_kernels, has_command_times, trace_seconds
from nnstretch.devices.opencl.processor import OpenCLProcessor
from nnstretch.devices.opencl.programs import Programs
from nnstretch.devices.opencl.runtime import OpenCLRuntime
from nnstretch.devices.opencl.sources import kernel_files, kernel_integers, kernel_source, sources_hash
from nnstretch.errors import BuildError, DeviceError

pytestmark = pytest.mark.opencl

DEFINES = (("NNS_BLOCK", 16),)
BUSY = """typedef struct {
    int x_offset;
    int n;
} busy_arguments;

kernel void busy(global float *x_buffer, const busy_arguments given)
{
    global float *x = x_buffer + given.x_offset;
    float s = x[0];
    for (int i = 0; i < given.n; i++)
        s = s * 1.0001f + 0.5f;
    x[get_global_id(0)] = s;
}
"""
# Writes every member of the struct that the kernel receives.
ECHO = """typedef struct {
    int b, c;
} pair;

typedef struct {
    int x_offset, y_offset;
    int a;
    pair rest;
} echo_arguments;

kernel void echo(const global int *x_buffer, global int *y_buffer, const echo_arguments given)
{
    global int *y = y_buffer + given.y_offset;
    y[0] = x_buffer[given.x_offset];
    y[1] = given.a;
    y[2] = given.rest.b;
    y[3] = given.rest.c;
}
"""
EXTENSION = re.compile(r"__builtin|__attribute__(?!\(\(reqd_work_group_size)|#pragma")  # of a compiler, beyond OpenCL C
FOR_ONE_COMPILER = re.compile(
    r"^#ifdef (?:__clang__|POCL_DEVICE_ADDRESS_BITS)$.*?^#(?:else|endif)$", re.MULTILINE | re.DOTALL
)
KERNEL = re.compile(r"^kernel void (\w+)\(([^)]*)\)$", re.MULTILINE)


@pytest.fixture(scope="module")
def runtime() -> OpenCLRuntime:
    return OpenCLRuntime(ProcessorSpec("opencl", 0, usable_cores()))


def spec(*cores: int) -> ProcessorSpec:
    return ProcessorSpec("opencl", 0, cores)


def test_probe_lists_every_device_and_its_usability() -> None:
    found = probe()
    assert [device.index for device in found] == list(range(len(load_drivers())))
    assert any(device.usable for device in found)
    assert all(bool(device.why_not) != device.usable for device in found)


@pytest.mark.parametrize("kernel", ["conv.cl", "elementwise.cl"])
def test_wrong_results_of_a_kernel_are_found(kernel: str) -> None:
    names = ("conv.cl", "elementwise.cl")
    sources = {name: kernel_source(name) for name in names}
    check_kernels(OpenCLRuntime(spec(), sources=sources))
    sources[kernel] = sources[kernel].replace("max(x, 0.0f)", "x").replace("fma(w[v],", "fma(0.5f * w[v],")
    with pytest.raises(
        DeviceError, match=rf"^kernel {re.escape(kernel)} computed .*% of a test layer's numbers wrongly$"
    ):
        check_kernels(OpenCLRuntime(spec(), sources=sources))


def test_a_device_whose_compiler_fails_is_not_usable() -> None:
    with pytest.raises(BuildError, match=r"^OpenCL source conv\.cl .* does not compile") as caught:
        check_kernels(OpenCLRuntime(spec(), sources={"conv.cl": "kernel void conv_direct(global int *x) { nonsense }"}))
    assert "\n" not in str(caught.value)


def worker_that(code: str) -> tuple[str, ...]:
    """A probe worker of the Python statements `code`; `say(message)` sends a frame."""
    begin = "import os, sys, time\nfrom nnstretch.support.frames import write_frame\n"
    return sys.executable, "-c", f"{begin}say = lambda message: write_frame(sys.stdout.buffer, message)\n{code}"


FAILURES = {
    "os.abort()": r"^driver .+ \S+ ended a test of kernels: killed by signal 6 \(Aborted\)$",
    "os._exit(8)": r"^driver .+ \S+ ended a test of kernels, status 8: ended with status 8$",
    "sys.stderr.write('no such intrinsic'); sys.stderr.flush(); os._exit(8)": r", status 8: no such intrinsic$",
    "time.sleep(60)": r": no answer within 1 s$",
    "say({'why_not': 'it is wrong'})": r"^driver .+: it is wrong$",
}


@pytest.mark.parametrize(("code", "message"), FAILURES.items())
def test_a_driver_that_fails_is_one_line_and_its_device_is_refused(
    code: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NNSTRETCH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(verdicts, "WORKER", worker_that(code))
    monkeypatch.setattr(verdicts, "_BUILD_SECONDS", 1 if "sleep" in code else 60)
    monkeypatch.setattr(drivers, "probe_device", drivers.probe_device.__wrapped__)
    device = drivers.probe_device(0)
    assert not device.usable
    assert re.search(message, device.why_not), device.why_not
    with pytest.raises(DeviceError, match=r"^OpenCL device 0 \(.*\) does not work: driver .+$"):
        OpenCLRuntime(spec())


def test_a_device_whose_semaphores_hang_is_used_without_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NNSTRETCH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(verdicts, "WORKER", worker_that("say({'why_not': '', 'command_times': True}); time.sleep(60)"))
    monkeypatch.setattr(verdicts, "_SEMAPHORE_SECONDS", 1)
    device = drivers.probe_device.__wrapped__(0)
    assert device.usable
    assert not device.atomics
    assert device.command_buffers == ""


def test_a_device_whose_command_buffers_crash_is_used_without_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NNSTRETCH_CACHE_DIR", str(tmp_path))
    begin = "say({'why_not': '', 'command_times': True}); say({'semaphores': True}); say({'why_no_images': ''}); "
    monkeypatch.setattr(verdicts, "WORKER", worker_that(begin + "os.abort()"))
    device = drivers.probe_device.__wrapped__(0)
    assert device.usable
    assert device.atomics == drivers.device_info(0).atomics
    assert device.command_buffers == ""
    assert device.image_buffer == drivers.device_info(0).image_buffer


def test_verdicts_are_kept_and_failures_are_tested_again_later(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NNSTRETCH_CACHE_DIR", str(tmp_path))
    info = drivers.device_info(0)
    monkeypatch.setattr(verdicts, "WORKER", worker_that("say({'why_not': 'bad'})"))
    failed = verdicts.judge(info)
    assert failed.why_not
    answers = (
        {"why_not": "", "command_times": True},
        {"semaphores": True},
        {"why_no_images": ""},
        {"command_buffers": "faster"},
    )
    monkeypatch.setattr(verdicts, "WORKER", worker_that("; ".join(f"say({answer})" for answer in answers)))
    assert verdicts.judge(info) == failed
    (path,) = (one for one in (tmp_path / "opencl").glob("*.json") if not one.name.startswith("drivers-"))
    os.utime(path, (0, 0))
    works = verdicts.judge(info)
    assert works == verdicts.Verdict("", True, True, command_buffers="faster", why_no_images="")
    os.utime(path, (0, 0))
    monkeypatch.setattr(verdicts, "WORKER", worker_that("os.abort()"))
    assert verdicts.judge(info) == works
    assert verdicts.judge(replace(info, driver="another")).why_not  # which has no verdict yet


def test_a_driver_without_times_of_commands_is_timed_by_the_host() -> None:
    info = drivers.device_info(0)
    assert has_command_times(OpenCLRuntime(spec(), profile=True, info=info))
    untimed = OpenCLRuntime(spec(), profile=True, info=replace(info, command_times=False))
    assert untimed.trace_queue is None
    assert not has_command_times(untimed)


def test_what_a_trace_takes_is_measured_on_gpus_alone() -> None:
    info = drivers.device_info(0)
    gpu = OpenCLRuntime(spec(), profile=True, info=replace(info, on_cpu=False))
    assert trace_seconds(gpu) >= 0
    assert trace_seconds(OpenCLRuntime(spec(), profile=True, info=replace(info, on_cpu=True))) == 0
    assert trace_seconds(OpenCLRuntime(spec(), info=replace(info, on_cpu=False))) == 0


@pytest.mark.parametrize("driver_allocates", [True, False])
def test_copied_memory(driver_allocates: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyopencl as cl

    runtime = OpenCLRuntime(spec(), info=replace(drivers.device_info(0), unified=False))
    if not driver_allocates:

        def refuse(*_args: object) -> None:
            raise cl.MemoryError("none")

        monkeypatch.setattr(cl, "enqueue_map_buffer", refuse)
    memories = runtime.memory.shared([4096, 100])
    for memory, size in zip(memories, (4096, 100), strict=True):
        assert memory.sharing is Sharing.COPIED
        assert memory.host.shape == (size,)
        assert memory.host.ctypes.data % 64 == 0
        assert not memory.host.any()
        memory.host[:] = 7
        found = np.zeros(size, np.uint8)
        cl.enqueue_copy(runtime.queue, memory.buffer, memory.host)
        cl.enqueue_copy(runtime.queue, found, memory.buffer)
        assert (found == 7).all()


@pytest.mark.parametrize("how", ["one address", "another address each time", "not at all"])
def test_gpus_share_memory_that_the_driver_allocates(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drivers of GPUs may copy memory of the host. Memory that moves cannot be a region of the engine."""
    import pyopencl as cl

    gpu = replace(drivers.device_info(0), on_cpu=False, fine_grained=False)
    runtime = OpenCLRuntime(spec(), info=gpu)
    if how == "not at all":

        def refuse(*_args: object) -> None:
            raise cl.MemoryError("none")

        monkeypatch.setattr(cl, "enqueue_map_buffer", refuse)
    elif how == "another address each time":
        addresses = iter((4096, 8192) * 2)
        monkeypatch.setattr(runtime.memory, "_mapped_at", lambda _buffer: next(addresses))
    memories = runtime.memory.shared([4096, 100])
    monkeypatch.undo()
    wanted = cl.mem_flags.ALLOC_HOST_PTR if how == "one address" else cl.mem_flags.USE_HOST_PTR
    for memory, size in zip(memories, (4096, 100), strict=True):
        assert (memory.sharing, memory.host.shape) == (Sharing.MAPPED, (size,))
        assert memory.buffer.flags & (cl.mem_flags.ALLOC_HOST_PTR | cl.mem_flags.USE_HOST_PTR) == wanted
        assert not memory.host.any()
        host, _ = cl.enqueue_map_buffer(
            runtime.queue, memory.buffer, cl.map_flags.WRITE, 0, (size,), np.dtype(np.uint8)
        )
        assert host.ctypes.data == memory.host.ctypes.data
        memory.host[:] = 7
        host.base.release(runtime.queue)
        found = np.zeros(size, np.uint8)
        cl.enqueue_copy(runtime.queue, found, memory.buffer)
        assert (found == 7).all()


def test_threads_of_drivers_that_create_them_later_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "POCL", "another driver")
    monkeypatch.setattr(drivers, "_DRIVERS", drivers._Drivers())
    assert load_drivers()
    assert drivers.worker_count() == 0
    assert drivers.warn_if_short.__wrapped__((0, 1)) == 2


def test_devices_that_split_vectors_have_the_tiles_of_gpus() -> None:
    info = drivers.device_info(0)
    assert OpenCLRuntime(spec(), info=replace(info, scalar=False)).traits.on_cpu == info.on_cpu
    assert not OpenCLRuntime(spec(), info=replace(info, scalar=True)).traits.on_cpu


def test_a_device_that_does_not_exist_is_refused() -> None:
    with pytest.raises(DeviceError, match=r"^there is no OpenCL device 99; this machine has opencl:0 \(.*$"):
        OpenCLRuntime(ProcessorSpec("opencl", 99))


def test_no_driver_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "from nnstretch.devices.opencl.processor import OpenCLProcessor\n"
        "from nnstretch.devices.opencl.drivers import probe\n"
        "from nnstretch.devices.base.spec import ProcessorSpec\n"
        "from nnstretch.errors import DeviceError\n"
        "assert probe() == []\n"
        "try:\n    OpenCLProcessor(ProcessorSpec('opencl'))\n"
        "except DeviceError as error:\n    print(error)\n"
    )
    environment = os.environ | {"OCL_ICD_VENDORS": str(tmp_path), "OPENCL_VENDOR_PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.startswith("no OpenCL driver with a device was found; install one")
    assert done.stdout.count("\n") == 1


def test_a_build_failure_is_one_line_with_the_first_error() -> None:
    runtime = OpenCLRuntime(spec(), sources={"bad.cl": "kernel void f(global float *x) { x[0] = undefined_name; }"})
    with pytest.raises(BuildError, match=r"^OpenCL source bad\.cl .*undefined_name") as caught:
        runtime.programs.program("bad.cl", DEFINES)
    assert "\n" not in str(caught.value)


def test_a_build_failure_without_a_log_is_the_drivers_error(
    runtime: OpenCLRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyopencl as cl

    def fail(*_arguments: object) -> None:
        raise cl.RuntimeError(
            "clBuildProgram failed: OUT_OF_RESOURCES\n\nBuild on a device:\n\n<error retrieving log>\n"
        )

    monkeypatch.setattr(drivers, "build", fail)
    with pytest.raises(BuildError, match=r"does not compile on .+: clBuildProgram failed: OUT_OF_RESOURCES$"):
        runtime.programs._build("pool.cl", kernel_source("pool.cl"), [])


@pytest.mark.parametrize("path", kernel_files().values(), ids=lambda path: path.stem)
def test_kernels_use_extensions_of_a_compiler_only_where_it_compiles(path: Path) -> None:
    assert not EXTENSION.search(FOR_ONE_COMPILER.sub("", path.read_text()))


def test_a_missing_kernel_is_a_build_error(runtime: OpenCLRuntime) -> None:
    launch = Launch("reorder.cl", DEFINES, (1,))
    with pytest.raises(BuildError, match=r"^OpenCL source reorder\.cl has no kernel 'absent'"):
        runtime.kernel(launch, "absent")


def test_programs_are_built_once_and_kernels_are_fresh(runtime: OpenCLRuntime) -> None:
    assert runtime.programs.program("reorder.cl", DEFINES) is runtime.programs.program("reorder.cl", DEFINES)
    launch = Launch("reorder.cl", DEFINES, (1,))
    assert runtime.kernel(launch, "copy").int_ptr != runtime.kernel(launch, "copy").int_ptr


def test_binaries_are_cached_and_damaged_ones_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NNSTRETCH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(drivers, "POCL", "another driver")  # which has no cache of its own
    sources = {"one.cl": "kernel void one(global float *x) { x[0] = 1.0f; }"}
    OpenCLRuntime(spec(), sources=sources).programs.program("one.cl", ())
    (path,) = (tmp_path / "opencl").glob("*.bin")
    good = path.read_bytes()

    def no_compiler(*_: object) -> None:
        raise AssertionError("compiled again")

    with monkeypatch.context() as patched:
        patched.setattr(Programs, "_build", no_compiler)
        program = OpenCLRuntime(spec(), sources=sources).programs.program("one.cl", ())
    assert program.kernel_names == "one"

    path.write_bytes(good[:100])
    OpenCLRuntime(spec(), sources=sources).programs.program("one.cl", ())
    assert path.read_bytes()[32:] != good[32:100]
    assert len(path.read_bytes()) > 100


def test_sources_are_self_contained() -> None:
    text = kernel_source("conv.cl")
    assert "#include" not in text
    for once in ("typedef NNS_JOIN(float, NNS_BLOCK)", "typedef NNS_JOIN(float, LENGTH)"):
        assert text.count(once) == 1
    assert len(sources_hash()) == 16


def test_memory_that_does_not_exist_is_refused(runtime: OpenCLRuntime) -> None:
    with pytest.raises(DeviceError, match=r"^OpenCL device 0 \(.*\) has no 4503599627370496 bytes of memory: "):
        runtime.memory.buffer(1 << 52)


@pytest.mark.parametrize("sharing", Sharing)
def test_shared_memory_is_seen_by_host_and_device(
    runtime: OpenCLRuntime, monkeypatch: pytest.MonkeyPatch, sharing: Sharing
) -> None:
    import pyopencl as cl

    if sharing > runtime.info.sharing:
        pytest.skip(f"memory of {runtime.info.name} is {runtime.info.sharing.name.lower()} at best")
    less = replace(runtime.info, unified=sharing > Sharing.COPIED, fine_grained=sharing is Sharing.COHERENT)
    monkeypatch.setattr(runtime.memory, "info", less)
    source, target = runtime.memory.shared([128, 128])
    assert source.sharing is target.sharing is sharing
    assert not target.host.any()
    numbers = np.arange(32, dtype=np.float32)
    source.host.view(np.float32)[:] = numbers
    kernel = runtime.kernel(Launch("reorder.cl", DEFINES, (1,)), "copy")
    runtime.set_arguments(kernel, [(source.buffer, 0), (target.buffer, 0)], (32, 32, 0, 0))
    if sharing is Sharing.COPIED:
        cl.enqueue_copy(runtime.queue, source.buffer, source.host)
    cl.enqueue_nd_range_kernel(runtime.queue, kernel, (1,), None)
    if sharing is Sharing.COPIED:
        cl.enqueue_copy(runtime.queue, target.host, target.buffer)
    elif sharing is Sharing.MAPPED:
        cl.enqueue_map_buffer(runtime.queue, target.buffer, cl.map_flags.READ, 0, (32,), np.dtype(np.float32))
    runtime.queue.finish()
    assert np.array_equal(target.host.view(np.float32), numbers)


def test_shared_memories_do_not_overlap(runtime: OpenCLRuntime) -> None:
    import pyopencl as cl

    sizes = [100, 3 << 20, 4, (2 << 20) + 1]
    made = runtime.memory.shared(sizes)
    assert [memory.host.nbytes for memory in made] == [memory.buffer.size for memory in made] == sizes
    assert not any(memory.host.any() for memory in made)
    for number, memory in enumerate(made, 1):
        memory.host[:] = number
    for number, memory in enumerate(made, 1):
        assert (memory.host == number).all()
    if runtime.info.sharing is Sharing.COHERENT:  # what kernels find where the buffer begins and ends
        for number, memory in enumerate(made, 1):
            seen = np.zeros(memory.host.nbytes, np.uint8)
            cl.enqueue_copy(runtime.queue, seen, memory.buffer)
            assert (seen == number).all()


def test_wrong_arguments_are_refused(runtime: OpenCLRuntime) -> None:
    kernel = runtime.kernel(Launch("reorder.cl", DEFINES, (1,)), "copy")
    memory = (runtime.memory.buffer(64), 0)
    again = "; compile the package again with this version$"
    with pytest.raises(DeviceError, match=r"^OpenCL kernel copy takes 3 arguments and was given 2" + again):
        runtime.set_arguments(kernel, [memory], (1, 1, 1))
    with pytest.raises(DeviceError, match=r"^OpenCL kernel copy takes 6 integers and was given 3" + again):
        runtime.set_arguments(kernel, [memory, memory], (1,))
    with pytest.raises(DeviceError, match=r"^OpenCL kernel copy takes 6 integers and was given 7" + again):
        runtime.set_arguments(kernel, [memory, memory], (1,) * 5)


def test_integers_of_more_than_32_bits_are_refused(runtime: OpenCLRuntime) -> None:
    kernel = runtime.kernel(Launch("reorder.cl", DEFINES, (1,)), "copy")
    buffer = runtime.memory.buffer(64)
    for offset, number in ((0, 1 << 32), (0, -(1 << 31) - 1), (1 << 31, 1), (-1, 1)):
        with pytest.raises(DeviceError, match=r"^OpenCL kernel copy was given the number -?\d+ and counts in 32 bits;"):
            runtime.set_arguments(kernel, [(buffer, offset), (buffer, 0)], (1, number))


def test_a_kernel_finds_offsets_and_parameters_in_its_struct() -> None:
    import pyopencl as cl

    runtime = OpenCLRuntime(spec(), sources={"echo.cl": ECHO})
    kernel = runtime.kernel(Launch("echo.cl", (), (1,), (1,)), "echo")
    x = runtime.memory.constant(np.arange(40, 50, dtype=np.int32))
    y = cl.Buffer(runtime.context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=np.zeros(8, np.int32))
    runtime.set_arguments(kernel, [(x, 7), (y, 2)], (-1, 0x80000000, 0xFFFFFFFE))
    cl.enqueue_nd_range_kernel(runtime.queue, kernel, (1,), (1,))
    found = np.empty(8, np.int32)
    cl.enqueue_copy(runtime.queue, found, y)
    assert found.tolist() == [0, 0, 47, -1, -(2**31), -2, 0, 0]
    with pytest.raises(DeviceError, match=r"^OpenCL kernel echo takes 5 integers and was given 4;"):
        runtime.set_arguments(kernel, [(x, 7), (y, 2)], (1, 2))


def test_kernel_files_of_all_folders_have_names_of_their_own() -> None:
    assert len(kernel_files()) == len(list(kernel_files()["semaphore.cl"].parent.rglob("*.cl")))


def test_every_kernel_takes_buffers_and_one_struct() -> None:
    seen: set[str] = set()
    for name in kernel_files():
        text = kernel_source(name)
        kernels = dict(KERNEL.findall(text))
        assert {*re.findall(r"kernel void (\w+)", text)} == kernels.keys()
        integers = kernel_integers(text)
        assert integers.keys() == kernels.keys()
        assert not seen & kernels.keys(), "a runtime knows kernels by their names alone"
        seen |= kernels.keys()
        for kernel, declared in kernels.items():
            *buffers, _ = declared.split(",")
            assert all(
                re.fullmatch(r"\s*((const )?(volatile )?global \w+ \*\w+_buffer|weights_in \w+)", buffer)
                for buffer in buffers
            ), kernel
            assert integers[kernel] >= len(buffers)


def test_a_struct_of_other_types_is_not_counted() -> None:
    declared = "typedef struct {\n    int x_offset;\n    float share;\n} mix_arguments;\n"
    assert kernel_integers(declared + "kernel void mix(global float *x, const mix_arguments given)\n{\n}\n") == {}


def test_the_library_holds_the_functions_of_opencl() -> None:
    import ctypes

    assert hasattr(ctypes.CDLL(opencl_library()), "clEnqueueNDRangeKernel")


def test_fingerprint_distinguishes_cores_and_kernels() -> None:
    cores = usable_cores()
    one, same = OpenCLProcessor(spec(cores[0])), OpenCLProcessor(spec(cores[0]))
    assert one.fingerprint == same.fingerprint
    assert sources_hash() in one.fingerprint
    if one.runtime.info.on_cpu and len(cores) > 1:
        assert OpenCLProcessor(spec(*cores)).fingerprint != one.fingerprint


@pytest.fixture
def on_two_cores(runtime: OpenCLRuntime) -> Iterator[tuple[int, int]]:
    cores = usable_cores()
    if not runtime.info.on_cpu or len(cores) < 2:
        pytest.skip("needs an OpenCL device on a CPU of two cores")
    yield cores[0], cores[1]
    runtime.activate()


def burn(runtime: OpenCLRuntime) -> dict[int, set[int]]:
    """Runs kernels and returns the core on which each worker thread of the driver last ran."""
    import pyopencl as cl

    runtime.activate()
    kernel = runtime.kernel(Launch("busy.cl", (), (8,), (1,)), "busy")
    memory = runtime.memory.buffer(4096)
    runtime.set_arguments(kernel, [(memory, 0)], (200_000,))
    seen: dict[int, set[int]] = {}
    for _ in range(5):
        cl.enqueue_nd_range_kernel(runtime.queue, kernel, (8,), (1,))
        runtime.queue.finish()
        for worker in drivers._DRIVERS.workers:
            fields = Path(f"/proc/self/task/{worker}/stat").read_text().rpartition(")")[2].split()
            seen.setdefault(worker, set()).add(int(fields[36]))
    return seen


def test_two_runtimes_in_one_process_stay_on_their_cores(on_two_cores: tuple[int, int]) -> None:
    first, second = on_two_cores
    sources = {"busy.cl": BUSY}
    everywhere = OpenCLRuntime(spec(*usable_cores()), sources=sources)
    one = OpenCLRuntime(spec(second), sources=sources)
    other = OpenCLRuntime(spec(first), sources=sources)
    assert set().union(*burn(one).values()) == {second}
    assert set().union(*burn(other).values()) == {first}
    assert set().union(*burn(everywhere).values()) <= set(usable_cores())
    affinities = [os.sched_getaffinity(worker) for worker in drivers._DRIVERS.workers]
    assert set().union(*affinities) == set(usable_cores())
    assert set().union(*burn(one).values()) == {second}


def test_the_first_runtime_decides_the_number_of_threads(on_two_cores: tuple[int, int]) -> None:
    code = (
        "import json, os, logging, sys\n"
        "logging.basicConfig(level=logging.WARNING)\n"
        "from nnstretch.devices.opencl.processor import OpenCLProcessor\n"
        "from nnstretch.devices.opencl import drivers\n"
        "from nnstretch.devices.base.spec import ProcessorSpec\n"
        "before = os.sched_getaffinity(0)\n"
        "one = OpenCLProcessor(ProcessorSpec('opencl', 0, (CORE,)))\n"
        "workers = [sorted(os.sched_getaffinity(worker)) for worker in drivers._DRIVERS.workers]\n"
        "more = OpenCLProcessor(ProcessorSpec('opencl', 0, tuple(sorted(before))))\n"
        "print(json.dumps([one.runtime.info.compute_units, workers, os.sched_getaffinity(0) == before,\n"
        "    'POCL_MAX_PTHREAD_COUNT' in os.environ, more.runtime.threads, one.fingerprint != more.fingerprint]))\n"
    ).replace("CORE", str(on_two_cores[1]))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("POCL_")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert json.loads(done.stdout) == [1, [[on_two_cores[1]]], True, False, 1, True]
    assert "name these cores first, or start a new process" in done.stderr


LOADED_BEFORE = """
import pyopencl as cl
cl.Context([cl.get_platforms()[0].get_devices()[0]])
from nnstretch.devices.opencl import drivers
drivers.load_drivers()
import os
from nnstretch.devices.base.spec import usable_cores
assert drivers.worker_count() == len(usable_cores()), drivers.worker_count()
core = usable_cores()[-1]
drivers.pin_workers((core,))
assert all(os.sched_getaffinity(w) == {core} for w in drivers._DRIVERS.workers)
"""


def test_threads_of_a_driver_that_was_loaded_before_are_found(on_two_cores: tuple[int, int]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "POCL_MAX_PTHREAD_COUNT"}
    subprocess.run([sys.executable, "-c", LOADED_BEFORE], check=True, env=environment, timeout=120)
