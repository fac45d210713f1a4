"""Opens one OpenCL device and prepares kernels and their arguments for it; the engine runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from nnstretch.devices.base.routine import Launch
from nnstretch.devices.base.spec import ProcessorSpec, default_cores
from nnstretch.devices.engine.build.instruction_sets import local_isa
from nnstretch.devices.opencl import drivers
from nnstretch.devices.opencl.crashes import name_driver
from nnstretch.devices.opencl.failures import device_text, failure, first_line
from nnstretch.devices.opencl.images import Pixels, make_image
from nnstretch.devices.opencl.limits import group_excess
from nnstretch.devices.opencl.memory import DeviceMemory
from nnstretch.devices.opencl.programs import Programs
from nnstretch.devices.opencl.properties import DeviceInfo
from nnstretch.devices.opencl.traits import traits_of
from nnstretch.errors import BuildError, DeviceError

if TYPE_CHECKING:
    import pyopencl

_INT32_MAX = (1 << 31) - 1

MemoryArgument = tuple["pyopencl.Buffer | pyopencl.Image | None", int]
"""A buffer, or an image made from one, and an offset into it in elements; (None, 0) for an absent operand."""


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
        memory: allocates memory of the device.
        programs: built for the device.
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
        self._named = device_text(spec.index, self.info)
        if not self.info.usable:
            raise DeviceError(f"{self._named} does not work: {self.info.why_not}")
        self.threads = drivers.warn_if_short(self._cores) if self.info.on_cpu else 0
        self.traits = traits_of(self.info, self.threads, local_isa())
        self.largest_image = self.info.image_buffer
        name_driver(self.info)
        try:
            self.context = cl.Context([self.device])
            self.queue = cl.CommandQueue(self.context)
            times = cl.command_queue_properties.PROFILING_ENABLE
            timed = profile and self.info.command_times
            self.trace_queue = cl.CommandQueue(self.context, properties=times) if timed else None
        except cl.Error as error:
            raise failure(self._named, "gave no queue", error) from error
        self.memory = DeviceMemory(self._named, self.info, self.context, self.queue)
        self.programs = Programs(self.device, self.info, self.context, sources)
        self.activate()

    def activate(self, others: Sequence[OpenCLRuntime] = ()) -> None:
        """Binds the driver's threads to the cores of this runtime and of concurrent ones.

        Cheap if nothing changes; no effect for devices that are not on the CPU.
        """
        cores = {core for runtime in (self, *others) if runtime.info.on_cpu for core in runtime._cores}
        if cores:
            drivers.pin_workers(tuple(sorted(cores)))

    def kernel(self, launch: Launch, name: str) -> pyopencl.Kernel:
        """A new kernel object, whose arguments can be set once and kept.

        Raises:
            BuildError: the source does not compile or has no kernel `name`.
            DeviceError: the device cannot run the kernel in the launch's work groups.
        """
        import pyopencl as cl

        program = self.programs.program(launch.source, launch.defines)
        try:
            kernel = cl.Kernel(program, name)
            excess = group_excess(kernel, self.device, launch.local_size)
        except cl.Error as error:
            raise BuildError(f"OpenCL source {launch.source} has no kernel {name!r} ({first_line(error)})") from error
        if excess:
            raise DeviceError(f"{self._named} {excess}")
        return kernel

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
        # Not all drivers check the size of a struct.
        wanted = self.programs.integers.get(kernel.function_name, len(words))
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
            raise failure(self._named, f"refused the arguments of kernel {kernel.function_name}", error) from error

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
                    raise failure(self._named, f"makes no image of {pixels.size} bytes of a buffer", error) from error
                kept += [held, image]
                found.append((image, offset))
            else:
                found.append((None if operand is None else operand[0], offset))
        return found


def _has_32_bits(value: int) -> bool:
    """Whether a signed or an unsigned 32-bit integer holds `value`."""
    return -_INT32_MAX - 1 <= value <= 2 * _INT32_MAX + 1


def _signed(value: int) -> int:
    """The signed integer with the same 32 bits as `value`, which has no more."""
    return (value & 0xFFFFFFFF ^ 0x80000000) - 0x80000000
