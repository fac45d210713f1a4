"""Weights of a module as a safetensors file, checked when they are read."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from nnstretch.errors import FileError, ModelError
from nnstretch.support.settings import atomic_write

_CHECKSUM = "nnstretch.crc32"
CHECKPOINT = "nnstretch.checkpoint"
"""Key of the metadata of a file that is a training's checkpoint."""
_NAMED_TENSORS = 3
_KINDS: Mapping[torch.dtype, str] = {
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float32: "F32",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Types of tensors as the format calls them, in the order of their data in a file."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write named tensors and texts as one safetensors file with a checksum.

    Raises:
        FileError: it cannot be written; a file that was there before is then still whole.
    """
    plain = {
        name: value.detach().cpu().contiguous(memory_format=torch.contiguous_format) for name, value in tensors.items()
    }
    checksum = {_CHECKSUM: str(_checksum(plain, metadata))}
    kinds = list(_KINDS)
    plain = dict(sorted(plain.items(), key=lambda item: (kinds.index(item[1].dtype), item[0])))
    with atomic_write(path) as file:
        file.write(_header(plain, {**metadata, **checksum}))
        for value in plain.values():
            file.write(_bytes_of(value))


def _header(tensors: Mapping[str, Tensor], texts: Mapping[str, str]) -> bytes:
    """What a safetensors file has before its data: a length in 8 bytes, then JSON. The library's `save` copies all data twice.

    Args:
        tensors: in the order of the data, those of larger elements first.
        texts: become ordered by name, so that equal content makes equal files.
    """
    described, end = {}, 0
    for name, value in tensors.items():
        begin, end = end, end + value.nbytes
        described[name] = {"dtype": _KINDS[value.dtype], "shape": list(value.shape), "data_offsets": [begin, end]}
    header = {"__metadata__": dict(sorted(texts.items())), **described}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the data are aligned
    return len(text).to_bytes(8, "little") + text


def _bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor, not copied."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and texts of a safetensors file; a checksum is checked if there is one.

    Raises:
        FileError: missing, unreadable, truncated, of another format, or damaged.
    """
    if not path.is_file():
        why = "it is a folder" if path.is_dir() else "there is no such file"
        raise FileError(f"cannot read {path}: {why}; weights are a .safetensors file")
    try:
        # One read: a training may replace the file meanwhile, and `safe_open` opens the path twice.
        content = path.read_bytes()
        tensors = load(content)
        metadata = _metadata(content)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}") from error
    except SafetensorError as error:
        if path.suffix != ".safetensors":
            raise FileError(f"{path} is no .safetensors file; {_instead(path)}") from error
        raise FileError(f"{path} is no whole safetensors file ({error}); write it again") from error
    expected = metadata.pop(_CHECKSUM, None)
    if expected is not None and expected != str(_checksum(tensors, metadata)):
        raise FileError(f"{path} is damaged: its content does not have its checksum; write it again")
    return tensors, metadata


def _instead(path: Path) -> str:
    """What to give instead of a file of another format."""
    if path.suffix in (".pt", ".pth", ".bin", ".ckpt"):
        return "write the state_dict in it with safetensors.torch.save_file, and give that"
    return "give the file with the weights of the network"


def save_weights(module: nn.Module, path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write parameters and buffers of ``module``, under the names of its ``state_dict``, and ``metadata``.

    Raises:
        FileError: it cannot be written.
    """
    write_tensors(path, module.state_dict(), metadata or {})


def load_weights(module: nn.Module, path: Path) -> dict[str, str]:
    """Fill parameters and buffers of ``module`` from a file and return the file's metadata.

    Raises:
        FileError: the file is missing or damaged.
        ModelError: it is a checkpoint, or names or shapes differ from the module's; nothing is filled in then.
    """
    tensors, metadata = read_tensors(path)
    if CHECKPOINT in metadata:
        raise ModelError(
            f"{path} is a checkpoint of a training, not weights; give the weights that the training wrote, or "
            f"{path.with_name('best.safetensors')}"
        )
    fill(module, tensors, str(path))
    return metadata


def fill(module: nn.Module, tensors: Mapping[str, Tensor], source: str) -> None:
    """Copy ``tensors`` into the module's parameters and buffers of the same names.

    Raises:
        ModelError: names, shapes or kinds of numbers differ; ``source`` says in the message where they came from.
    """
    wanted = module.state_dict()
    differences = [
        f"{name} is {_describe(tensors.get(name))}, wanted {_describe(wanted.get(name))}"
        for name in dict.fromkeys([*wanted, *tensors])
        if not _fits(tensors.get(name), wanted.get(name))
    ]
    if differences:
        more = f"; and {len(differences) - _NAMED_TENSORS} more" if len(differences) > _NAMED_TENSORS else ""
        raise ModelError(
            f"the weights in {source} are not those of this network: "
            f"{'; '.join(differences[:_NAMED_TENSORS])}{more}; build the network that they were saved from"
        )
    with torch.no_grad():
        for name, value in wanted.items():
            value.copy_(tensors[name])


def _metadata(content: bytes) -> dict[str, str]:
    """The texts in the header of a safetensors file that `load` has accepted: its length in 8 bytes, then JSON."""
    length = int.from_bytes(content[:8], "little")
    header: dict[str, dict[str, str]] = json.loads(content[8 : 8 + length])
    return header.get("__metadata__", {})


def _fits(found: Tensor | None, wanted: Tensor | None) -> bool:
    if found is None or wanted is None:
        return False
    return found.shape == wanted.shape and found.is_floating_point() == wanted.is_floating_point()


def _describe(tensor: Tensor | None) -> str:
    if tensor is None:
        return "absent"
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> int:
    """CRC-32 of names, types, shapes, bytes and metadata."""
    crc = zlib.crc32(json.dumps(sorted(metadata.items())).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        crc = zlib.crc32(f"{name} {_describe(tensor)}".encode(), crc)
        crc = zlib.crc32(_bytes_of(tensor), crc)
    return crc
