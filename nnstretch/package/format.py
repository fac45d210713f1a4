"""The package file: a ZIP archive with uncompressed entries, so that weights can be mapped from it.

    nnstretch.json      format version, entries with sizes and SHA-256, free-form metadata
    plan.json           the plan (nnstretch.scheduler.plan.schema)
    constants.bin       prepared weights; starts at a multiple of 4096 bytes
    opencl/NAME.cl      sources of the OpenCL kernels that the plan launches
    onnx/N.onnx         models that ONNX Runtime runs; N is the index of the model's name in "models"
    tflite/N.tflite     models that LiteRT runs, likewise
    model.onnx          the network that the plan was made from, if it was to be kept

This is format 1, for packages with one plan. Format 2 holds several plans as `plans/N.json`. Its "plans" in
`nnstretch.json` maps each plan's name to its entry and to the entries of its models. Equal models are one
entry; all plans share constants and sources.

Reading a package executes, unpickles and decompresses nothing, and compares each size with the file's size
first. Running a package compiles and runs its OpenCL sources, whose memory accesses cannot be validated: they
are programs, not data.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nnstretch.errors import FileError, PackageError
from nnstretch.support.foreign_files import instead_of
from nnstretch.support.json_text import DAMAGED
from nnstretch.support.settings import atomic_write

FORMAT_VERSION = 2
_ONLY_PLAN = "plan"  # the name of the plan in a package of format 1
_MANIFEST = "nnstretch.json"
_KEPT_MODEL = "model.onnx"
_PAGE = 4096
_TFLITE = b"TFL3"  # bytes 4 to 7 of such a file
_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
# What reading a damaged package raises; RuntimeError if it says that it needs a later version of ZIP.
_DAMAGED = (*DAMAGED, RuntimeError, struct.error, zipfile.BadZipFile)


@dataclass(frozen=True)
class PackagedPlan:
    """One plan of a package.

    Attributes:
        plan: its JSON text.
        models: name in the plan's steps -> the model, ONNX or TFLite.
    """

    plan: str
    models: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Package:
    """The contents of a package.

    Attributes:
        plans: name -> plan, at least one. All compute the same function. The first one is the default.
        constants: bytes of the prepared weights; read-only and mapped from the file when read from one.
        sources: OpenCL source name -> text.
        metadata: free-form JSON object (model name, MACs, how it was tuned).
        model: the ONNX file that the plans were made from, from which they can be made again; empty if it was not kept.
    """

    plans: Mapping[str, PackagedPlan]
    constants: np.ndarray
    sources: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    model: bytes | memoryview = b""

    @property
    def first(self) -> PackagedPlan:
        """The default plan."""
        return next(iter(self.plans.values()))


def is_package(path: Path) -> bool:
    """Whether the file at `path` has the signature of a package, and no ending of other ZIP archives."""
    try:
        with path.open("rb") as file:
            return file.read(4) == b"PK\x03\x04" and not instead_of(path)
    except OSError:
        return False


def write_package(package: Package, path: Path) -> None:
    """Writes `package` to `path`. The file appears complete or not at all.

    Raises:
        FileError: the place is not writable or the disk is full.
    """
    plans, described = _one_plan(package.first) if len(package.plans) == 1 else _several_plans(package.plans)
    entries: dict[str, bytes | memoryview] = {
        **plans,
        "constants.bin": np.ascontiguousarray(package.constants).data,
        **{f"opencl/{name}.cl": text.encode() for name, text in package.sources.items()},
        **({_KEPT_MODEL: package.model} if package.model else {}),
    }
    manifest = {
        **described,
        "entries": {n: {"bytes": len(d), "sha256": hashlib.sha256(d).hexdigest()} for n, d in entries.items()},
        "metadata": dict(package.metadata),
    }
    with atomic_write(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(_entry(_MANIFEST), json.dumps(manifest, indent=1))
        for name, data in entries.items():
            info = _entry(name)
            if name == "constants.bin":
                info.extra = _padding(file.tell() + _LOCAL_HEADER.size + len(name))
            archive.writestr(info, data)


def _one_plan(packed: PackagedPlan) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Entries of format 1, and their description in the manifest."""
    entries = {"plan.json": packed.plan.encode()}
    entries |= {_model_entry(i, model): model for i, model in enumerate(packed.models.values())}
    return entries, {"format": 1, "models": list(packed.models)}


