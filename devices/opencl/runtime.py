"""Builds kernels of one OpenCL device and sets their arguments; the engine runs them."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from nnstretch.devices.base.routine import Launch
from nnstretch.devices.base.spec import ProcessorSpec, default_cores
from nnstretch.devices.engine.binding.execution import address_of
from nnstretch.devices.engine.binding.image import Sharing
from nnstretch.devices.engine.binding.program import HUGE_PAGE, aligned_array, ask_for_huge_pages
from nnstretch.devices.engine.build.instruction_sets import local_isa
from nnstretch.devices.opencl import drivers
from nnstretch.devices.opencl.crashes import compiling, name_driver
from nnstretch.devices.opencl.drivers import probe
from nnstretch.devices.opencl.images import Pixels, make_image
from nnstretch.devices.opencl.limits import group_excess, memory_shortage
from nnstretch.devices.opencl.program_cache import CachedProgram
from nnstretch.devices.opencl.properties import DeviceInfo
from nnstretch.devices.opencl.sources import kernel_files, kernel_integers, kernel_source, sources_hash
from nnstretch.devices.opencl.traits import traits_of
from nnstretch.errors import BuildError, DeviceError

if TYPE_CHECKING:
    import pyopencl

__all__ = ["DeviceInfo", "OpenCLRuntime", "kernel_files", "kernel_integers", "kernel_source", "probe", "sources_hash"]

_PAGE = 4096
_SVM_ALIGNMENT = 128  # bytes of the largest type; drivers may reject more
_INT32_MAX = (1 << 31) - 1
_NO_LOG = "<error retrieving log>"
"""What pyopencl has in the place of a log that the driver does not give."""
_OPTIONS: tuple[str, ...] = ("-cl-mad-enable", "-cl-no-signed-zeros")
_DOT_PRODUCTS = "__opencl_c_integer_dot_product_input_4x8bit_packed"
"""The feature of OpenCL C 3.0 that kernels with dot products of packed int8 ask for."""

Defines = Sequence[tuple[str, int]]
MemoryArgument = tuple["pyopencl.Buffer | pyopencl.Image | None", int]
"""A buffer, or an image made from one, and an offset into it in elements; (None, 0) for an absent operand."""


@dataclass(frozen=True)
class SharedMemory:
    """Memory shared by host and device during the lifetime of this object.

    Attributes:
        host: bytes, contiguous and at least 64-byte aligned.
        buffer: the same memory for kernels.
        sharing: how it is synchronised between host and device.
        allocation: owner of the memory if it is not `host`.
    """

    host: np.ndarray
    buffer: pyopencl.Buffer
    sharing: Sharing
    allocation: pyopencl.SVMAllocation | None = None


class OpenCLRuntime:
    """One device with a context, an in-order queue and its programs.

    A device on the CPU uses the cores of `spec`; a GPU ignores them. All runtimes of a process share the threads of a CPU
    driver (see `drivers`). With several runtimes on different cores, call `activate` before work is enqueued to one of them;
    concurrent runtimes share their cores.

    Attributes:
        spec: specification of the processor, with its cores.
        info: properties of the device.
        traits: properties that routines depend on.
        threads: CPU threads of the device; 0 if it is not on the CPU.
        device, context, queue: pyopencl's objects.
        largest_image: pixels up to which an image is made of a whole buffer; of parts beyond.
        trace_queue: another in-order queue, which records the times of commands; None unless `profile` asks for it.

    Args:
        spec: kind "opencl", the device's number and its cores (those of `default_cores` if empty).
        profile: whether there is a queue that records the times of commands, which slows them down.
        sources: texts of kernel files (as from `kernel_source`) that replace the installed ones.
        info: properties of the device; `drivers.probe_device` tests the device and reports them by default.

    Raises:
        DeviceError: there is no such device, it does not work, or it has no memory left.
    """

    def __init__(
        self,
        spec: ProcessorSpec,
        profile: bool = False,
        sources: Mapping[str, str] | None = None,
        info: DeviceInfo | None = None,
    ) -> None:
        drivers.import_pyopencl()
        import pyopencl as cl

        self.spec = spec
        self._cores = spec.cores or default_cores()
        self.device = drivers.find_device(spec.index, self._cores)
        self.info = info or drivers.probe_device(spec.index)
        if not self.info.usable:
            raise DeviceError(f"OpenCL device {spec.index} ({self.info.name}) does not work: {self.info.why_not}")
        self.threads = drivers.warn_if_short(self._cores) if self.info.on_cpu else 0
        self.traits = traits_of(self.info, self.threads, local_isa())
        self.largest_image = self.info.image_buffer
        self._sources = sources
        self._programs: dict[tuple[str, tuple[tuple[str, int], ...]], pyopencl.Program] = {}
        self._integers: dict[str, int] = {}  # kernel -> integers of its argument struct
        self._lock = threading.Lock()
        name_driver(self.info)
        try:
            self.context = cl.Context([self.device])
            self.queue = cl.CommandQueue(self.context)
            times = cl.command_queue_properties.PROFILING_ENABLE
            timed = profile and self.info.command_times
            self.trace_queue = cl.CommandQueue(self.context, properties=times) if timed else None
        except cl.Error as error:
            raise self._failure("gave no queue", error) from error
        self.activate()

    def activate(self, others: Sequence[OpenCLRuntime] = ()) -> None:
        """Binds the driver's threads to the cores of this runtime and of concurrent ones.

        Cheap if nothing changes; no effect for devices that are not on the CPU.
        """
        cores = {core for runtime in (self, *others) if runtime.info.on_cpu for core in runtime._cores}
        if cores:
            drivers.pin_workers(tuple(sorted(cores)))

    def program(self, source: str, defines: Defines) -> pyopencl.Program:
        """The program of kernel file `source` with macros `defines`, built once and cached on disk.

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
        """A new kernel object, whose arguments can be set once and kept.

        Raises:
            BuildError: the source does not compile or has no kernel `name`.
            DeviceError: the device cannot run the kernel in the launch's work groups.
        """
        import pyopencl as cl

        program = self.program(launch.source, launch.defines)
        try:
            kernel = cl.Kernel(program, name)
            excess = group_excess(kernel, self.device, launch.local_size)
        except cl.Error as error:
            raise BuildError(f"OpenCL source {launch.source} has no kernel {name!r} ({_first_line(error)})") from error
        if excess:
            raise DeviceError(f"OpenCL device {self.spec.index} ({self.info.name}) {excess}")
        return kernel

    def require_memory(self, sizes: Sequence[int], shared: Sequence[int] = ()) -> None:
        """Checks that the device may hold buffers, all at the same time, before any is allocated.

        Args:
            sizes: bytes of the buffers that only the device uses.
            shared: bytes of those shared with the host, which are parts of one allocation where it is coherent.

        Raises:
            DeviceError: one is larger than any buffer of the device, or they are more than its addresses reach.
        """
        if shared and self.info.sharing is Sharing.COHERENT:
            *_, end = _page_offsets(shared)
            shared = [end + self._coherent_margin(end)]
        if shortage := memory_shortage(self.info, [*sizes, *shared]):
            raise DeviceError(f"OpenCL device {self.spec.index} ({self.info.name}) {shortage}")

    def has_source(self, name: str) -> bool:
        """Whether kernels of a file can be built here."""
        return self._sources is None or name in self._sources

    def set_arguments(
        self, kernel: pyopencl.Kernel, memory: Sequence[MemoryArgument], parameters: Sequence[int]
    ) -> None:
        """Sets all arguments: read buffers, written buffers, and one struct of 32-bit integers by value.

        The struct holds the offset of every buffer in elements, in the same order, then the parameters. It is a single
        argument because drivers process every argument at every enqueue.

        Args:
            kernel: a kernel of this runtime.
            memory: one entry per read, then one per write.
            parameters: 32-bit integers, signed or unsigned.

        Raises:
            DeviceError: the number of arguments is wrong, an integer has more than 32 bits, or the driver rejects an argument.
        """
        import pyopencl as cl

        offsets = [offset for _, offset in memory]
        wide = [n for n in offsets if not 0 <= n <= _INT32_MAX] + [n for n in parameters if not _has_32_bits(n)]
        if wide:
            raise DeviceError(
                f"OpenCL kernel {kernel.function_name} was given the number {wide[0]} and counts in 32 bits; "
                "compute the layer on the CPU, or use a smaller input or batch"
            )
        words = [*offsets, *(_signed(value) for value in parameters)]
        wanted = self._integers.get(kernel.function_name, len(words))  # not all drivers check the size of a struct
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

    def memory_arguments(
        self, launch: Launch, operands: Sequence[tuple[pyopencl.Buffer, int, int] | None], kept: list[object]
    ) -> list[MemoryArgument]:
        """The arguments of a kernel for operands in buffers: buffers, or images where the kernel reads these.

        Args:
            launch: of the kernel.
            operands: buffer, first byte and number of bytes of each, reads first; None for an absent one.
            kept: gets images and what they are made from, which kernels do not keep.

        Raises:
            DeviceError: the device makes no such image.
        """
        import pyopencl as cl

        offsets = launch.offsets([0 if one is None else one[1] for one in operands])
        found: list[MemoryArgument] = []
        for index, (operand, offset) in enumerate(zip(operands, offsets, strict=True)):
            if operand is not None and launch.images >> index & 1:
                pixels = Pixels(*operand, launch.item_bytes[index])
                try:
                    image, offset, held = make_image(self.context, pixels, self.largest_image)
                except cl.Error as error:
                    raise self._failure(f"makes no image of {pixels.size} bytes of a buffer", error) from error
                kept += [held, image]
                found.append((image, offset))
            else:
                found.append((None if operand is None else operand[0], offset))
        return found

    def buffer(self, size: int) -> pyopencl.Buffer:
        """Allocates `size` bytes of device memory; in huge pages, if available, for a device on the CPU.

        Raises:
            DeviceError: there is not enough memory.
        """
        import pyopencl as cl

        if self._takes_pages:
            return self._allocate(cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR, 0, self._pages(size))
        return self._allocate(cl.mem_flags.READ_WRITE, size, None)

    def shared(self, sizes: Sequence[int]) -> list[SharedMemory]:
        """Allocates zeroed memories shared by host and device, of `sizes` in bytes.

        Raises:
            DeviceError: there is not enough memory.
        """
        if self.info.sharing is Sharing.COHERENT:
            return self._coherent(sizes)
        return [self._copied_or_mapped(size) for size in sizes]

    def _copied_or_mapped(self, size: int) -> SharedMemory:
        import pyopencl as cl

        if self.info.sharing is Sharing.COPIED:
            buffer = self._allocate(cl.mem_flags.READ_WRITE, size, None)
            return SharedMemory(self._pinned(size), buffer, Sharing.COPIED)
        if not self.info.on_cpu and (made := self._zero_copy(size)):
            return made
        host = self._pages(size)
        buffer = self._allocate(cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR, 0, host)
        return SharedMemory(host, buffer, Sharing.MAPPED)

    def _zero_copy(self, size: int) -> SharedMemory | None:
        """Memory that the driver of a GPU allocates where host and device can use it; such drivers may copy the host's.

        The engine's regions stay at one address, so None if the driver maps the memory twice at different ones, or not at all.
        """
        import pyopencl as cl

        try:
            buffer = cl.Buffer(self.context, cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR, size)
            address = self._mapped_at(buffer)
            if self._mapped_at(buffer) != address:
                return None
        except cl.Error:
            return None
        host = np.frombuffer(memoryview((ctypes.c_uint8 * size).from_address(address)), np.uint8)
        return SharedMemory(host, buffer, Sharing.MAPPED)

    def _mapped_at(self, buffer: pyopencl.Buffer) -> int:
        """The address at which the host sees a buffer, which is zeroed there."""
        import pyopencl as cl

        host, _ = cl.enqueue_map_buffer(self.queue, buffer, _read_write(), 0, (buffer.size,), np.dtype(np.uint8))
        host[:] = 0
        address = address_of(host)
        host.base.release(self.queue)
        self.queue.finish()
        return address

    def _pinned(self, size: int) -> np.ndarray:
        """Zeroed host memory that the driver allocates where the device can copy it by itself; pages if there is none.

        A driver first copies other memory to its own, which takes several times as long. The memory stays mapped.
        """
        import pyopencl as cl

        try:
            buffer = cl.Buffer(self.context, cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR, size)
            mapped = cl.enqueue_map_buffer(self.queue, buffer, _read_write(), 0, (size,), np.dtype(np.uint8))
        except cl.Error:
            return self._pages(size)
        host = np.asarray(mapped[0])
        host[:] = 0
        return host

    def _coherent(self, sizes: Sequence[int]) -> list[SharedMemory]:
        """Parts of one allocation of fine-grained shared virtual memory, in huge pages for a device on the CPU."""
        import pyopencl as cl

        *begins, end = _page_offsets(sizes)
        margin = self._coherent_margin(end)
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

    def _coherent_margin(self, size: int) -> int:
        """Bytes beyond those of coherent memory, so that it may begin at a huge page."""
        return HUGE_PAGE if self.info.on_cpu and size >= HUGE_PAGE else 0

    def constant(self, values: np.ndarray) -> pyopencl.Buffer:
        """Copies `values` to read-only device memory, allocated like `buffer`.

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
        """Whether the device can use memory allocated by the host; a CPU streams weights faster from huge pages."""
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
        options = [f"-cl-std={self._standard(text)}", *_OPTIONS, *(f"-D{name}={value}" for name, value in defines)]
        program = CachedProgram((text, *options, self.info.platform, self.info.name, self.info.driver))
        # PoCL's own cache also covers work group sizes, which its binaries do not.
        if self.info.platform == drivers.POCL:
            return self._build(source, text, options)
        return self._from_binary(source, program, options) or self._to_binary(source, text, options, program)

    def _standard(self, text: str) -> str:
        """The version of OpenCL C for a source: 3.0 for dot products of packed int8 on devices that have them."""
        has_dot_products = self.device.version >= "OpenCL 3" and "cl_khr_integer_dot_product" in self.device.extensions
        return "CL3.0" if has_dot_products and _DOT_PRODUCTS in text else "CL1.2"

    def _build(self, source: str, text: str, options: list[str]) -> pyopencl.Program:
        import pyopencl as cl

        program = cl.Program(self.context, text)
        try:
            with compiling(self.info, source):
                return drivers.build(program, options)
        except cl.Error as error:
            raise BuildError(
                f"OpenCL source {source} ({' '.join(options)}) does not compile on {self.info.name}: {_log_line(error)}"
            ) from error

    def _from_binary(self, source: str, known: CachedProgram, options: list[str]) -> pyopencl.Program | None:
        """The program of a cached binary; None if it is missing or damaged, or the driver rejects it."""
        import pyopencl as cl

        if not (binary := known.binary):
            return None
        try:
            with compiling(self.info, source):
                return drivers.build(cl.Program(self.context, [self.device], [binary]), options)
        except cl.Error:
            return None

    def _to_binary(self, source: str, text: str, options: list[str], known: CachedProgram) -> pyopencl.Program:
        program = self._build(source, text, options)
        known.keep_binary(bytes(program.binaries[0]))
        return program


def _read_write() -> Any:
    """Flags of a mapping."""
    import pyopencl as cl

    return cl.map_flags.READ | cl.map_flags.WRITE


def _page_offsets(sizes: Sequence[int]) -> Iterator[int]:
    """Where parts of one allocation begin, each in pages of its own, and where the last one ends."""
    return accumulate((-(-size // _PAGE) * _PAGE for size in sizes), initial=0)


def _has_32_bits(value: int) -> bool:
    """Whether a signed or an unsigned 32-bit integer holds `value`."""
    return -_INT32_MAX - 1 <= value <= 2 * _INT32_MAX + 1


def _signed(value: int) -> int:
    """The signed integer with the same 32 bits as `value`, which has no more."""
    return (value & 0xFFFFFFFF ^ 0x80000000) - 0x80000000


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def _log_line(error: Exception) -> str:
    """The first line of a build log that names an error, else the first line of the message, as without a log."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and line.strip() != _NO_LOG]
    return next(
        (line for line in lines if re.search(r"\berror\b:?", line, re.IGNORECASE) and "clBuild" not in line), lines[0]
    )
