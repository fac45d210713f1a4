"""Modules to export, with their inputs and metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nnstretch.frontends.resolve import batched, load_network

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True, eq=False)
class LoadedModule:
    """A module to export.

    Attributes:
        module: the module.
        inputs: its example inputs.
        metadata: texts by key that its program carries.
    """

    module: nn.Module
    inputs: tuple[torch.Tensor, ...]
    metadata: Mapping[str, str] = field(default_factory=dict)


def module_of_file(path: str, batch: int | None) -> LoadedModule:
    """The network in an ONNX or TFLite file as a module, with the file's metadata.

    Args:
        path: of the file.
        batch: images per run, for networks with one input; None: as the file says.

    Raises:
        UsageError: a batch is given and the network has several inputs.
        ModelError, FileError: the file cannot be read, or has operators that torch does not have.
    """
    network = load_network(path)
    inputs = network.example_inputs if batch is None else (batched(network.image, batch, path),)
    return LoadedModule(network.module, inputs, network.interface.metadata)
