"""Selectors: one file each, behind `nnstretch.scheduler.problem.Selector`."""

from nnstretch.scheduler.selectors.elimination import Elimination

__all__ = ["Elimination"]
