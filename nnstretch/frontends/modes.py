"""Torch modules in evaluation mode, as they are looked at."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from nnstretch.errors import ModelError, first_line


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """All of `module` in evaluation mode, and each part back in its own mode afterwards."""
    flags = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in flags:
            part.training = training


def run_once(module: nn.Module, example_input: Tensor) -> Any:
    """What the module returns in evaluation mode, without gradients; its flags are as before afterwards.

    Raises:
        ModelError: it does not run on that input.
    """
    try:
        with evaluating(module), torch.no_grad():
            return module(example_input.clone())
    except Exception as error:
        raise ModelError(
            f"the network does not run on an input of shape {tuple(example_input.shape)}: {first_line(error)}; "
            "give one that it accepts"
        ) from error
