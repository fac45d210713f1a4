"""Clocks, throttling, temperatures and energy during a measurement, on made-up machines."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kits.boards.machines import CPU, POWERCAP, SUPPLY, THERMAL, phone, replace, server, write_tree
from tests.kits.boards.runner import QUICK, bench, refusal, write_model
from tests.kits.graphs.graphs import RandomNetwork


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model on core 0."""
    return write_model(RandomNetwork(1, 1), tmp_path_factory.mktemp("models") / "single.nnm")


@contextmanager
def changing(change: Callable[[float], None], every: float = 0.005) -> Iterator[None]:
    """Calls a function with the seconds since the begin again and again, in a thread."""
    begin, over = time.monotonic(), threading.Event()

    def body() -> None:
        while not over.wait(every):
            change(time.monotonic() - begin)

    thread = threading.Thread(target=body)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


# -- clocks ---------------------------------------------------------------------------------------------------------


def throttled(runner: Path, root: Path, model: Path) -> object:
    (entry,) = bench(runner, *QUICK, "--root", root, model)["models"]
    return entry["throttled"]


def test_clocks_and_temperatures_before_and_after(runner: Path, single: Path, tmp_path: Path) -> None:
    (entry,) = bench(runner, *QUICK, "--root", phone(tmp_path), single)["models"]
    assert entry["clocks_khz"] == {"0": [1803000, 1803000]}
    assert entry["temperatures_c"] == {
        "thermal_zone0": [41.5, 41.5],
        "thermal_zone2": [99, 99],
        "thermal_zone10": [43, 43],
        "thermal_zone11": [None, None],
    }
    assert entry["throttled"] is False


def test_nothing_is_known_where_nothing_is_shown(runner: Path, single: Path, tmp_path: Path) -> None:
    (entry,) = bench(runner, *QUICK, "--root", tmp_path, single)["models"]
    assert entry["clocks_khz"] == {"0": [None, None]}
    assert entry["temperatures_c"] == {}
    assert entry["throttled"] is None
    assert entry["energy_j"] is None


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({f"{CPU}/cpu0/cpufreq/scaling_cur_freq": 1600000}, True),  # below 90 % of the maximum
        ({f"{CPU}/cpu0/cpufreq/scaling_cur_freq": 1700000}, False),
        ({f"{CPU}/cpu1/cpufreq/scaling_cur_freq": 300000}, False),  # a core that the model does not use
        ({f"{CPU}/cpu0/cpufreq/scaling_max_freq": 1500000}, True),
        ({f"{CPU}/cpu0/cpufreq/scaling_governor": "powersave", f"{CPU}/cpu0/cpufreq/scaling_cur_freq": 300000}, False),
        ({f"{CPU}/cpu0/cpufreq/scaling_governor": "userspace", f"{CPU}/cpu0/cpufreq/scaling_cur_freq": 300000}, False),
        ({f"{THERMAL}/cooling_device0/type": "cpufreq-cpu0", f"{THERMAL}/cooling_device0/cur_state": 2}, True),
        ({f"{THERMAL}/cooling_device0/type": "cpufreq-cpu0", f"{THERMAL}/cooling_device0/cur_state": 0}, False),
        ({f"{THERMAL}/cooling_device0/type": "fan", f"{THERMAL}/cooling_device0/cur_state": 2}, False),
    ],
)
def test_throttling_of_a_phone(
    runner: Path, single: Path, tmp_path: Path, files: dict[str, object], *, expected: bool
) -> None:
    assert throttled(runner, write_tree(phone(tmp_path), files), single) is expected


def test_a_server_is_throttled_below_its_base_clock_or_if_it_says_so(
    runner: Path, single: Path, tmp_path: Path
) -> None:
    root = server(tmp_path)
    assert throttled(runner, root, single) is False
    cpu = root / CPU / "cpu0"
    replace(cpu / "cpufreq" / "scaling_cur_freq", "2000000")
    assert throttled(runner, root, single) is True
    replace(cpu / "cpufreq" / "scaling_cur_freq", "2900000")
    count = cpu / "thermal_throttle" / "core_throttle_count"
    with changing(lambda s: replace(count, str(int(s * 1000)))):
        (entry,) = bench(runner, "--seconds", "0.3", "--warmup", "0", "--root", root, single)["models"]
    assert entry["throttled"] is True


# -- temperature ----------------------------------------------------------------------------------------------------


def test_the_run_stops_at_the_thermal_limit(runner: Path, single: Path, tmp_path: Path) -> None:
    options = ("--root", phone(tmp_path), "--hottest", "42", "--when-hot", "stop")
    answer = bench(runner, *QUICK, *options, single, single, status=1)
    assert answer["stopped"] == "thermal limit: BIG (thermal_zone10) has 43.0 degrees Celsius"
    for entry in answer["models"]:
        assert entry["error"] == f"not timed: stopped by {answer['stopped']}"
    assert bench(runner, *QUICK, *options[:2], "--hottest", "43.5", single)["stopped"] is None


def test_models_that_were_timed_before_the_stop_have_results(runner: Path, single: Path, tmp_path: Path) -> None:
    root = phone(tmp_path)
    hot = root / THERMAL / "thermal_zone0" / "temp"
    options = ("--root", root, "--hottest", "80", "--when-hot", "stop", "--cool-down", "0.01", "--seconds", "0.5")
    with changing(lambda s: replace(hot, str(40000 + int(50000 * (s > 1.2))))):
        answer = bench(runner, *options, "--warmup", "0", *[single] * 8, status=1)
    assert answer["stopped"].startswith("thermal limit: cpu-0-0-usr")
    timed = [entry for entry in answer["models"] if "error" not in entry]
    assert 1 <= len(timed) <= 4
    assert any(entry["temperatures_c"]["thermal_zone0"][1] == 90 for entry in timed)


