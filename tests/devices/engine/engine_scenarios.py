"""What the tests of the engine run in processes of their own, so that a crash or a sanitizer's report fails one test.

python engine_scenarios.py fuzz|lists LIBRARY EXAMPLES
python engine_scenarios.py queues LIBRARY EXAMPLES DEVICE
python engine_scenarios.py parity SANITIZERS TEST_FILE
"""

from __future__ import annotations

import ctypes
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.devices.engine.binding import library as binding
from nnstretch.devices.engine.binding import program as program_module
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
    encode,
)
from nnstretch.devices.engine.binding.library import Engine
from nnstretch.devices.engine.binding.program import Program
from nnstretch.devices.engine.build import engine_library
from nnstretch.devices.engine.build.instruction_sets import ISAS, local_isa
from nnstretch.errors import DeadlineError

WORDS = ctypes.POINTER(ctypes.c_int64)
GUARD = 512
LARGEST = 1 << 20
FLOATS = 5000
ODD_VALUES = (0, 1, -1, 2, 3, 4, 16, 1 << 20, (1 << 31) - 1, 1 << 31, 1 << 61, (1 << 63) - 1, -(1 << 63))


def valid_images(engine: Engine) -> list[np.ndarray]:
    """Images that the engine accepts, with every kind of part that needs no OpenCL."""
    size = 4 * FLOATS
    copy, add = engine.find("reorder/copy"), engine.find("eltwise/binary")
    adding = (0, 1, FLOATS, 0, 1, 0, 0, 0)
    regions = [
        Region(RegionKind.INPUT, size),
        Region(RegionKind.OUTPUT, size),
        Region(RegionKind.FIXED, 2 * size),
        Region(RegionKind.FIXED, size),
    ]
    buffers = [Buffer(0, 0, size), Buffer(1, 0, size), Buffer(2, 0, size), Buffer(2, size, size), Buffer(3, 0, size)]
    steps = [
        Step(StepKind.KERNEL, copy, (0,), (2,), (4 * FLOATS,)),
        Step(StepKind.KERNEL, add, (0, 2), (3,), adding),
        Step(StepKind.CALL, 0, (0, -1), (4,), ()),
        Step(StepKind.KERNEL, add, (3, 4), (1,), adding),
    ]
    serial = [Queue(QueueKind.HOST)], [SubGraph(0, 4)]
    parallel = (
        [Queue(QueueKind.HOST, (0, 0), ratios=(1, 3)), Queue(QueueKind.HOST), Queue(QueueKind.CALL)],
        [SubGraph(0, 1), SubGraph(1, 1, (0,)), SubGraph(2, 1, (0,)), SubGraph(0, 1, (1, 2))],
    )
    return [encode(queues, regions, buffers, steps, subgraphs) for queues, subgraphs in (serial, parallel)]


@dataclass
class Memory:
    """Memory for one region between guard bytes."""

    whole: np.ndarray
    size: int

    @classmethod
    def of(cls, size: int) -> Memory:
        whole = np.full(size + 2 * GUARD, 0xA5, np.uint8)
        whole[GUARD : GUARD + size] = 0
        return cls(whole, size)

    @property
    def address(self) -> int:
        return int(self.whole.ctypes.data) + GUARD

    def check(self) -> None:
        assert (self.whole[:GUARD] == 0xA5).all(), "a run wrote before a region"
        assert (self.whole[GUARD + self.size :] == 0xA5).all(), "a run wrote after a region"


def region_sizes(image: np.ndarray) -> list[tuple[int, int, int]] | None:
    """Kind, index and bytes of each region as a reader of the image finds them; None if it does not get so far."""
    words = [int(word) for word in image]
    if len(words) < 9 or not 0 <= words[2] <= len(words) or not 0 <= words[3] <= len(words):
        return None
    at = 9
    for _ in range(words[2]):
        at += 1
        for _ in ("cores", "ratios"):
            if at >= len(words) or not 0 <= words[at] <= len(words):
                return None
            at += 1 + words[at]
    found = [tuple(words[i : i + 3]) for i in range(at, at + 3 * words[3], 3)]
    return [(kind, index, size) for kind, index, size in found] if all(len(f) == 3 for f in found) else None


