"""`nnstretch.list_models` and `nnstretch.create_model`: the networks of the zoo, called as timm's are."""

from __future__ import annotations

from fnmatch import fnmatch
from typing import TYPE_CHECKING

from nnstretch import zoo
from nnstretch.support.extras import extras_named

if TYPE_CHECKING:
    from torch import nn


def list_models(pattern: str = "*") -> list[str]:
    """Names of the zoo's networks.

    Args:
        pattern: those that match it, as in `"*resnet*"`.
    """
    return [name for name in zoo.names() if fnmatch(name, pattern)]


@extras_named()
def create_model(
    name: str, *, num_classes: int | None = None, in_channels: int = 3, small_images: bool = False, seed: int = 0
) -> nn.Module:
    """A network of the zoo in evaluation mode, with random weights that keep activations in range.

    Args:
        name: one of `list_models()`.
        num_classes: classes of a classifier; None: those of the published network.
        in_channels: channels of the images, N,C,H,W.
        small_images: a stem for images of about 64 x 64.
        seed: of the weights.

    Raises:
        ModelError: there is no such network, or a number is below 1.
        MissingExtraError: torch is not installed.
    """
    return zoo.build(name, num_classes, small_images, pretrained_seed=seed, in_channels=in_channels)
