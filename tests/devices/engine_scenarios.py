"""What the tests of the engine run in processes of their own, so that a crash or a sanitizer's report fails one test.

python engine_scenarios.py fuzz|lanes|lists LIBRARY EXAMPLES
python engine_scenarios.py parity SANITIZERS TEST_FILE
"""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.devices.engine import binding, build
from nnstretch.devices.engine.binding import Engine
from nnstretch.devices.engine.program import (
    Buffer,
    Lane,
    LaneKind,
    Program,
    Region,
    RegionKind,
    Step,
    StepKind,
    SubGraph,
    encode,
)

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
        Step(StepKind.KERNEL, copy, (0,), (2,), (FLOATS,)),
        Step(StepKind.KERNEL, add, (0, 2), (3,), adding),
        Step(StepKind.CALL, 0, (0, -1), (4,), ()),
        Step(StepKind.KERNEL, add, (3, 4), (1,), adding),
    ]
    serial = [Lane(LaneKind.HOST)], [SubGraph(0, 4)]
    parallel = (
        [Lane(LaneKind.HOST, (0, 0), ratios=(1, 3)), Lane(LaneKind.HOST), Lane(LaneKind.CALL)],
        [SubGraph(0, 1), SubGraph(1, 1, (0,)), SubGraph(2, 1, (0,)), SubGraph(0, 1, (1, 2))],
    )
    return [encode(lanes, regions, buffers, steps, subgraphs) for lanes, subgraphs in (serial, parallel)]


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
        assert (self.whole[GUARD + self.size :] == 0xA5).all(), "a run wrote behind a region"


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
    pointers = [(ctypes.c_void_p * 64)() for _ in range(2)]
    spare = Memory.of(LARGEST)
    for table in pointers:
        table[:] = [spare.address] * 64
    for (kind, index, _), memory in zip(sizes, memories, strict=False):
        if kind in (1, 2) and 0 <= index < 64:
            pointers[kind - 1][index] = memory.address
    queues = (ctypes.c_void_p * 64)()
    call = binding.Call(lambda _step, _reads, _writes: 0)
    bindings = binding.Bindings(regions, (binding.Launch * 1)(), 0, queues, call)
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
    ran = engine.library.nns_program_run(handle, pointers[0], pointers[1], None, text, 512)
    engine.library.nns_program_destroy(handle)
    assert ran == 0, text.value
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


def random_dag(engine: Engine, seed: int) -> Iterator[None]:
    """A random network of additions over host lanes gives what numpy gives, run after run."""
    rng = random.Random(seed)
    size, nodes = 4 * FLOATS, rng.randint(2, 24)
    add = engine.find("eltwise/binary")
    lanes = [Lane(LaneKind.HOST, rng.choice(((), (0,), (0, 0), (0, 0, 0)))) for _ in range(rng.randint(1, 4))]
    values = [np.random.default_rng(seed).integers(0, 4, FLOATS).astype(np.float32)]
    memory = np.zeros((nodes + 1, FLOATS), np.float32)
    steps, subgraphs = [], []
    placed: list[int] = []
    for node in range(1, nodes + 1):
        reads = (rng.randrange(node), rng.randrange(node))
        lane = rng.randrange(len(lanes))
        waits = {read - 1 for read in reads if read and placed[read - 1] != lane}
        steps.append(Step(StepKind.KERNEL, add, reads, (node,), (0, 1, FLOATS, 0, 1, 0, 0, 0)))
        subgraphs.append(SubGraph(lane, 1, tuple(sorted(waits))))
        placed.append(lane)
        values.append(values[reads[0]] + values[reads[1]])
    regions = [Region(RegionKind.FIXED, size, memory=memory[i]) for i in range(nodes + 1)]
    buffers = [Buffer(i, 0, size) for i in range(nodes + 1)]
    with Program(lanes, regions, buffers, steps, subgraphs, native=engine) as program:
        for _ in range(5):
            memory[:] = -1
            memory[0] = values[0]
            program.run()
            assert np.array_equal(memory, values), f"seed {seed}: lanes and numpy differ"
            yield


def lanes(engine: Engine, examples: int) -> None:
    """Random networks that run at once, which share pools."""
    with ThreadPoolExecutor(3) as threads:
        for seed in range(examples):
            networks = [random_dag(engine, seed + thousand) for thousand in (0, 1000, 2000)]
            for _ in threads.map(list, networks):
                pass


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

    lane = Lane(LaneKind.HOST, cores, ratios=ratios)
    regions = [Region(RegionKind.FIXED, row.nbytes, memory=row) for row in memory]
    with Program([lane], regions, buffers, steps, [SubGraph(0, len(steps))], calls=[call], native=engine) as program:
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


def parity(sanitize: str, tests: str) -> int:
    """Runs tests of kernels with sanitized engines, of this machine's instruction set alone where they have several."""
    plain, here = build.build_engine, build.local_isa()
    sanitized = partial(plain, sanitize=sanitize)
    for module in (build, binding):
        vars(module)["build_engine"] = sanitized
    others = " or ".join(isa.name for isa in build.ISAS if isa != here)
    return int(pytest.main(["-q", "-p", "no:cacheprovider", "-k", f"not ({others})", tests]))


if __name__ == "__main__":
    if sys.argv[1] == "parity":
        sys.exit(parity(*sys.argv[2:]))
    scenario, library, count = sys.argv[1:]
    {"fuzz": fuzz, "lanes": lanes, "lists": lists}[scenario](Engine(Path(library)), int(count))
