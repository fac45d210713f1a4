"""What libraries print by themselves."""

import os

import pytest

from nnstretch.support.library_output import dropped_stderr


def test_lines_of_native_code_are_dropped_in_the_block_alone(capfd: pytest.CaptureFixture[str]) -> None:
    with dropped_stderr():
        os.write(2, b"dropped\n")
    with pytest.raises(ValueError, match="of the block"), dropped_stderr():
        raise ValueError("of the block")
    os.write(2, b"kept\n")
    assert capfd.readouterr().err == "kept\n"
