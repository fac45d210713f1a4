"""Descriptions of processors: what must be known of one that is not here to tell which routines it has.

They travel with measurements, so that latencies can be predicted for processors of another machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from nnstretch.devices.base.spec import ProcessorSpec

_LONGEST_TEXT = 1 << 12
_MOST = 1 << 16
_LEAST_REGISTERS = {True: 16, False: 4}  # of OpenCL devices that live on the CPU, and of others


@dataclass(frozen=True)
class Description:
    """A processor as data.

    Attributes:
        fingerprint: what its measurements are kept by.
        name: as it was written where it was measured.
        kind: "cpu" or "opencl".
        device: what the system or the driver calls it.
        index: an OpenCL device's number.
        cores: that it uses, if it is a CPU or lives on one.
        ratios: relative speeds of a CPU's cores.
        block: floats per vector.
        isa: name of a CPU's instruction set; empty for other processors.
        compute_units, registers: of an OpenCL device (`Traits`); 0 for a CPU.
        caches: bytes of the machine's largest cache that a core has to itself, and of the largest that cores share; empty:
            unknown.
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

    @property
    def spec(self) -> ProcessorSpec:
        """The processor as written."""
        return ProcessorSpec(self.kind, self.index, self.cores, self.ratios)

    def to_json(self) -> dict[str, Any]:
        """The description as JSON values; `description_of` reads them back."""
        return asdict(self)


def description_of(raw: object) -> Description:
    """A description from what a file says, every field checked.

    Raises:
        ValueError: a field is missing or none that a processor can have; says which.
    """
    if not isinstance(raw, Mapping):
        raise ValueError("a processor is no object")
    kind, block = _text(raw, "kind"), _number(raw, "block")
    if kind not in ("cpu", "opencl"):
        raise ValueError(f"kind is {kind!r}; it is cpu or opencl")
    if block not in (4, 8, 16):
        raise ValueError(f"block is {block}; it is 4, 8 or 16")
    cores, units, registers = _numbers(raw, "cores"), _number(raw, "compute_units"), _number(raw, "registers")
    if kind == "opencl" and (units < 1 or registers < _LEAST_REGISTERS[bool(cores)]):
        raise ValueError(
            f"compute_units and registers are {units} and {registers}; of such a device they are at least 1 and "
            f"{_LEAST_REGISTERS[bool(cores)]}"
        )
    return Description(
        _text(raw, "fingerprint"),
        _text(raw, "name"),
        kind,
        _text(raw, "device"),
        block,
        _number(raw, "index"),
        cores,
        _numbers(raw, "ratios"),
        _text(raw, "isa"),
        units,
        registers,
        _caches(raw),
    )


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


def _caches(raw: Mapping[str, Any]) -> tuple[int, ...]:
    caches = _numbers(raw, "caches")
    if len(caches) not in (0, 2):
        raise ValueError("caches are no two numbers of bytes")
    return caches


def _numbers(raw: Mapping[str, Any], name: str) -> tuple[int, ...]:
    value = raw.get(name, [])
    if not isinstance(value, list | tuple) or len(value) > _MOST or any(type(v) is not int or v < 0 for v in value):
        raise ValueError(f"{name} is no list of numbers")
    return tuple(value)
