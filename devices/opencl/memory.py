"""Memory of one OpenCL device: its own, and what it shares with the host."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from nnstretch.devices.engine.binding.execution import address_of
from nnstretch.devices.engine.binding.image import Sharing
from nnstretch.devices.engine.binding.program import HUGE_PAGE, aligned_array, ask_for_huge_pages
from nnstretch.devices.opencl.failures import failure
from nnstretch.devices.opencl.limits import memory_shortage
from nnstretch.devices.opencl.properties import DeviceInfo
from nnstretch.errors import DeviceError

if TYPE_CHECKING:
    import pyopencl

_PAGE = 4096
_SVM_ALIGNMENT = 128  # bytes of the largest type; drivers may reject more


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


class DeviceMemory:
    """Allocates memory for kernels of one device.

    Attributes:
        info: properties of the device, which decide how memory is shared.

    Args:
        device: as messages name it.
        info: its properties.
        context: of the buffers.
        queue: that maps buffers.
    """

    def __init__(self, device: str, info: DeviceInfo, context: pyopencl.Context, queue: pyopencl.CommandQueue) -> None:
        self.info = info
        self._device, self._context, self._queue = device, context, queue

    def require(self, sizes: Sequence[int], shared: Sequence[int] = ()) -> None:
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
            raise DeviceError(f"{self._device} {shortage}")

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
            buffer = cl.Buffer(self._context, cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR, size)
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

        host, _ = cl.enqueue_map_buffer(self._queue, buffer, _read_write(), 0, (buffer.size,), np.dtype(np.uint8))
        host[:] = 0
        address = address_of(host)
        host.base.release(self._queue)
        self._queue.finish()
        return address

    def _pinned(self, size: int) -> np.ndarray:
        """Zeroed host memory that the driver allocates where the device can copy it by itself; pages if there is none.

        A driver first copies other memory to its own, which takes several times as long. The memory stays mapped.
        """
        import pyopencl as cl

        try:
            buffer = cl.Buffer(self._context, cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR, size)
            mapped = cl.enqueue_map_buffer(self._queue, buffer, _read_write(), 0, (size,), np.dtype(np.uint8))
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
            allocation = cl.SVMAllocation(self._context, end + margin, _SVM_ALIGNMENT, flags)
            buffer = allocation.as_buffer(self._context)
            first = -allocation.svm_ptr % HUGE_PAGE if margin else 0
            parts = [buffer.get_sub_region(first + begin, size) for begin, size in zip(begins, sizes, strict=True)]
        except cl.Error as error:
            raise failure(self._device, f"has no {end} bytes of memory", error) from error
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
            raise failure(self._device, f"has no {size} bytes of memory", error) from error

    def _allocate(self, flags: int, size: int, host: np.ndarray | None) -> pyopencl.Buffer:
        import pyopencl as cl

        wanted = host.nbytes if host is not None else size
        try:
            return cl.Buffer(self._context, flags, size, hostbuf=host)
        except cl.Error as error:
            raise failure(self._device, f"has no {wanted} bytes of memory", error) from error


def _read_write() -> Any:
    """Flags of a mapping."""
    import pyopencl as cl

    return cl.map_flags.READ | cl.map_flags.WRITE


def _page_offsets(sizes: Sequence[int]) -> Iterator[int]:
    """Where parts of one allocation begin, each in pages of its own, and where the last one ends."""
    return accumulate((-(-size // _PAGE) * _PAGE for size in sizes), initial=0)
