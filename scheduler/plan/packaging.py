"""Packages of compiled plans; equal constants of several plans are stored once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nnstretch.devices.engine.binding.program import aligned_array
from nnstretch.devices.opencl.sources import check_installed
from nnstretch.devices.registry import library_of_processor, loaded_library
from nnstretch.errors import PackageError, UsageError
from nnstretch.package import Package, PackagedPlan, read_package
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.plan.schema import Plan, PlanBuffer, aligned
from nnstretch.scheduler.plan.tuned_on import metadata_of_plan


def packaged(plans: Mapping[str, Compiled], sources: Mapping[str, str], metadata: Mapping[str, Any]) -> Package:
    """A package of plans.

    Args:
        plans: name -> plan; the first is the default.
        sources: kernel sources of all plans.
        metadata: JSON-serialisable; takes precedence over the metadata that the first plan was read with.

    Raises:
        UsageError: the metadata cannot be written as JSON.
    """
    check_metadata(metadata)
    stored = dict(zip(plans, with_shared_constants(list(plans.values())), strict=True))
    first = next(iter(stored.values()))
    return Package(
        {name: PackagedPlan(one.plan.to_json(indent=None), one.models) for name, one in stored.items()},
        first.constants,
        sources,
        {**metadata_of_plan(first.plan), **first.metadata, **metadata},
        first.kept_model,
    )


def check_metadata(metadata: Mapping[str, Any]) -> None:
    """Checks metadata that a caller gives.

    Raises:
        UsageError: they cannot be written as JSON.
    """
    try:
        json.dumps(dict(metadata))
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"metadata cannot be written as JSON ({error}); give a dictionary of plain values") from error


def unpackaged(package: Package) -> dict[str, Compiled]:
    """The plans of a package by name.

    Raises:
        PackageError: a plan is damaged, or its inputs or outputs differ from those of the first one.
    """
    plans = {
        name: Compiled(
            Plan.from_json(packed.plan),
            package.constants,
            dict(packed.models),
            metadata=package.metadata,
            kept_model=package.model,
        )
        for name, packed in package.plans.items()
    }
    check_alike(plans)
    return plans


def check_trusted(package: Package, path: str | Path) -> None:
    """Checks that a package brings and names no programs but installed ones: OpenCL sources, and libraries of delegates.

    Args:
        package: the package.
        path: its file, for the message.

    Raises:
        PackageError: it does.
    """
    check_installed(package.sources, path)
    for packed in package.plans.values():
        for step in Plan.from_json(packed.plan).steps:
            if step.kind == "call" and (library := loaded_library(step.routine)):
                raise PackageError(_loads(path, library))


def check_no_libraries(processors: str, path: str | Path) -> None:
    """Checks that processors which a package names have no library loaded.

    Args:
        processors: separated by commas.
        path: its file, for the message.

    Raises:
        PackageError: one has.
    """
    for text in processors.split(","):
        if library := library_of_processor(text.strip()):
            raise PackageError(_loads(path, library))


def _loads(path: str | Path, library: str) -> str:
    return (
        f"{path} loads the library {library}; leave trusted sources out if you trust the package's author and that file"
    )


def processors_of_package(path: Path) -> str:
    """The processors of every plan of a package, as in `cpu:0 or cpu:0,opencl:0@1`.

    Raises:
        FileError, PackageError: it cannot be read.
    """
    plans = (Plan.from_json(one.plan) for one in read_package(path).plans.values())
    return " or ".join(dict.fromkeys(",".join(plan.processors) for plan in plans))


def check_alike(plans: Mapping[str, Compiled]) -> None:
    """Checks that plans have the same inputs and outputs.

    Raises:
        PackageError: they differ.
    """
    name, first = next(iter(plans.items()))
    for other, compiled in plans.items():
        if (compiled.plan.inputs, compiled.plan.outputs) != (first.plan.inputs, first.plan.outputs):
            raise PackageError(
                f"plans {name} and {other} have other inputs or outputs; compile the model again for both"
            )


def with_shared_constants(plans: Sequence[Compiled]) -> list[Compiled]:
    """The plans with their constants in one array of bytes, equal constants of host queues stored once.

    The constants of a device stay together, because the device gets a copy of the range; they are shared as a whole.
    """
    arrays = {id(plan.constants) for plan in plans}
    if len(arrays) == 1:
        return list(plans)
    blob = _Blob()
    for plan in plans:
        for domain, (start, size) in plan.plan.constant_ranges.items():
            if domain:
                place = blob.add(plan.constants[start : start + size])
                for buffer in _buffers(plan.plan, domain):
                    blob.add_alias(
                        plan.constants[start:][buffer.offset : buffer.offset + buffer.bytes], place + buffer.offset
                    )
    for plan in plans:
        start, _ = plan.plan.constant_ranges.get(0, (0, 0))
        for buffer in _buffers(plan.plan, 0):
            blob.add(plan.constants[start:][buffer.offset : buffer.offset + buffer.bytes])
    constants = blob.packed()
    return [replace(plan, plan=_moved(plan, blob, constants.nbytes), weights=constants) for plan in plans]


class _Blob:
    """Places pieces of bytes in one array, equal pieces once."""

    def __init__(self) -> None:
        self._pieces: list[tuple[int, np.ndarray]] = []
        self._places: dict[tuple[int, bytes], int] = {}
        self._end = 0

    def add(self, piece: np.ndarray) -> int:
        """The offset of a piece; a new one if no equal piece was added."""
        key = _key(piece)
        if key not in self._places:
            start = aligned(self._end)
            self._pieces.append((start, piece))
            self._places[key] = start
            self._end = start + piece.nbytes
        return self._places[key]

    def add_alias(self, piece: np.ndarray, place: int) -> None:
        """Registers a piece that is part of another one."""
        self._places.setdefault(_key(piece), place)

    def place(self, piece: np.ndarray) -> int:
        """The offset of a piece that was added."""
        return self._places[_key(piece)]

    def packed(self) -> np.ndarray:
        """All pieces, uint8."""
        memory = aligned_array(self._end)
        for start, piece in self._pieces:
            memory[start : start + piece.nbytes] = piece
        return memory


def _key(piece: np.ndarray) -> tuple[int, bytes]:
    return piece.nbytes, hashlib.sha256(piece.data).digest()


def _buffers(plan: Plan, domain: int) -> Iterable[PlanBuffer]:
    """The constants of a memory domain."""
    return (b for b in plan.buffers if b.memory == "constant" and b.index == domain)


def _moved(compiled: Compiled, blob: _Blob, size: int) -> Plan:
    """A plan with the constants' offsets in the blob; host queues may read all of it."""
    plan, constants = compiled.plan, compiled.constants
    ranges = {d: (blob.place(constants[o : o + n]), n) for d, (o, n) in plan.constant_ranges.items() if d}
    host, _ = plan.constant_ranges.get(0, (0, 0))
    if 0 in plan.constant_ranges:
        ranges[0] = (0, size)
    buffers = tuple(
        replace(b, offset=blob.place(constants[host:][b.offset : b.offset + b.bytes]))
        if b.memory == "constant" and b.index == 0
        else b
        for b in plan.buffers
    )
    return replace(plan, buffers=buffers, constant_ranges=ranges)
