"""Reference networks in torch, exact in MACs and parameters, to try everything else on."""

from nnstretch.zoo.blocks import Chain
from nnstretch.zoo.registry import Builder, ZooEntry, build, entry, example_input, names

__all__ = ["Builder", "Chain", "ZooEntry", "build", "entry", "example_input", "names"]
