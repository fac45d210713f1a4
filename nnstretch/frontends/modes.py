"""Torch modules in evaluation mode, as they are looked at."""

from __future__ import annotations

import contextlib
import inspect
import io
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


def check_reads_images(module: nn.Module, example_input: Any, name: str) -> None:
    """Checks that a module has one input, as networks that are branched or trained do.

    Args:
        module: of the user.
        example_input: for it, whatever its factory returned.
        name: of the module, for the message.

    Raises:
        ModelError: its example input is no tensor, or its `forward` needs other arguments than one tensor.
    """
    rule = "here a network has one input, a tensor of images"
    if not isinstance(example_input, Tensor):
        size = f" of {len(example_input)}" if isinstance(example_input, tuple | list) else ""
        raise ModelError(f"the example input of {name} is a {type(example_input).__name__}{size}; {rule}")
    try:
        signature = inspect.signature(module.forward)
    except (TypeError, ValueError):
        return  # of a compiled module; running it shows what it reads
    try:
        signature.bind(example_input)
    except TypeError as error:
        raise ModelError(f"forward() of {name} does not take images alone: {error}; {rule}") from error


def run_once(module: nn.Module, example_input: Tensor) -> Any:
    """What the module returns in evaluation mode, without gradients; its flags are as before afterwards.

    Raises:
        ModelError: it does not run on that input.
    """
    try:
        # torch.fx prints a traceback of what fails in a module that it has made.
        with evaluating(module), torch.no_grad(), contextlib.redirect_stderr(io.StringIO()):
            return module(example_input.clone())
    except Exception as error:
        raise ModelError(
            f"the network does not run on an input of shape {tuple(example_input.shape)}: {first_line(error)}; "
            "give one that it accepts"
        ) from error
