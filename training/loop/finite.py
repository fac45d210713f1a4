"""Whether trained values are finite: what is not is never written to a file."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from nnstretch.training.loop.distributed import Ranks
from nnstretch.training.loop.sharding import local

_NAMED = 3


def learned_names(module: nn.Module) -> frozenset[str]:
    """Names of what a training changes in a module: parameters and statistics of norms.

    Other buffers are constants, which may be infinite, such as masks of attention.
    """
    names = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    for name, layer in module.named_modules(remove_duplicate=False):
        if isinstance(layer, _NormBase):
            names |= {f"{name}{'.' if name else ''}{statistic}" for statistic in ("running_mean", "running_var")}
    return frozenset(names)


def non_finite(tensors: Mapping[str, Tensor], ranks: Ranks | None = None) -> str:
    """Says which floating-point tensors have infinities or NaN, as in `a, b are not finite`; empty if there are none.

    All values are reduced to one flag on their device, so that the device is waited for once. Several processes get the same
    answer, also where each has other shards; all of them have to call it together.

    Args:
        tensors: by name, all on one device; for tensors in shards, the shards of this process are looked at.
        ranks: the processes that agree.
    """
    shards = {name: local(tensor.detach()) for name, tensor in tensors.items() if tensor.is_floating_point()}
    shards = {name: shard for name, shard in shards.items() if shard.numel()}
    is_bad = False
    if shards:
        largest = torch._foreach_norm(list(shards.values()), float("inf"))
        is_bad = not bool(torch.stack([torch.isfinite(norm) for norm in largest]).all())
    if ranks is not None:
        (is_bad,) = ranks.any(is_bad)
    if not is_bad:
        return ""
    bad = [name for name, shard in shards.items() if not bool(torch.isfinite(shard).all())]
    if ranks is not None:
        bad = list(dict.fromkeys(name for names in ranks.gathered(bad) for name in names))
    more = f" and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
    return f"{', '.join(bad[:_NAMED])}{more} {'are' if len(bad) > 1 else 'is'} not finite"