def create_and_run(engine: Engine, image: np.ndarray) -> bool:
    """Whether the engine accepts the image; if so it is run, and may not write outside its regions."""
    sizes = region_sizes(image) or []
    if any(size > LARGEST for _, _, size in sizes):
        return False  # no such memory can be bound: the binding refuses it before the engine sees it
    memories = [Memory.of(max(size, 0)) for _, _, size in sizes]
    regions = (binding.Region * max(len(sizes), 64))()
    for bound, memory in zip(regions, memories, strict=False):
        bound.host = memory.address
    spare = Memory.of(LARGEST)
    tables = [(ctypes.c_int64 * 128)(*[spare.address, LARGEST] * 64) for _ in range(2)]
    for (kind, index, size), memory in zip(sizes, memories, strict=False):
        if kind in (1, 2) and 0 <= index < 64:
            tables[kind - 1][2 * index : 2 * index + 2] = [memory.address, max(size, 0)]
    command_queues = (ctypes.c_void_p * 64)()
    call = binding.Call(lambda _context, _step, _reads, _writes: 0)
    bindings = binding.Bindings(regions, (binding.Launch * 1)(), 0, command_queues, call)
    handle = ctypes.c_void_p()
    text = ctypes.create_string_buffer(512)
    words = np.ascontiguousarray(image)
    status = engine.library.nns_program_create(
        words.ctypes.data_as(WORDS), words.size, ctypes.byref(bindings), ctypes.byref(handle), text, 512
    )
    if status:
        assert text.value, "a refusal says why"
        assert not handle.value
        return False
    counts = [min(int(count), 64) for count in image[7:9]]
    ran = engine.library.nns_program_run(handle, ctypes.byref(binding.Feeds(*tables, *counts)), None, text, 512)
    engine.library.nns_program_destroy(handle)
    assert ran == 0 or (max(image[7:9]) > 64 and b"the program has" in text.value), text.value
    for memory in memories:
        memory.check()
    return True


def fuzz(engine: Engine, examples: int) -> None:
    """Broken images are refused or run within their regions."""
    images = valid_images(engine)
    assert all(create_and_run(engine, image) for image in images)
    accepted = []

    # Two regions that name one input make the smaller memory a lie; such images say nothing about the engine.
    def names_one_input_twice(image: np.ndarray) -> bool:
        named = [(kind, index) for kind, index, _ in region_sizes(image) or () if kind in (1, 2)]
        return len(set(named)) != len(named)

    @settings(max_examples=examples, derandomize=True, database=None, deadline=None)
    @given(st.data())
    def broken_images(data: st.DataObject) -> None:
        image = data.draw(st.sampled_from(images)).copy()
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, image.size - 1))
            value = data.draw(st.one_of(st.sampled_from(ODD_VALUES), st.integers(-4, 4).map(int(image[at]).__add__)))
            image[at] = np.int64(max(min(value, (1 << 63) - 1), -(1 << 63)))
        cut = data.draw(st.sampled_from((0, 0, 0, 0, 1, 7)))
        if not names_one_input_twice(image):
            accepted.append(create_and_run(engine, image[: image.size - cut]))

    broken_images()
    assert 0 < sum(accepted) < len(accepted)


@dataclass(frozen=True)
class Handle:
    """An object of the device, as pyopencl's look to the engine."""

    int_ptr: int


_COUNTS = {
    "passed_semaphores": "a device waited at a semaphore",
    "lent_launches": "the thread of a lent queue enqueued a kernel",
    "enqueued_buffers": "a recorded sub-graph was enqueued as one command",
    "refused_buffers": "a command buffer was still pending, and its kernels were enqueued one by one",
}