def test_the_run_pauses_at_the_thermal_limit_until_it_is_cooler(runner: Path, single: Path, tmp_path: Path) -> None:
    root = phone(tmp_path)
    hot = root / THERMAL / "thermal_zone0" / "temp"
    replace(hot, "90000")
    begin = time.monotonic()
    with changing(lambda s: replace(hot, str(90000 - int(6000 * (s > 0.6)) - int(9000 * (s > 1.2))))):
        answer = bench(runner, *QUICK, "--root", root, "--hottest", "85", single)
    assert answer["stopped"] is None
    assert time.monotonic() - begin > 1.2  # 84 degrees are below the limit, but not by 5
    assert answer["models"][0]["runs"] == 3


def test_models_wait_for_each_other_and_for_the_temperature(runner: Path, single: Path, tmp_path: Path) -> None:
    root = phone(tmp_path)
    begin = time.monotonic()
    bench(runner, *QUICK, "--root", root, "--cool-down", "0.4", *[single] * 3)
    assert time.monotonic() - begin > 0.8
    hot = root / THERMAL / "thermal_zone10" / "temp"
    replace(hot, "45000")
    begin = time.monotonic()
    with changing(lambda s: replace(hot, str(45000 - int(6000 * (s > 0.7))))):
        bench(runner, *QUICK, "--root", root, "--cool-to", "42", single, single)
    assert time.monotonic() - begin > 0.7
    replace(hot, "45000")
    begin = time.monotonic()
    with changing(lambda s: replace(hot, str(45000 - int(6000 * (s > 0.3))))):
        bench(runner, *QUICK, "--root", root, "--cool-to", "42", single)
    assert time.monotonic() - begin > 0.3


@pytest.mark.parametrize("option", ["--hottest", "--cool-to"])
def test_limits_need_a_sensor(runner: Path, single: Path, tmp_path: Path, option: str) -> None:
    write_tree(tmp_path, {f"{THERMAL}/thermal_zone0/type": "battery", f"{THERMAL}/thermal_zone0/temp": 30000})
    assert f"leave {option} out" in refusal(runner, option, "60", "--root", tmp_path, single)


# -- energy ---------------------------------------------------------------------------------------------------------

SECOND = ("--seconds", "1.05", "--warmup", "0")


def watts(entry: dict[str, float]) -> float:
    return entry["energy_j"] / entry["mean_ms"] * 1e3


def test_counters_of_packages_and_their_memory_are_added(runner: Path, single: Path, tmp_path: Path) -> None:
    """Packages take 20 and 7 W, memory 3 W; the first package's counter begins again."""
    root = server(tmp_path)
    rates = {"intel-rapl:0": 20, "intel-rapl:1": 7, "intel-rapl:0:1": 3, "intel-rapl:0:0": 100, "intel-rapl:2": 500}
    begun = time.monotonic()
    counted = 40_000_000
    replace(root / POWERCAP / "intel-rapl:0" / "max_energy_range_uj", str(counted))

    def count(_: float) -> None:
        for zone, rate in rates.items():
            microjoules = int((time.monotonic() - begun) * rate * 1e6) + 25_000_000
            replace(root / POWERCAP / zone / "energy_uj", str(microjoules % counted))

    for zone in rates:
        replace(root / POWERCAP / zone / "max_energy_range_uj", str(counted))
    count(0)
    with changing(count):
        answer = bench(runner, *SECOND, "--root", root, single, single)
    for entry in answer["models"]:
        assert watts(entry) == pytest.approx(30, rel=0.35)  # a turn holds more than its runs


def test_a_battery_gives_the_energy_of_a_model_that_runs_alone(runner: Path, single: Path, tmp_path: Path) -> None:
    root = phone(tmp_path)
    (entry,) = bench(runner, *SECOND, "--root", root, single)["models"]
    assert watts(entry) == pytest.approx(2, rel=0.35)
    for entry in bench(runner, *SECOND, "--root", root, single, single)["models"]:
        assert entry["energy_j"] is None
    (entry,) = bench(runner, "--seconds", "0.1", "--root", root, single)["models"]
    assert entry["energy_j"] is None
    replace(root / SUPPLY / "battery" / "status", "Charging")
    (entry,) = bench(runner, *SECOND, "--root", root, single)["models"]
    assert entry["energy_j"] is None


# -- sustained runs -------------------------------------------------------------------------------------------------


def test_a_sustained_run_has_a_record_per_second(runner: Path, single: Path, tmp_path: Path) -> None:
    root = phone(tmp_path)
    clock = root / CPU / "cpu0" / "cpufreq" / "scaling_cur_freq"
    with changing(lambda s: replace(clock, str(1803000 - 1000000 * (s > 1.6)))):
        (entry,) = bench(runner, "--minutes", "0.05", "--warmup", "0", "--root", root, single)["models"]
    records = entry["sustained"]
    assert 3 <= len(records) <= 4
    assert [record["s"] for record in records] == pytest.approx([1, 2, 3, 3][: len(records)], abs=0.4)
    assert records[0]["khz"] == 1803000
    assert records[-1]["khz"] == 803000
    assert {record["temperature_c"] for record in records} == {43}
    assert all(entry["min_ms"] <= record["p50_ms"] for record in records)
    assert entry["throttled"] is True
