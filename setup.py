"""Lists the packages: every sub-package of the four folders that `[tool.setuptools.package-dir]` maps."""

import tomllib
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.sdist import sdist

ROOT = Path(__file__).parent
FOLDERS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]


class SourceDistribution(sdist):
    """A source distribution without tests: setuptools lists `tests/test*.py`, without what they need."""

    def make_distribution(self) -> None:
        """Pack the listed files but those of the tests."""
        self.filelist.prune("tests")
        super().make_distribution()


setup(
    cmdclass={"sdist": SourceDistribution},
    packages=[
        name
        for package, folder in FOLDERS.items()
        for name in [package, *(f"{package}.{sub}" for sub in find_packages(str(ROOT / folder)))]
    ],
)
