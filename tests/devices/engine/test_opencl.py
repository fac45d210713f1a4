"""OpenCL queues: transfers with shared and with copied memory, order, overlap, traces and failures."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import pytest

from nnstretch.devices.engine.binding.execution import CallFunction
from nnstretch.devices.engine.binding.image import (
    Buffer,
    KernelLaunch,
    Queue,
    QueueKind,
    Region,
    RegionKind,
    Semaphores,
    Sharing,
    Step,
    StepKind,
    SubGraph,
)
from nnstretch.devices.engine.binding.library import Engine, engine
from nnstretch.devices.engine.binding.program import Program, aligned_array
from nnstretch.devices.opencl.drivers import probe_device
from nnstretch.devices.opencl.memory import SharedMemory
from nnstretch.devices.opencl.semaphores import SEMAPHORE_SOURCE
from nnstretch.devices.opencl.sources import kernel_source
from nnstretch.errors import DeadlineError, DeviceError, FeedError, PackageError

pytestmark = pytest.mark.opencl

FLOATS = 5000
SIZE = 4 * FLOATS
SOURCE = """
kernel void add(global const float *x, global const float *y, global float *z) {
    const size_t i = get_global_id(0);
    z[i] = x[i] + y[i];
}
""" + kernel_source(SEMAPHORE_SOURCE)


@dataclass
class OpenCL:
    """A device with a compiled kernel."""

    context: Any
    program: Any

    def command_queue(self, profiling: bool = True) -> Any:
        import pyopencl as cl

        options: dict[str, Any] = {"properties": cl.command_queue_properties.PROFILING_ENABLE} if profiling else {}
        return cl.CommandQueue(self.context, **options)

    def shared(self, sharing: Sharing) -> SharedMemory:
        """Memory that is shared in this way, or in the next best one where the device cannot."""
        import pyopencl as cl

        best = probe_device(0)
        flags = cl.mem_flags.READ_WRITE
        if sharing is Sharing.COHERENT and best.sharing is Sharing.COHERENT:
            how = cl.svm_mem_flags.READ_WRITE | cl.svm_mem_flags.SVM_FINE_GRAIN_BUFFER
            allocation = cl.SVMAllocation(self.context, SIZE, 64, how)
            allocation.buf[:] = 0
            return SharedMemory(allocation.buf, allocation.as_buffer(self.context), sharing, allocation)
        memory = aligned_array(SIZE)
        if sharing is Sharing.COPIED:
            return SharedMemory(memory, cl.Buffer(self.context, flags, SIZE), sharing)
        return SharedMemory(
            memory, cl.Buffer(self.context, flags | cl.mem_flags.USE_HOST_PTR, hostbuf=memory), Sharing.MAPPED
        )

    def add(self, *buffers: Any) -> KernelLaunch:
        import pyopencl as cl

        kernel = cl.Kernel(self.program, "add")
        kernel.set_args(*buffers)
        return KernelLaunch(kernel, (FLOATS,))


@pytest.fixture(scope="module")
def opencl() -> OpenCL:
    import pyopencl as cl

    device = cl.get_platforms()[0].get_devices()[0]
    context = cl.Context([device])
    return OpenCL(context, cl.Program(context, SOURCE).build())


@dataclass
class Builder:
    """Collects the parts of a program; every value is a region of its own with one buffer."""

    opencl: OpenCL
    queues: list[Queue]
    regions: list[Region] = field(default_factory=list)
    shared: list[SharedMemory] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    subgraphs: list[SubGraph] = field(default_factory=list)
    launches: list[KernelLaunch] = field(default_factory=list)
    calls: list[CallFunction] = field(default_factory=list)
    semaphores: Semaphores | None = None
    native: Engine | None = None

    def region(self, kind: RegionKind, queue: int = 0, sharing: Sharing = Sharing.COPIED) -> int:
        if kind is RegionKind.SHARED:
            made = self.opencl.shared(sharing)
            self.shared.append(made)
            self.regions.append(
                Region(kind, SIZE, memory=made.host, mem=made.buffer, sharing=made.sharing, queue=queue)
            )
        else:
            memory = None if kind in (RegionKind.INPUT, RegionKind.OUTPUT) else aligned_array(SIZE)
            self.regions.append(Region(kind, SIZE, memory=memory))
        return len(self.regions) - 1

    def memory(self, region: int) -> np.ndarray:
        memory = self.regions[region].memory
        assert memory is not None
        return memory.view(np.float32)

    def host(self, queue: int, reads: tuple[int, int], write: int, waits: tuple[int, ...] = ()) -> int:
        kernel = engine().find("eltwise/binary")
        self.steps.append(Step(StepKind.KERNEL, kernel, reads, (write,), (0, 1, FLOATS, 0, 1, 0, 0, 0)))
        return self._subgraph(SubGraph(queue, 1, waits))

    def call(self, queue: int, call: CallFunction, waits: tuple[int, ...] = ()) -> int:
        self.steps.append(Step(StepKind.CALL, len(self.calls)))
        self.calls.append(call)
        return self._subgraph(SubGraph(queue, 1, waits))

    def device(
        self,
        queue: int,
        reads: tuple[int, int],
        write: int,
        waits: tuple[int, ...] = (),
        acquires: Sequence[int] | None = None,
        releases: Sequence[int] | None = None,
    ) -> int:
        launch = self.opencl.add(*(self.regions[r].mem for r in (*reads, write)))
        self.steps.append(Step(StepKind.OPENCL, len(self.launches)))
        self.launches.append(launch)
        acquired = tuple(sorted(set(reads))) if acquires is None else tuple(acquires)
        released = (write,) if releases is None else tuple(releases)
        return self._subgraph(SubGraph(queue, 1, waits, acquired, released))

    def program(self) -> Program:
        buffers = [Buffer(i, 0, region.bytes) for i, region in enumerate(self.regions)]
        return Program(
            self.queues,
            self.regions,
            buffers,
            self.steps,
            self.subgraphs,
            launches=self.launches,
            calls=self.calls,
            semaphores=self.semaphores,
            native=self.native,
            keep=self.shared,
        )

    def _subgraph(self, subgraph: SubGraph) -> int:
        self.subgraphs.append(subgraph)
        return len(self.subgraphs) - 1


def there_and_back(opencl: OpenCL, sharing: Sharing, profiling: bool = True) -> Builder:
    """Output = 2 × (input + input), the second addition on the device."""
    b = Builder(opencl, [Queue(QueueKind.HOST), Queue(QueueKind.OPENCL, (), opencl.command_queue(profiling))])
    x = b.region(RegionKind.INPUT)
    sent, back = (b.region(RegionKind.SHARED, 1, sharing) for _ in range(2))
    y = b.region(RegionKind.OUTPUT)
    zero = b.region(RegionKind.FIXED)
    first = b.host(0, (x, x), sent)
    second = b.device(1, (sent, sent), back, (first,))
    b.host(0, (back, zero), y, (second,))
    return b


def gated(b: Builder) -> Builder:
    """The same with a semaphore in front of every sub-graph of a device that waits."""
    import pyopencl as cl

    if probe_device(0).sharing is not Sharing.COHERENT:
        pytest.skip("the device does not see what the host writes while it works")
    memory = b.opencl.shared(Sharing.COHERENT)
    numbers = memory.host.view(np.int32)
    launches: list[KernelLaunch | None] = []
    place = len(b.subgraphs)
    for subgraph in b.subgraphs:
        waits = subgraph.waits if b.queues[subgraph.queue].kind is QueueKind.OPENCL else ()
        kernel = cl.Kernel(b.opencl.program, "semaphore")
        kernel.set_args(memory.buffer, memory.buffer, np.array([0, place, len(waits)], np.int32))
        numbers[place : place + len(waits)] = waits
        launches.append(KernelLaunch(kernel, (1,), (1,)) if waits else None)
        place += len(waits)
    b.shared.append(memory)
    b.semaphores = Semaphores(tuple(launches), numbers[: len(b.subgraphs)])
    return b


@pytest.mark.parametrize("sharing", Sharing)
def test_data_cross_to_the_device_and_back(opencl: OpenCL, sharing: Sharing) -> None:
    x = y = np.zeros(FLOATS, np.float32)
    with there_and_back(opencl, sharing).program() as program:
        for seed in range(20):
            x = np.random.default_rng(seed).standard_normal(FLOATS, dtype=np.float32)
            y = np.zeros_like(x)
            program.run([x], [y])
            assert np.array_equal(y, 4 * x)
        assert len(program.time([x], [y], runs=5)) == 5


@pytest.mark.parametrize("sharing", Sharing)
def test_a_last_subgraph_is_done_when_the_run_is(opencl: OpenCL, sharing: Sharing) -> None:
    """Nothing waits for the device, and only the last of several sub-graphs releases what they computed."""
    b = Builder(opencl, [Queue(QueueKind.HOST), Queue(QueueKind.OPENCL, (), opencl.command_queue())])
    x, y, z = (b.region(RegionKind.SHARED, 1, sharing) for _ in range(3))
    b.device(1, (x, x), y, releases=())
    b.device(1, (y, x), z, acquires=(), releases=())
    b.device(1, (z, x), y, acquires=(), releases=(y,))
    with b.program() as program:
        for value in (1.0, 2.0):
            b.memory(x)[:] = value
            program.run()
            assert (b.memory(y) == 4 * value).all()


@pytest.mark.parametrize("sharing", Sharing)
def test_queues_overlap_and_meet(opencl: OpenCL, sharing: Sharing) -> None:
    """Two device queues and two host queues compute from one value; a slow call delays one of them."""
    command_queues = [opencl.command_queue(), opencl.command_queue()]
    queues = [Queue(QueueKind.HOST), *(Queue(QueueKind.OPENCL, (), q) for q in command_queues), Queue(QueueKind.HOST)]
    b = Builder(opencl, queues)
    rng = random.Random(1)
    x = b.region(RegionKind.INPUT)
    inputs = [b.region(RegionKind.SHARED, queue, sharing) for queue in (1, 2)]
    answers = [b.region(RegionKind.SHARED, queue, sharing) for queue in (1, 2)]
    mine, late, y, zero = (
        b.region(kind) for kind in (RegionKind.FIXED, RegionKind.FIXED, RegionKind.OUTPUT, RegionKind.FIXED)
    )
    sent = [b.host(0, (x, zero), region) for region in inputs]
    computed = [b.device(i + 1, (inputs[i], inputs[i]), answers[i], (sent[i],)) for i in range(2)]
    delay = b.call(3, lambda _r, _w: time.sleep(rng.random() * 3e-3))
    other = b.host(3, (x, x), late)
    b.host(0, (x, x), mine)
    b.host(0, (mine, answers[0]), mine, (computed[0],))
    b.host(0, (mine, answers[1]), mine, (computed[1],))
    b.host(0, (mine, late), y, (delay, other))
    with b.program() as program:
        for seed in range(20):
            feed = np.random.default_rng(seed).integers(0, 99, FLOATS).astype(np.float32)
            found = np.zeros_like(feed)
            program.run([feed], [found])
            assert np.array_equal(found, 8 * feed)


def test_a_device_waits_for_another_thread_and_another_device(opencl: OpenCL) -> None:
    """Host queue 2 waits for device 1, and device 3 for host queue 2, while queue 0 has nothing to do with either."""
    queues = [Queue(QueueKind.HOST), Queue(QueueKind.OPENCL, (), opencl.command_queue()), Queue(QueueKind.HOST)]
    b = Builder(opencl, [*queues, Queue(QueueKind.OPENCL, (), opencl.command_queue())])
    x, first = (b.region(RegionKind.SHARED, 1, Sharing.COHERENT) for _ in range(2))
    between, last = (b.region(RegionKind.SHARED, 3, Sharing.COHERENT) for _ in range(2))
    on_device = b.device(1, (x, x), first)
    on_host = b.host(2, (first, first), between, (on_device,))
    b.call(0, lambda _r, _w: time.sleep(1e-3))
    b.device(3, (between, between), last, (on_host,))
    with b.program() as program:
        for value in range(1, 10):
            b.memory(x)[:] = value
            program.run()
            assert (b.memory(last) == 8 * value).all()


@pytest.mark.parametrize("profiling", [True, False])
@pytest.mark.parametrize("sharing", Sharing)
def test_a_trace_shows_the_device_between_what_it_waits_for_and_what_waits_for_it(
    opencl: OpenCL, sharing: Sharing, profiling: bool
) -> None:
    x = np.ones(FLOATS, np.float32)
    y = np.zeros_like(x)
    with there_and_back(opencl, sharing, profiling).program() as program:
        for _ in range(5):
            trace = program.run_traced([x], [y])
            assert (trace.steps[:, 0] < trace.steps[:, 1]).all()
            assert (np.diff(trace.steps[:, 0]) > 0).all()
            assert trace.steps[1, 0] >= trace.steps[0, 1]
            assert trace.waits[2, 1] <= trace.steps[2, 0]
            assert (y == 4).all()


@pytest.mark.parametrize("sharing", Sharing)
def test_traced_runs_may_have_a_queue_of_their_own(opencl: OpenCL, sharing: Sharing) -> None:
    """Runs alternate between a queue without the times of commands and one with them."""
    b = there_and_back(opencl, sharing, profiling=False)
    b.queues[1] = replace(b.queues[1], trace_queue=opencl.command_queue())
    x = np.ones(FLOATS, np.float32)
    y = np.zeros_like(x)
    with b.program() as program:
        for _ in range(3):
            program.run([x], [y])
            assert (y == 4).all()
            y[:] = 0
            trace = program.run_traced([x], [y])
            assert (trace.steps[:, 0] < trace.steps[:, 1]).all()
            assert (y == 4).all()
            y[:] = 0


def test_a_failure_elsewhere_leaves_the_device_ready_for_the_next_run(opencl: OpenCL) -> None:
    for sharing in Sharing:
        b = there_and_back(opencl, sharing)
        fail: list[bool] = []

        def call(_reads: object, _writes: object, fail: list[bool] = fail) -> None:
            if fail:
                raise FeedError("stop")

        b.queues.append(Queue(QueueKind.CALL))
        b.call(2, call, (0,))
        b.call(0, call)
        x = np.ones(FLOATS, np.float32)
        y = np.zeros_like(x)
        with b.program() as program:
            for _ in range(5):
                fail.append(True)
                with pytest.raises(FeedError):
                    program.run([x], [y])
                with pytest.raises(FeedError):
                    program.run_traced([x], [y])
                fail.clear()
                y[:] = 0
                program.run([x], [y])
                assert (y == 4).all()


def test_a_launch_that_the_driver_refuses_is_reported(opencl: OpenCL) -> None:
    b = there_and_back(opencl, Sharing.MAPPED)
    b.launches[0] = KernelLaunch(b.launches[0].kernel, (FLOATS,), (FLOATS - 1,))
    x = np.ones(FLOATS, np.float32)
    with b.program() as program:
        for _ in range(3):
            with pytest.raises(DeviceError, match="clEnqueueNDRangeKernel failed with OpenCL error -"):
                program.run([x], [x.copy()])


def test_memory_that_is_not_the_hosts_own_cannot_be_mapped(opencl: OpenCL) -> None:
    b = there_and_back(opencl, Sharing.COPIED)
    b.regions[1] = replace(b.regions[1], sharing=Sharing.MAPPED)
    with pytest.raises(DeviceError, match="another address"):
        b.program()


def test_a_device_waits_at_semaphores_for_other_queues(opencl: OpenCL) -> None:
    """Two of three host queues are late; the device, which has all its work from the begin, sees what they wrote."""
    b = Builder(
        opencl, [Queue(QueueKind.HOST), Queue(QueueKind.OPENCL, (), opencl.command_queue()), Queue(QueueKind.CALL)]
    )
    x, first, between, last = (b.region(RegionKind.SHARED, 1, Sharing.COHERENT) for _ in range(4))
    on_device = b.device(1, (x, x), first)
    late = b.call(2, lambda _r, _w: time.sleep(1e-3), (on_device,))
    on_host = b.host(0, (first, first), between, (on_device,))
    b.device(1, (between, first), last, (on_host, late))
    with gated(b).program() as program:
        for value in range(1, 30):
            b.memory(x)[:] = value
            program.run()
            assert (b.memory(last) == 6 * value).all()


def test_semaphores_open_when_a_run_fails(opencl: OpenCL) -> None:
    """Else the queue would never come to rest."""
    b = Builder(opencl, [Queue(QueueKind.HOST), Queue(QueueKind.OPENCL, (), opencl.command_queue())])
    x, y = (b.region(RegionKind.SHARED, 1, Sharing.COHERENT) for _ in range(2))
    fail: list[Exception] = []
    hangs = threading.Event()

    def call(_reads: object, _writes: object) -> None:
        hangs.wait()
        if fail:
            raise fail[-1]

    hangs.set()
    called = b.call(0, call)
    b.device(1, (x, x), y, (called,))
    with gated(b).program() as program:
        for value in range(1, 6):
            b.memory(x)[:] = value
            program.run()
            assert (b.memory(y) == 2 * value).all()
            fail.append(FeedError("stop"))
            with pytest.raises(FeedError):
                program.run()
            fail.clear()
            hangs.clear()
            with pytest.raises(DeadlineError):
                program.run(deadline=0.02)
            assert program.busy
            hangs.set()
            while program.busy:
                time.sleep(1e-3)


def test_semaphores_that_are_refused(opencl: OpenCL) -> None:
    b = gated(there_and_back(opencl, Sharing.COHERENT))
    assert b.semaphores is not None
    semaphore = next(launch for launch in b.semaphores.launches if launch is not None)
    b.semaphores = Semaphores((semaphore, None, None), b.semaphores.flags)
    with pytest.raises(PackageError, match="sub-graph 0 has a semaphore, but is on no OpenCL queue"):
        b.program()
    b.semaphores = Semaphores((None, KernelLaunch(semaphore.kernel, (0,)), None), b.semaphores.flags)
    with pytest.raises(PackageError, match="semaphore 1 has a global size of 0"):
        b.program()
    b.semaphores = Semaphores((None, semaphore, None), b.semaphores.flags)
    b.queues.append(Queue(QueueKind.OPENCL, (), opencl.command_queue()))
    with pytest.raises(PackageError, match="in a program of several OpenCL queues"):
        b.program()


def test_refusals(opencl: OpenCL) -> None:
    def refused(reason: str, change: Any) -> None:
        b = there_and_back(opencl, Sharing.MAPPED)
        change(b)
        with pytest.raises(PackageError, match=reason):
            b.program()

    def use_one_kernel_twice(b: Builder) -> None:
        b.device(1, (1, 1), 2)
        b.launches[1] = b.launches[0]

    def put_a_kernel_on_the_device(b: Builder) -> None:
        b.subgraphs[0] = SubGraph(1, 1)

    def share_with_the_host(b: Builder) -> None:
        b.regions[1] = replace(b.regions[1], queue=0)

    def share_in_no_known_way(b: Builder) -> None:
        b.regions[1] = replace(b.regions[1], sharing=cast("Sharing", 3))

    def launch_nothing(b: Builder) -> None:
        b.launches[0] = KernelLaunch(b.launches[0].kernel, (0,))

    def launch_too_much(b: Builder) -> None:
        b.launches.clear()

    refused("one cl_kernel", use_one_kernel_twice)
    refused("cannot run", put_a_kernel_on_the_device)
    refused("no OpenCL queue", share_with_the_host)
    refused("shared in way 3", share_in_no_known_way)
    refused("global size of 0", launch_nothing)
    refused("launch 0 of 0", launch_too_much)


def test_a_library_without_opencl_is_refused() -> None:
    with pytest.raises(DeviceError, match="nowhere"):
        fresh_engine().load_opencl("/nowhere/libOpenCL.so")
    with pytest.raises(DeviceError, match="clEnqueueNDRangeKernel"):
        fresh_engine().load_opencl(engine().path)


def fresh_engine() -> Any:
    """The engine loaded a second time, from a copy, so that nothing is resolved yet."""
    import shutil
    import tempfile
    from pathlib import Path

    from nnstretch.devices.engine.binding.library import Engine

    with tempfile.TemporaryDirectory() as directory:
        return Engine(Path(shutil.copy(engine().path, directory)))
