"""Requests to stop, by signals."""

import os
import signal

import pytest

from nnstretch.training.loop.stopping import StopRequest, ends_after_its_message, stopped_by_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_asks_and_a_second_ctrl_c_ends(number: int) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with stopped_by_signals("go on") as request:
        assert not request.is_requested
        os.kill(os.getpid(), number)
        assert request.is_requested
        error = request.error("stopped here")
        assert (str(error), error.status) == ("stopped here; go on", 128 + number)
        os.kill(os.getpid(), signal.SIGTERM)  # torchrun passes a Ctrl-C on
        assert request.signal == number
        if number == signal.SIGINT:
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_request_of_another_process_is_one_too() -> None:
    error = StopRequest().error("stopped here")
    assert (str(error), error.status) == ("stopped here", 143)


def test_a_failed_process_says_why_before_it_is_terminated() -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(ValueError, match="why"), ends_after_its_message(), stopped_by_signals("go on"):
            raise ValueError("why")
        os.kill(os.getpid(), signal.SIGTERM)
        signal.signal(signal.SIGTERM, before)
        with ends_after_its_message():
            os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) == before
    finally:
        signal.signal(signal.SIGTERM, before)