class Device:
    """OpenCL on threads (opencl_double.c), and what was made with it."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        for name, types in (
            ("memory", (pointer, number, ctypes.c_int)),
            ("kernel", (pointer,) * 3),
            ("semaphore", (pointer, pointer, number)),
            ("queue", (number,)),
        ):
            function = getattr(self._library, f"double_{name}")
            function.restype, function.argtypes = pointer, types
        for name in ("memory", "kernel", "queue"):
            getattr(self._library, f"double_free_{name}").argtypes = (pointer,)
        for name in ("misuses", "live_events", "live_buffers", *_COUNTS):
            getattr(self._library, f"double_{name}").restype = number
        self._made: list[tuple[str, Handle]] = []

    def _make(self, what: str, *arguments: object) -> Handle:
        handle = Handle(getattr(self._library, f"double_{what}")(*arguments))
        self._made.append(("kernel" if what == "semaphore" else what, handle))
        return handle

    def memory(self, host: np.ndarray, sharing: Sharing) -> Handle:
        """Memory that is the host's or has a copy of it."""
        return self._make("memory", host.ctypes.data, host.size, sharing)

    def add(self, x: Handle, y: Handle, z: Handle) -> KernelLaunch:
        """A kernel that adds."""
        return KernelLaunch(self._make("kernel", x.int_ptr, y.int_ptr, z.int_ptr), (1,))

    def semaphore(self, flags: np.ndarray, waits: Sequence[int]) -> KernelLaunch:
        """A kernel that waits for flags."""
        numbers = np.array(waits, np.int32)
        return KernelLaunch(self._make("semaphore", flags.ctypes.data, numbers.ctypes.data, numbers.size), (1,))

    def count(self, what: str) -> int:
        """Semaphores that have opened, and what else `_COUNTS` names."""
        return int(getattr(self._library, f"double_{what}")())

    def command_queue(self, seed: int) -> Handle:
        """A queue, with delays drawn from `seed`."""
        return self._make("queue", seed)

    def check(self) -> None:
        """Nobody touched what was not theirs, and no event is left."""
        assert not self._library.double_misuses(), "a command touched memory that its side did not own"
        assert not self._library.double_live_events(), "events are left"
        until_released = time.monotonic() + 10  # by queues, a moment after their commands are done
        while self._library.double_live_buffers() and time.monotonic() < until_released:
            time.sleep(1e-3)
        assert not self._library.double_live_buffers(), "command buffers are left"

    def forget(self) -> None:
        """Frees all that was made; command_queues first, which are at rest then."""
        for what, handle in sorted(self._made, key=lambda made: made[0] != "queue"):
            getattr(self._library, f"double_free_{what}")(handle.int_ptr)
        self._made.clear()


