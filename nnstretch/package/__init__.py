"""Packages (.nns): a plan, its weights, its OpenCL sources and models of other engines in one file."""

from nnstretch.package.format import Package, read_package, write_package

__all__ = ["Package", "read_package", "write_package"]
