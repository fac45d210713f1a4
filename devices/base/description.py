"""Descriptions of processors: the data that determines the routines of a processor on another machine.

They are stored with measurements, so that latencies of other machines can be predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from nnstretch.devices.base.routine import BLOCKS
from nnstretch.devices.base.spec import ProcessorSpec

_LONGEST_TEXT = 1 << 12
_LONGEST_NAME = 1 << 6
_MOST = 1 << 30
_LEAST_REGISTERS = {True: 16, False: 4}  # of OpenCL devices: on the CPU -> minimum


@dataclass(frozen=True)
class Description:
    """A processor as data.

    Attributes:
        fingerprint: key of its measurements.
        name: its specification on the machine where it was measured.
        kind: "cpu" or "opencl".
        device: name from the system or the driver.
        block: floats per vector.
        index: number of an OpenCL device.
        cores: cores in use by a CPU, or by an OpenCL device on the CPU.
        ratios: relative speeds of a CPU's cores.
        isa: instruction set of a CPU; empty for other processors.
        compute_units: of an OpenCL device (`Traits`); 0 for a CPU.
        registers: of an OpenCL device (`Traits`); 0 for a CPU.
        caches: sizes of the largest private and the largest shared cache in bytes; empty if unknown.
        local_memory: of an OpenCL device (`Traits`).
        group_items: of an OpenCL device (`Traits`).
        wave: of an OpenCL device (`Traits`).
        item_registers: of an OpenCL device (`Traits`).
        image_buffer: of an OpenCL device (`Traits`).
        features: of a CPU, as /proc/cpuinfo names them; empty if unknown.
    """

    fingerprint: str
    name: str
    kind: str
    device: str
    block: int
    index: int = 0
    cores: tuple[int, ...] = ()
    ratios: tuple[int, ...] = ()
    isa: str = ""
    compute_units: int = 0
    registers: int = 0
    caches: tuple[int, ...] = ()
    local_memory: int = 0
    group_items: int = 0
    features: tuple[str, ...] = ()
    wave: int = 0
    item_registers: int = 0
    image_buffer: int = 0

    @property
    def spec(self) -> ProcessorSpec:
        """Specification of the processor."""
        return ProcessorSpec(self.kind, self.index, self.cores, self.ratios)

    def to_json(self) -> dict[str, Any]:
        """The description as JSON values; `description_of` reads them back."""
        return asdict(self)


def description_of(raw: object) -> Description:
    """Reads a description and checks every field.

    Raises:
        ValueError: a field is missing or invalid; the message names it.
    """
    if not isinstance(raw, Mapping):
        raise ValueError("a processor is not an object")
    readers: Mapping[str, Callable[[Mapping[str, Any], str], Any]]
    readers = {"str": _text, "int": _number, "tuple[int, ...]": _numbers, "tuple[str, ...]": _names}
    made = Description(**{field.name: readers[str(field.type)](raw, field.name) for field in fields(Description)})
    if made.kind not in ("cpu", "opencl"):
        raise ValueError(f"kind is {made.kind!r}; it is cpu or opencl")
    if made.block not in BLOCKS:
        raise ValueError(f"block is {made.block}; it is 4, 8 or 16")
    least = _LEAST_REGISTERS[bool(made.cores)]
    if made.kind == "opencl" and (made.compute_units < 1 or made.registers < least):
        raise ValueError(
            f"compute_units and registers are {made.compute_units} and {made.registers}; the minimum for this device is 1 and "
            f"{least}"
        )
    if made.wave & (made.wave - 1):
        raise ValueError(f"wave is {made.wave}; it is a power of 2, or 0")
    if len(made.caches) not in (0, 2):
        raise ValueError("caches are not two sizes in bytes")
    return made


def _text(raw: Mapping[str, Any], name: str) -> str:
    value = raw.get(name, "")
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT or (not value and name != "isa"):
        raise ValueError(f"{name} is {str(value)[:40]!r}; it is a text of fewer than {_LONGEST_TEXT} characters")
    return value


def _number(raw: Mapping[str, Any], name: str) -> int:
    value = raw.get(name, 0)
    if type(value) is not int or not 0 <= value <= _MOST:
        raise ValueError(f"{name} is {str(value)[:40]!r}; it is a number up to {_MOST}")
    return value


def _names(raw: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = raw.get(name, [])
    if not isinstance(value, list | tuple) or any(not isinstance(v, str) or len(v) > _LONGEST_NAME for v in value):
        raise ValueError(f"{name} is not a list of names")
    return tuple(value)


def _numbers(raw: Mapping[str, Any], name: str) -> tuple[int, ...]:
    value = raw.get(name, [])
    if not isinstance(value, list | tuple) or len(value) > _MOST or any(type(v) is not int or v < 0 for v in value):
        raise ValueError(f"{name} is not a list of numbers")
    return tuple(value)