class RandomDag:
    """A random network of additions over queues of all kinds: what numpy computes, run after run.

    What a device reads is copied by queue 0 to memory of that device, and what it makes is the host's when it is done.
    """

    def __init__(self, engine: Engine, device: Device, seed: int, gated: bool = False) -> None:
        """Draws one from `seed`; with `gated` one of a device on a core of its own, which waits at semaphores if the network
        runs by itself, and whose queue is lent if the network is long.
        """
        self._rng = random.Random(seed)
        self._engine, self._device, self._seed = engine, device, seed
        self._floats = self._rng.choice((1, 300, 2000))
        kinds = [QueueKind.HOST, *self._rng.choices(tuple(QueueKind), k=self._rng.randint(0, 3))]
        if gated:
            kinds = [QueueKind.HOST, QueueKind.OPENCL]
        self._queues = [self._queue(kind) for kind in kinds]
        if gated:
            core = max(os.sched_getaffinity(0))
            self._queues = [Queue(QueueKind.HOST), replace(self._queues[1], cores=(core,))]
        self._rows: list[np.ndarray] = []
        self._regions: list[Region] = []
        self._steps: list[Step] = []
        self._subgraphs: list[SubGraph] = []
        self._launches: list[KernelLaunch] = []
        self._expected: list[np.ndarray] = []
        self._maker: list[int] = []  # of each row its sub-graph
        self._row(np.random.default_rng(seed).integers(0, 4, self._floats).astype(np.float32), -1)
        for _ in range(self._rng.randint(2, 60 if gated else 24)):
            queue = self._rng.randrange(len(kinds))
            self._node(queue, self._rng.randrange(len(self._rows)), self._rng.randrange(len(self._rows)))

    def run(self, times: int) -> None:
        """Runs and checks every answer; some runs are traced, some have a deadline, some come after one that missed it."""
        buffers = [Buffer(i, 0, row.nbytes) for i, row in enumerate(self._rows)]
        parts = (self._queues, self._regions, buffers, self._steps, self._subgraphs)
        semaphores = self._semaphores()
        with Program(
            *parts, launches=self._launches, calls=[late_add], semaphores=semaphores, native=self._engine
        ) as program:
            for i in range(times):
                for row in self._rows[1:]:
                    row[:] = -1
                if i % 5 == 2:
                    cut_off(program, self._rng.random() * 1e-3)
                if i % 5 == 4:
                    program.run_traced()
                else:
                    program.run(deadline=100 if i % 5 == 3 else None)
                same = all(map(np.array_equal, self._rows, self._expected))
                assert same, f"seed {self._seed}: queues and numpy differ"

    def _semaphores(self) -> Semaphores | None:
        """Semaphores for most sub-graphs of the only device."""
        queues = [number for number, queue in enumerate(self._queues) if queue.kind is QueueKind.OPENCL]
        if len(queues) != 1:
            return None
        flags = np.zeros(len(self._subgraphs), np.int32)
        gated = [s.queue in queues and bool(s.waits) and self._rng.random() < 0.8 for s in self._subgraphs]
        launches = [
            self._device.semaphore(flags, s.waits) if is_gated else None
            for s, is_gated in zip(self._subgraphs, gated, strict=True)
        ]
        return Semaphores(tuple(launches), flags)

    def _queue(self, kind: QueueKind) -> Queue:
        if kind is QueueKind.OPENCL:
            return Queue(kind, command_queue=self._device.command_queue(self._seed), records=self._rng.random() < 0.5)
        return Queue(kind, self._rng.choice(((), (0,), (0, 0), (0, 0, 0))) if kind is QueueKind.HOST else ())

    def _row(self, expected: np.ndarray, maker: int, queue: int | None = None) -> int:
        """A new row of memory, shared with a device if it has a queue."""
        row = expected.copy()
        if queue is None:
            self._regions.append(Region(RegionKind.FIXED, row.nbytes, memory=row))
        else:
            sharing = self._rng.choice(tuple(Sharing))
            mem = self._device.memory(row, sharing)
            self._regions.append(
                Region(RegionKind.SHARED, row.nbytes, memory=row, mem=mem, sharing=sharing, queue=queue)
            )
        self._rows.append(row)
        self._expected.append(expected)
        self._maker.append(maker)
        return len(self._rows) - 1

    def _subgraph(self, queue: int, reads: Sequence[int], **shared: tuple[int, ...]) -> None:
        makers = {self._maker[read] for read in reads} - {-1}
        waits = tuple(sorted(maker for maker in makers if self._subgraphs[maker].queue != queue))
        count = len(self._steps) - sum(subgraph.steps for subgraph in self._subgraphs)
        self._subgraphs.append(SubGraph(queue, count, waits, **shared))

    def _node(self, queue: int, x: int, y: int) -> None:
        device = self._queues[queue].kind is QueueKind.OPENCL
        if device:
            x, y = (self._copy(read, queue) for read in (x, y))
        expected = self._expected[x] + self._expected[y]
        z = self._row(expected, len(self._subgraphs), queue if device else None)
        if device:
            self._launch(queue, x, y, z)
            for _ in range(self._rng.randint(0, 2)):
                self._launch(queue, z, x, z)
                self._expected[z] = self._expected[z] + self._expected[x]
            self._subgraph(queue, (x, y), acquires=tuple(sorted({x, y})), releases=(z,))
        elif self._queues[queue].kind is QueueKind.CALL or self._rng.random() < 0.2:
            self._steps.append(Step(StepKind.CALL, 0, (x, y), (z,)))
            self._subgraph(queue, (x, y))
        else:
            add = self._engine.find("eltwise/binary")
            self._steps.append(Step(StepKind.KERNEL, add, (x, y), (z,), (0, 1, self._floats, 0, 1, 0, 0, 0)))
            self._subgraph(queue, (x, y))

    def _copy(self, read: int, queue: int) -> int:
        copy = self._row(self._expected[read], len(self._subgraphs), queue)
        self._steps.append(
            Step(StepKind.KERNEL, self._engine.find("reorder/copy"), (read,), (copy,), (4 * self._floats,))
        )
        self._subgraph(0, (read,))
        return copy

    def _launch(self, queue: int, *rows: int) -> None:
        memories = [self._regions[row].mem for row in rows]
        handles = [memory for memory in memories if isinstance(memory, Handle)]
        self._steps.append(Step(StepKind.OPENCL, len(self._launches)))
        self._launches.append(self._device.add(*handles))


def cut_off(program: Program, seconds: float) -> None:
    """A run that is given too little time, most times, and what it leaves behind."""
    with suppress(DeadlineError):
        program.run(deadline=max(seconds, 1e-6))
    while program.busy:
        time.sleep(1e-4)


