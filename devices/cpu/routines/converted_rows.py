"""Units of work whose rows of the input are converted once, for all outputs that a unit computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.base.routine import Parameters, distinct, shares

ROW_BYTES = 1 << 26
"""Maximum bytes of the rows that kernels convert."""
UNITS = 4
"""Units of converted rows that four threads share evenly."""
_FAR_BYTES = 1 << 19  # of the converted rows of a unit, which the second-level cache keeps beside weights
_NEAR_BYTES = 1 << 15  # the same for the first-level cache
_MOST_CHUNKS = 64  # maximum parts into which a thorough search divides rows
_SPLITS = 1, 2, 4  # shares of the outputs of a thorough search


def rounded_rows_bytes(geometry: KernelGeometry, rows: int, pixel_bytes: int) -> int:
    """Bytes of the rounded input rows that some output rows of a convolution read, from those of a pixel."""
    (height, width), (down, right) = geometry.extents, geometry.strides
    if geometry.taps == 1:  # other pixels than those of the outputs are not rounded
        down = right = 1
    columns = (geometry.out_width - 1) * right + width
    return pixel_bytes * ((rows - 1) * down + height) * columns


@dataclass(frozen=True)
class ConvertedRows:
    """A layer's work, divided by its rows and by shares of its outputs.

    The parameters of a routine are `rows`, output rows per unit, and `split`, shares of the outputs that read the same rows,
    each in a unit of its own.

    Attributes:
        rows: of the output.
        repeats: how often all rows are computed: images, and sets of outputs that read other channels.
        pairs: pairs of output vectors that read the same rows.
        units: least number of units.
        bytes_of: bytes of the converted rows of a number of output rows.
    """

    rows: int
    repeats: int
    pairs: int
    units: int
    bytes_of: Callable[[int], int]

    def parameter_space(self) -> Sequence[Parameters]:
        """Rows that stay in the second-level and in the first-level cache."""
        return distinct(self._setting(most) for most in (_FAR_BYTES, _NEAR_BYTES))

    def search_space(self) -> Sequence[Parameters]:
        """These settings, and all heights with every split."""
        counts = [rows for rows in shares(self.rows, _MOST_CHUNKS) if self.bytes_of(rows) <= ROW_BYTES]
        settings = ({"rows": rows, "split": split} for rows in counts for split in _SPLITS)
        return distinct(self.parameter_space(), settings)

    def _setting(self, most: int) -> Parameters:
        """As many rows as fit into `most` bytes, with units that several threads share evenly."""
        fitting = (rows for rows in shares(self.rows, self.rows) if self.bytes_of(rows) <= most)
        rows = next(fitting, 1)
        units = self.repeats * -(-self.rows // rows)
        return {"rows": rows, "split": max(1, min(-(-self.units // units), self.pairs))}
