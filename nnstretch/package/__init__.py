"""Packages (.nns): a plan, its weights, its OpenCL sources and fallback models in one file."""

from nnstretch.package.format import Package, read_package, write_package

__all__ = ["Package", "read_package", "write_package"]
