"""Kernel files of the OpenCL processor."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from nnstretch.errors import PackageError

_KERNELS = Path(__file__).parent / "kernels"
_INCLUDE = re.compile(r'^#include "([\w.]+)"$', re.MULTILINE)
_STRUCT = re.compile(r"^typedef struct \{([^}]*)\} (\w+);$", re.MULTILINE)
_KERNEL = re.compile(r"^kernel void (\w+)\([^)]*,\s+const (\w+) given\)$", re.MULTILINE)


@cache
def kernel_files() -> dict[str, Path]:
    """The kernel files by name, in the order of their names. Plans and packages hold these names, without folders."""
    return {path.name: path for path in sorted(_KERNELS.rglob("*.cl"), key=lambda path: path.name)}


def kernel_source(name: str) -> str:
    """The text of a kernel file with its includes expanded."""
    text = kernel_files()[name].read_text()
    return _INCLUDE.sub(lambda match: kernel_source(match[1]), text)


def kernel_integers(text: str) -> dict[str, int]:
    """Number of integers in the argument struct of every kernel of a source, which not all drivers check.

    Kernels that do not follow the convention of common.cl are omitted.
    """
    sizes = {"int": 1}
    for members, name in _STRUCT.findall(text):
        declared = [member.split(None, 1) for member in members.split(";") if member.strip()]
        if all(len(words) == 2 and words[0] in sizes for words in declared):
            sizes[name] = sum(sizes[kind] * (names.count(",") + 1) for kind, names in declared)
    return {kernel: sizes[struct] for kernel, struct in _KERNEL.findall(text) if struct in sizes}


@cache
def sources_hash() -> str:
    """Short hash of all kernel files, which are read once."""
    digest = hashlib.sha256()
    for name, path in kernel_files().items():
        digest.update(name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def source_hashes() -> dict[str, str]:
    """SHA-256 of the text of every kernel file with its includes, hexadecimal."""
    return {name: _hash(kernel_source(name)) for name in kernel_files()}


def check_installed(sources: Mapping[str, str], package: str | Path) -> None:
    """Checks that sources are the installed ones, by their SHA-256.

    Args:
        sources: name -> text, as a package has them.
        package: its file, for the message.

    Raises:
        PackageError: a source differs, or is not installed.
    """
    installed = source_hashes()
    odd = [name for name, text in sources.items() if installed.get(name) != _hash(text)]
    if odd:
        raise PackageError(
            f"{package} has an OpenCL source {odd[0]!r} that is not the installed one; compile the model again with this "
            "version, or leave trusted sources out if you trust the package's author"
        )


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