def late_add(reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
    """An addition, at times after a while."""
    if random.random() < 0.05:
        time.sleep(1e-4)
    writes[0].view(np.float32)[:] = reads[0].view(np.float32) + reads[1].view(np.float32)


def queues(engine: Engine, examples: int, library: str) -> None:
    """Random networks that run at once, which share pools; more of them where chance left out what must happen."""
    engine.load_opencl(library)
    vars(program_module)["_load_opencl"] = lambda _native: None  # it has one
    device = Device(library)
    with ThreadPoolExecutor(3) as threads:
        for seed in range(5 * examples):
            if seed >= examples and all(map(device.count, _COUNTS)):
                break
            networks = [RandomDag(engine, device, seed + thousand) for thousand in (0, 1000, 2000)]
            for _ in threads.map(RandomDag.run, networks, [25] * len(networks)):
                pass
            RandomDag(engine, device, seed, gated=True).run(10)
            device.check()
            device.forget()
    for what, meaning in _COUNTS.items():
        assert device.count(what), f"never happened: {meaning}"


def random_list(engine: Engine, seed: int) -> Iterator[None]:
    """A chain of additions of very different sizes on one pool, calls in between, gives what numpy gives, run after run."""
    rng = random.Random(seed)
    steps_count, largest = rng.randint(1, 40), rng.choice((1, 5000, 200_000))
    cores = rng.choice(((0,), (0, 0), (0, 0, 0), (0,) * 7))
    ratios = tuple(rng.choice((1, 1, 2, 50)) for _ in cores) if rng.random() < 0.5 else ()
    sizes = [rng.randint(1, largest) for _ in range(steps_count)]
    add = engine.find("eltwise/binary")
    memory = np.zeros((2, largest), np.float32)
    expected = np.zeros(largest, np.float32)
    steps, buffers = [], []
    for i, floats in enumerate(sizes):
        buffers += [Buffer(0, 0, 4 * floats), Buffer(1, 0, 4 * floats)]
        expected[:floats] += 1
        if rng.random() < 0.2:
            steps.append(Step(StepKind.CALL, 0, (2 * i, 2 * i + 1), (2 * i,)))
        else:
            parameters = (0, 1, floats, 0, 1, 0, 0, 0)
            steps.append(Step(StepKind.KERNEL, add, (2 * i, 2 * i + 1), (2 * i,), parameters))

    def call(reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        writes[0].view(np.float32)[:] = reads[0].view(np.float32) + reads[1].view(np.float32)

    queue = Queue(QueueKind.HOST, cores, ratios=ratios)
    regions = [Region(RegionKind.FIXED, row.nbytes, memory=row) for row in memory]
    with Program([queue], regions, buffers, steps, [SubGraph(0, len(steps))], calls=[call], native=engine) as program:
        for _ in range(5):
            memory[0], memory[1] = 0, 1
            trace = program.run_traced()
            assert np.array_equal(memory[0], expected), f"seed {seed}: the pool and numpy differ"
            assert (np.diff(trace.steps.reshape(-1)) >= 0).all(), f"seed {seed}: steps overlap"
            yield


def lists(engine: Engine, examples: int) -> None:
    """Lists of tasks on pools whose threads share a core, so that any of them may be away at any time."""
    for seed in range(examples):
        for _ in random_list(engine, seed):
            pass


def parity(sanitize: str, *tests: str) -> int:
    """Runs tests of kernels with sanitized engines, of this machine's instruction set alone where they have several."""
    plain, here = engine_library.build_engine, local_isa()
    sanitized = partial(plain, sanitize=sanitize)
    for module in (engine_library, binding):
        vars(module)["build_engine"] = sanitized
    others = " or ".join(isa.name for isa in ISAS if isa != here)
    return int(pytest.main(["-q", "-p", "no:cacheprovider", "-k", f"not ({others})", *tests]))


if __name__ == "__main__":
    if sys.argv[1] == "parity":
        sys.exit(parity(*sys.argv[2:]))
    scenario, library, count, *more = sys.argv[1:]
    native = Engine(Path(library))
    if scenario == "queues":
        queues(native, int(count), *more)
    else:
        {"fuzz": fuzz, "lists": lists}[scenario](native, int(count))
