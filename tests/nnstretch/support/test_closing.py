"""Closing what was opened."""

import pytest

from nnstretch.support.closing import closed_on_failure


def test_only_a_failure_closes() -> None:
    closed: list[str] = []
    with closed_on_failure(lambda: closed.append("fine")):
        pass
    with pytest.raises(KeyboardInterrupt), closed_on_failure(lambda: closed.append("interrupted")):
        raise KeyboardInterrupt
    assert closed == ["interrupted"]
