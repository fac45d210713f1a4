"""Packages (.nns): plans, their weights, their OpenCL sources and models of other engines in one file."""

from nnstretch.package.format import Package, PackagedPlan, read_package, write_package

__all__ = ["Package", "PackagedPlan", "read_package", "write_package"]
