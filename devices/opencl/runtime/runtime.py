"""Building and feeding kernels on one OpenCL device; running them is the engine's part."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nnstretch.devices.base.routine import Launch
from nnstretch.devices.base.spec import ProcessorSpec, default_cores
from nnstretch.devices.engine.binding.image import Sharing
from nnstretch.devices.engine.binding.program import HUGE_PAGE, aligned_array, ask_for_huge_pages
from nnstretch.devices.engine.build.instruction_sets import local_isa
from nnstretch.devices.opencl.routines.base import Traits
from nnstretch.devices.opencl.runtime import drivers
from nnstretch.devices.opencl.runtime.drivers import DeviceInfo, probe
from nnstretch.errors import BuildError, DeviceError
from nnstretch.support.settings import atomic_write, cache_dir

if TYPE_CHECKING:
    import pyopencl

__all__ = ["KERNELS", "DeviceInfo", "OpenCLRuntime", "kernel_integers", "kernel_source", "probe", "sources_hash"]

KERNELS = Path(__file__).parents[1] / "kernels"
_INCLUDE = re.compile(r'^#include "([\w.]+)"$', re.MULTILINE)
_STRUCT = re.compile(r"^typedef struct \{([^}]*)\} (\w+);$", re.MULTILINE)
_KERNEL = re.compile(r"^kernel void (\w+)\([^)]*,\s+const (\w+) given\)$", re.MULTILINE)
_GPU_FLOATS = 64  # registers that a work item of a GPU may use for its tile
_PAGE = 4096
_SVM_ALIGNMENT = 128  # that of the largest type, more may be refused
_DIGEST = hashlib.sha256().digest_size
_OPTIONS = ("-cl-std=CL1.2", "-cl-mad-enable", "-cl-no-signed-zeros")

Defines = Sequence[tuple[str, int]]
MemoryArgument = tuple["pyopencl.Buffer | None", int]
"""A buffer and an offset into it in elements; (None, 0) for an absent operand."""


def kernel_source(name: str) -> str:
    """The text of a kernel file with its includes put in, so that it stands by itself."""
    text = (KERNELS / name).read_text()
    return _INCLUDE.sub(lambda match: kernel_source(match[1]), text)


def kernel_integers(text: str) -> dict[str, int]:
    """How many integers every kernel of a source takes in its struct, which drivers need not know.

    Kernels that are not written as common.cl says are left out.
    """
    sizes = {"int": 1}
    for members, name in _STRUCT.findall(text):
        declared = [member.split(None, 1) for member in members.split(";") if member.strip()]
        if all(len(words) == 2 and words[0] in sizes for words in declared):
            sizes[name] = sum(sizes[kind] * (names.count(",") + 1) for kind, names in declared)
    return {kernel: sizes[struct] for kernel, struct in _KERNEL.findall(text) if struct in sizes}


def sources_hash() -> str:
    """Short hash of all kernel files."""
    digest = hashlib.sha256()
    for path in sorted(KERNELS.glob("*.cl")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class SharedMemory:
    """Memory that the host and a device see, for as long as this lives.

    Attributes:
        host: bytes, contiguous and at least 64-byte aligned.
        buffer: the same for kernels.
        sharing: what has to be done when it passes from one to the other.
        allocation: who frees the memory, where that is not `host`.
    """

    host: np.ndarray
    buffer: pyopencl.Buffer
    sharing: Sharing
    allocation: pyopencl.SVMAllocation | None = None


class OpenCLRuntime:
    """One device with a context, an in-order queue and the programs built for it.

    A device that lives on the CPU works on the cores of `spec`, a GPU ignores them. As the threads of a CPU driver are
    shared by all runtimes of a process (see `drivers`), call `activate` before work is given to a runtime if there are
    several with different cores; those that work at the same time share their cores.

    Attributes:
        spec: the processor as written, with its cores.
        info: what the device is.
        traits: what routines need to know of it.
        threads: CPU threads that work for it, 0 for a device of its own.
        device, context, queue: pyopencl's objects.

    Args:
        spec: kind "opencl", the device's number and its cores (those of `default_cores` if empty).
        profile: whether the queue takes the times of commands, which makes each of them slower.
        sources: texts of kernel files (as `kernel_source` gives them) to use instead of the installed ones.

    Raises:
        DeviceError: there is no such device, it does not work, or it has no memory left.
    """

    def __init__(self, spec: ProcessorSpec, profile: bool = False, sources: Mapping[str, str] | None = None) -> None:
        drivers.import_pyopencl()
        import pyopencl as cl

        self.spec = spec
        self._cores = spec.cores or default_cores()
        self.device = drivers.find_device(spec.index, self._cores)
        self.info = drivers.probe_device(spec.index)
        if not self.info.usable:
            raise DeviceError(f"OpenCL device {spec.index} ({self.info.name}) does not work: {self.info.why_not}")
        self.threads = drivers.warn_if_short(self._cores) if self.info.on_cpu else 0
        self.traits = _traits(self.info, self.threads)
        self._sources = sources
        self._programs: dict[tuple[str, tuple[tuple[str, int], ...]], pyopencl.Program] = {}
        self._integers: dict[str, int] = {}  # by kernel
        self._lock = threading.Lock()
        try:
            self.context = cl.Context([self.device])
            if profile:
                self.queue = cl.CommandQueue(self.context, properties=cl.command_queue_properties.PROFILING_ENABLE)
            else:
                self.queue = cl.CommandQueue(self.context)
        except cl.Error as error:
            raise self._failure("gave no queue", error) from error
        self.activate()

    def activate(self, others: Sequence[OpenCLRuntime] = ()) -> None:
        """Moves the driver's threads to the cores of this runtime and of others that work at the same time.

        Cheap if they are there; devices that do not live on the CPU have no say.
        """
        cores = {core for runtime in (self, *others) if runtime.info.on_cpu for core in runtime._cores}
        if cores:
            drivers.pin_workers(tuple(sorted(cores)))

    def program(self, source: str, defines: Defines) -> pyopencl.Program:
        """The built program of kernel file `source` with macros `defines`; built once, and cached on disk.

        Raises:
            BuildError: it does not compile.
            FileError: the cache cannot be written.
        """
        key = (source, tuple(defines))
        with self._lock:
            if key not in self._programs:
                self._programs[key] = self._load(source, defines)
            return self._programs[key]

    def kernel(self, launch: Launch, name: str) -> pyopencl.Kernel:
        """A kernel object of its own, whose arguments can be set once and kept.

        Raises:
            BuildError: the source does not compile or has no kernel `name`.
        """
        import pyopencl as cl

        program = self.program(launch.source, launch.defines)
        try:
            return cl.Kernel(program, name)
        except cl.Error as error:
            raise BuildError(f"OpenCL source {launch.source} has no kernel {name!r} ({_first_line(error)})") from error

    def has_source(self, name: str) -> bool:
        """Whether kernels of a file can be built here."""
        return self._sources is None or name in self._sources

    def set_arguments(
        self, kernel: pyopencl.Kernel, memory: Sequence[MemoryArgument], parameters: Sequence[int]
    ) -> None:
        """Sets all arguments: the buffers that are read, those that are written, and one struct of 32-bit integers by value.

        The struct holds the offset of every buffer in elements, in the same order, then the parameters. It is one argument
        because drivers pay for each of them at every enqueue.

        Args:
            kernel: of this runtime.
            memory: for every read, then for every write.
            parameters: of 32 bits each, with or without a sign.

        Raises:
            DeviceError: there are too many or too few, or the driver refuses one.
        """
        import pyopencl as cl

        words = [*(offset for _, offset in memory), *(_signed(value) for value in parameters)]
        wanted = self._integers.get(kernel.function_name, len(words))  # not all drivers look at the size of a struct
        for what, takes, count in (("arguments", kernel.num_args, len(memory) + 1), ("integers", wanted, len(words))):
            if takes != count:
                raise DeviceError(
                    f"OpenCL kernel {kernel.function_name} takes {takes} {what} and was given {count}; "
                    "compile the package again with this version"
                )
        try:
            for index, (buffer, _) in enumerate(memory):
                kernel.set_arg(index, buffer)
            kernel.set_arg(len(memory), np.array(words, np.int32))
        except cl.Error as error:
            raise self._failure(f"refused the arguments of kernel {kernel.function_name}", error) from error

    def buffer(self, size: int) -> pyopencl.Buffer:
        """Memory of the device alone, of `size` bytes; in huge pages where the device lives on the CPU and they can be had.

        Raises:
            DeviceError: there is not enough.
        """
        import pyopencl as cl

        if self._takes_pages:
            return self._allocate(cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR, 0, self._pages(size))
        return self._allocate(cl.mem_flags.READ_WRITE, size, None)

    def shared(self, sizes: Sequence[int]) -> list[SharedMemory]:
        """Memories of these sizes for host and device, zeroed.

        Raises:
            DeviceError: there is not enough memory.
        """
        if self.info.sharing is Sharing.COHERENT:
            return self._coherent(sizes)
        return [self._copied_or_mapped(size) for size in sizes]

    def _copied_or_mapped(self, size: int) -> SharedMemory:
        import pyopencl as cl

        sharing = Sharing.COPIED if self.info.sharing is Sharing.COPIED else Sharing.MAPPED
        host = self._pages(size)
        if sharing is Sharing.COPIED:
            return SharedMemory(host, self._allocate(cl.mem_flags.READ_WRITE, size, None), sharing)
        buffer = self._allocate(cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR, 0, host)
        return SharedMemory(host, buffer, sharing)

    def _coherent(self, sizes: Sequence[int]) -> list[SharedMemory]:
        """Parts of one allocation of fine-grained shared virtual memory, in huge pages where the device lives on the CPU."""
        import pyopencl as cl

        *begins, end = accumulate((-(-size // _PAGE) * _PAGE for size in sizes), initial=0)
        margin = HUGE_PAGE if self.info.on_cpu and end >= HUGE_PAGE else 0
        flags = cl.svm_mem_flags.READ_WRITE | cl.svm_mem_flags.SVM_FINE_GRAIN_BUFFER
        try:
            allocation = cl.SVMAllocation(self.context, end + margin, _SVM_ALIGNMENT, flags)
            buffer = allocation.as_buffer(self.context)
            first = -allocation.svm_ptr % HUGE_PAGE if margin else 0
            parts = [buffer.get_sub_region(first + begin, size) for begin, size in zip(begins, sizes, strict=True)]
        except cl.Error as error:
            raise self._failure(f"has no {end} bytes of memory", error) from error
        if margin:
            ask_for_huge_pages(allocation.svm_ptr, end + margin)
        hosts = [allocation.buf[first + begin :][:size] for begin, size in zip(begins, sizes, strict=True)]
        for host in hosts:
            host[:] = 0
        return [SharedMemory(host, part, Sharing.COHERENT, allocation) for host, part in zip(hosts, parts, strict=True)]

    def constant(self, values: np.ndarray) -> pyopencl.Buffer:
        """Memory of the device that holds a copy of `values`, to be read only; in huge pages as `buffer`.

        Raises:
            DeviceError: there is not enough memory.
        """
        import pyopencl as cl

        values = np.ascontiguousarray(values)
        if self._takes_pages:
            copy = self._pages(values.nbytes)
            copy[:] = values.reshape(-1).view(np.uint8)
            return self._allocate(cl.mem_flags.READ_ONLY | cl.mem_flags.USE_HOST_PTR, 0, copy)
        return self._allocate(cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR, 0, values)

    @property
    def _takes_pages(self) -> bool:
        """Whether the device works in memory of the host's making: weights that a CPU streams from huge pages come faster."""
        return self.info.on_cpu and self.info.unified

    def _pages(self, size: int) -> np.ndarray:
        try:
            return aligned_array(size)
        except (MemoryError, OSError, OverflowError) as error:
            raise self._failure(f"has no {size} bytes of memory", error) from error

    def _allocate(self, flags: int, size: int, host: np.ndarray | None) -> pyopencl.Buffer:
        import pyopencl as cl

        wanted = host.nbytes if host is not None else size
        try:
            return cl.Buffer(self.context, flags, size, hostbuf=host)
        except cl.Error as error:
            raise self._failure(f"has no {wanted} bytes of memory", error) from error

    def _failure(self, what: str, error: Exception) -> DeviceError:
        return DeviceError(f"OpenCL device {self.spec.index} ({self.info.name}) {what}: {_first_line(error)}")

    def _load(self, source: str, defines: Defines) -> pyopencl.Program:
        text = kernel_source(source) if self._sources is None else self._sources.get(source)
        if text is None:
            raise BuildError(f"the package holds no OpenCL source {source}; compile it again with this version")
        self._integers |= kernel_integers(text)
        options = [*_OPTIONS, *(f"-D{name}={value}" for name, value in defines)]
        if self.info.platform == drivers.POCL:
            # PoCL caches by itself, for each work group size too, which a binary from it does not hold.
            return self._build(source, text, options)
        identity = (text, *options, self.info.platform, self.info.name, self.info.driver)
        name = hashlib.sha256("\0".join(identity).encode()).hexdigest()
        path = cache_dir() / "opencl" / f"{name}.bin"
        return self._from_binary(path, options) or self._to_binary(path, self._build(source, text, options))

    def _build(self, source: str, text: str, options: list[str]) -> pyopencl.Program:
        import pyopencl as cl

        program = cl.Program(self.context, text)
        try:
            return drivers.build(program, options)
        except cl.Error as error:
            raise BuildError(
                f"OpenCL source {source} ({' '.join(options)}) does not compile on {self.info.name}: {_log_line(error)}"
            ) from error

    def _from_binary(self, path: Path, options: list[str]) -> pyopencl.Program | None:
        """The program of a cached binary; None if there is none, or it is damaged or of no use to the driver."""
        import pyopencl as cl

        stored = path.read_bytes() if path.exists() else b""
        digest, binary = stored[:_DIGEST], stored[_DIGEST:]
        if hashlib.sha256(binary).digest() != digest:  # drivers may crash on a damaged binary
            return None
        try:
            return drivers.build(cl.Program(self.context, [self.device], [binary]), options)
        except cl.Error:
            return None

    def _to_binary(self, path: Path, program: pyopencl.Program) -> pyopencl.Program:
        binary = bytes(program.binaries[0])
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(hashlib.sha256(binary).digest() + binary)
        return program


def _traits(info: DeviceInfo, threads: int) -> Traits:
    """The block is that of this machine's CPU engine, so that tensors cross processors unchanged."""
    isa = local_isa()
    if not info.on_cpu:
        return Traits(isa.block, False, info.compute_units, max(_GPU_FLOATS // isa.block, 4))
    # AVX-512 and NEON have 32 vector registers, older x86 16.
    wide = isa.block == 16 or isa.name.startswith("aarch64")
    return Traits(isa.block, True, threads, 32 if wide else 16)


def _signed(value: int) -> int:
    """The integer of the same 32 bits that has a sign."""
    return (value & 0xFFFFFFFF ^ 0x80000000) - 0x80000000


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def _log_line(error: Exception) -> str:
    """The first line of a build log that names an error, else the first line of the message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next(
        (line for line in lines if re.search(r"\berror\b:?", line, re.IGNORECASE) and "clBuild" not in line), lines[0]
    )
