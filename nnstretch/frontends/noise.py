"""Images of normal noise, as example inputs."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nnstretch.errors import UsageError

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def noise(shape: Sequence[int], seed: int = 0, dtype: torch.dtype | None = None) -> Tensor:
    """Normal noise of this shape.

    Args:
        shape: extents.
        seed: of the noise.
        dtype: type of the elements; None: float32.

    Raises:
        UsageError: the machine does not have that much memory.
    """
    import torch

    wanted = math.prod(shape) * torch.float32.itemsize
    try:
        if wanted > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
            raise MemoryError
        drawn = torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed))
    except (MemoryError, RuntimeError) as error:
        sides = "×".join(map(str, shape))
        raise UsageError(
            f"an input of {sides} takes {wanted / 1e9:.3g} GB, more memory than there is; give fewer or smaller images"
        ) from error
    return drawn.to(dtype or torch.float32)
