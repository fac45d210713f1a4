"""pycls YAML files with published NN-Stretch networks: section `ANYNET`, with a list entry per branch.

A published network is a stem, stages of blocks and a head. A stage may have branches, which meet at its end.
In the first version (`MB_VER: 1`) branches have 1x1 convolutions at their ends; in the second their channels
are only concatenated.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from nnstretch.branching.pycls.network import BASIC, PublishedNetwork
from nnstretch.branching.pycls.parser import parse_published
from nnstretch.errors import DesignError, FileError
from nnstretch.support.settings import atomic_write

_LARGEST = 1 << 20  # maximum bytes; published files have about a thousand


def read_published(path: Path) -> PublishedNetwork:
    """Reads the pycls file at `path`.

    Raises:
        FileError: the file does not exist or cannot be read.
        DesignError: it is no such file, or its content is invalid; the message says what.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST + 1)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from error
    if len(text) > _LARGEST:
        raise DesignError(f"{path} has more than {_LARGEST} bytes; give a file with an ANYNET section")
    try:
        return parse_published(text.decode())
    except UnicodeDecodeError as error:
        raise DesignError(f"{path} is not text; give a YAML file with an ANYNET section") from error
    except DesignError as error:
        raise DesignError(f"{path}: {error}") from error


def write_published(network: PublishedNetwork, path: Path) -> None:
    """Writes `network` to `path` as a pycls file, completely or not at all; `read_published` restores an equal one.

    Raises:
        FileError: the place is not writable or the disk is full.
    """
    with atomic_write(path) as file:
        file.write(published_text(network).encode())


def published_text(network: PublishedNetwork) -> str:
    """The text of a pycls file."""
    stages = network.stages
    fields: dict[str, Any] = {
        "STEM_TYPE": network.stem,
        "STEM_W": network.stem_width,
        "STEM_K": network.stem_kernel,
        "BLOCK_TYPE": network.block,
        "STRIDES": [[stage.stride] * len(stage.depths) for stage in stages],
        "DEPTHS": [stage.depths for stage in stages],
        "WIDTHS": [stage.widths for stage in stages],
        "BOT_MULS": [_one_or_all(stage.bottlenecks) for stage in stages],
        "GROUP_WS": [stage.group_widths for stage in stages] if any(s.group_widths for s in stages) else None,
        "KERNELS": [stage.kernel for stage in stages] if any(s.kernel for s in stages) else None,
        "HEAD_W": network.head_width or None,
        "DEVICES": network.devices,
        "HEAD_DEVICE": network.head_device,
        "STEM_DEVICE": network.stem_device,
        "MERGE_DEVICE": network.merge_device,
        "ORIGINAL_WIDTHS": [stage.original_width for stage in stages],
        "SE_ON": network.squeeze > 0 if network.block != BASIC else None,
        "SE_R": network.squeeze or None,
        "MB_VER": network.version,
        "ACTIVATION_FUN": network.activations or None,
    }
    # JSON is YAML; it keeps the lists of a stage on one line, as in published files.
    lines = [f"  {name}: {json.dumps(value)}" for name, value in fields.items() if value is not None]
    others = yaml.safe_dump(dict(network.sections), sort_keys=False) if network.sections else ""
    return others + "\n".join(["ANYNET:", *lines, ""])


def _one_or_all(values: Sequence[float]) -> float | list[float]:
    plain = [int(value) if value == int(value) else value for value in values]
    return plain[0] if len(set(plain)) == 1 else plain
