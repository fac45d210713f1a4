"""Layers that stay in float32."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

import onnx_ir as ir

from nnstretch.errors import UsageError
from nnstretch.quantization.heads import head_nodes, is_detector

_SHOWN = 5  # names in a message


@dataclass(frozen=True)
class KeepFloat:
    """What stays in float32, as `--keep-float` says it.

    Attributes:
        heads: those of detectors ("auto"), of any network ("heads"), or none.
        worst: the number of most sensitive layers besides.
        patterns: of names: a layer, the path of a module that holds it, or either with *, ? and [ ].
    """

    heads: Literal["auto", "heads", "none"] = "auto"
    worst: int = 0
    patterns: tuple[str, ...] = ()

    @classmethod
    def parse(cls, texts: Sequence[str]) -> KeepFloat:
        """Of the texts "auto", "auto:N", "heads", "none" and names.

        Raises:
            UsageError: N is no positive number, or the texts contradict each other.
        """
        words = [text for text in texts if text in ("auto", "heads", "none") or text.startswith("auto:")]
        heads = {text.partition(":")[0] for text in words}
        if len(heads) > 1 or len(words) > 1 + ("auto" in words):
            raise UsageError(f"--keep-float takes one of auto, auto:N, heads and none, not {' and '.join(words)}")
        counts = [text.partition(":")[2] for text in words if ":" in text]
        if counts and not (counts[0].isdecimal() and int(counts[0])):
            raise UsageError(f"--keep-float auto:{counts[0]} is not understood; write a number of layers, as in auto:3")
        patterns = tuple(text for text in texts if text not in words)
        (found,) = heads or {"auto"}
        return cls(found, int(counts[0]) if counts else 0, patterns)  # type: ignore[arg-type]

    def named(self, model: ir.Model) -> tuple[str, ...]:
        """Names of the nodes that patterns and heads stand for, in topological order.

        Raises:
            UsageError: a pattern fits no node.
        """
        names = [str(node.name) for node in model.graph]
        kept: set[str] = set()
        for pattern in self.patterns:
            fitting = [name for name in names if _fits(name, pattern)]
            if not fitting:
                raise UsageError(f"no layer is called {pattern!r}; there are {_some(names)}")
            kept.update(fitting)
        if self.heads == "heads" or (self.heads == "auto" and is_detector(model)):
            kept.update(str(node.name) for node in head_nodes(model))
        return tuple(name for name in names if name in kept)


def own_weights(model: ir.Model, kept: Collection[str]) -> None:
    """Gives the kept nodes copies of weights that other nodes read, too, since a tensor is quantised for all its readers."""
    graph = model.graph
    for name, value in list(graph.initializers.items()):
        readers = {use.node: use.idx for use in value.uses()}
        mine = [node for node in readers if node.name in kept]
        if not mine or len(mine) == len(readers):
            continue
        copy = ir.Value(name=f"{name}/float", type=value.type, shape=value.shape, const_value=value.const_value)
        graph.register_initializer(copy)
        for node in mine:
            for index, read in enumerate(node.inputs):
                if read is value:
                    node.replace_input_with(index, copy)


def _fits(name: str, pattern: str) -> bool:
    """Whether a pattern stands for a name "PATH/OPERATOR", its path, or a folder of that."""
    places = {name} | {name[:end] for end, letter in enumerate(name) if end and letter in "./"}
    return any(fnmatchcase(place, pattern) for place in places)


def _some(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
