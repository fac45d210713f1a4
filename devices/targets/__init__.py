"""Targets: machines that packages run on. One file each, behind `nnstretch.devices.targets.target.Target`."""

from nnstretch.devices.targets.local import LocalTarget
from nnstretch.devices.targets.target import Finished, Target, TargetInfo, TransientError

__all__ = ["Finished", "LocalTarget", "Target", "TargetInfo", "TransientError"]
