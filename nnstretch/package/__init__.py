"""Packages (.nns): plans, weights, OpenCL sources and models of external engines in one file."""

from nnstretch.package.format import Package, PackagedPlan, read_package, write_package

__all__ = ["Package", "PackagedPlan", "read_package", "write_package"]
