"""Reference networks in torch with exact MACs and parameters."""

from nnstretch.zoo.blocks import Chain
from nnstretch.zoo.registry import Builder, ZooEntry, build, entry, example_input, names

__all__ = ["Builder", "Chain", "ZooEntry", "build", "entry", "example_input", "names"]
