"""Reference networks in torch with exact MACs and parameters."""

from nnstretch.zoo.registry import ZooEntry, build, entry, example_input, names

__all__ = ["ZooEntry", "build", "entry", "example_input", "names"]