def _several_plans(plans: Mapping[str, PackagedPlan]) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Entries of format 2, and their description in the manifest."""
    models = dict.fromkeys(model for packed in plans.values() for model in packed.models.values())
    places = {model: _model_entry(i, model) for i, model in enumerate(models)}
    entries = {f"plans/{i}.json": packed.plan.encode() for i, packed in enumerate(plans.values())}
    described = {
        name: {"plan": entry, "models": {n: places[model] for n, model in packed.models.items()}}
        for entry, (name, packed) in zip(entries, plans.items(), strict=True)
    }
    return entries | {place: model for model, place in places.items()}, {"format": 2, "plans": described}


def _model_entry(number: int, model: bytes) -> str:
    return f"tflite/{number}.tflite" if model[4:8] == _TFLITE else f"onnx/{number}.onnx"


def _entry(name: str) -> zipfile.ZipInfo:
    """An archive entry with a fixed date, so that equal packages are equal files."""
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    info.external_attr = 0o644 << 16
    return info


def _padding(start: int) -> bytes:
    """An extra field that moves an entry's data from `start` to the next page; Android uses its id, 0xD935, likewise."""
    size = -(start + 4) % _PAGE
    return struct.pack("<HH", 0xD935, size) + bytes(size)


def read_package(path: Path) -> Package:
    """Reads and verifies a package. Its constants are mapped, not copied.

    Raises:
        FileError: no such file, or not readable.
        PackageError: the file is not a package, or its format is newer, or it is damaged or incomplete.
    """
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            return _read(archive, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), path)
    except OSError as error:
        raise FileError(f"cannot read package {path}: {error.strerror}") from error
    except _DAMAGED as error:
        raise PackageError(f"{path} is not a whole nnstretch package ({error}); compile the model again") from error


def _read(archive: zipfile.ZipFile, content: mmap.mmap, path: Path) -> Package:
    manifest = json.loads(bytes(_slice(archive, content, _MANIFEST)))
    version = manifest["format"]
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise PackageError(
            f"{path} has package format {version}, this nnstretch reads up to {FORMAT_VERSION}; upgrade it"
        )
    data: dict[str, memoryview] = {}
    for name, entry in manifest["entries"].items():
        data[name] = _slice(archive, content, name)
        if len(data[name]) != entry["bytes"] or hashlib.sha256(data[name]).hexdigest() != entry["sha256"]:
            raise PackageError(f"{path} is damaged: checksum of {name} does not match; copy or compile it again")
    return Package(
        plans=_plans(manifest, data),
        constants=np.frombuffer(data["constants.bin"], dtype=np.uint8),
        sources={n[7:-3]: bytes(d).decode() for n, d in data.items() if n.startswith("opencl/")},
        metadata=dict(manifest["metadata"]),
        model=data.get(_KEPT_MODEL, b""),
    )


def _plans(manifest: Mapping[str, Any], data: Mapping[str, memoryview]) -> dict[str, PackagedPlan]:
    if manifest["format"] == 1:
        models = {name: _model(data, i) for i, name in enumerate(manifest["models"])}
        return {_ONLY_PLAN: PackagedPlan(bytes(data["plan.json"]).decode(), models)}
    plans = {
        name: PackagedPlan(
            bytes(data[packed["plan"]]).decode(), {n: bytes(data[e]) for n, e in packed["models"].items()}
        )
        for name, packed in dict(manifest["plans"]).items()
    }
    if not plans:
        raise ValueError("it has no plan")
    return plans


def _model(data: Mapping[str, memoryview], number: int) -> bytes:
    tflite = data.get(f"tflite/{number}.tflite")
    return bytes(data[f"onnx/{number}.onnx"] if tflite is None else tflite)


def _slice(archive: zipfile.ZipFile, content: mmap.mmap, name: str) -> memoryview:
    """The stored bytes of an entry, inside the mapped file."""
    info = archive.getinfo(name)
    if info.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"entry {name} is compressed")
    header = _LOCAL_HEADER.unpack_from(content, info.header_offset)
    start = info.header_offset + _LOCAL_HEADER.size + header[9] + header[10]
    if header[0] != b"PK\x03\x04" or start + info.file_size > len(content):
        raise ValueError(f"entry {name} reaches beyond the file")
    return memoryview(content)[start : start + info.file_size]
