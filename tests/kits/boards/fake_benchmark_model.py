"""A stand-in for TFLite's benchmark tool: a shell script that prints what the tool prints, and checks its command line."""

from __future__ import annotations

from pathlib import Path

LINES = """\
STARTING!
Log parameter values verbosely: [0]
Min num runs: [1]
Graph: [GRAPH]
Loaded model GRAPH
INFO: Created TensorFlow Lite XNNPACK delegate for CPU.
The input model file size (MB): 11.983
Initialized session in 20.283ms.
Running benchmark for at least 1 iterations and at least 0.5 seconds but terminate if exceeding 150 seconds.
count=2 first=339304 curr=266325 min=266325 max=339304 avg=302814 std=36489

Running benchmark for at least 50 iterations and at least 1 seconds but terminate if exceeding 150 seconds.
count=50 first=266601 curr=266931 min=265837 max=268116 avg=266473 std=419MEDIAN

Inference timings in us: Init: 20283, First inference: 339304, Warmup (avg): 302814, Inference (avg): 266473
Note: as the benchmark tool itself affects memory footprint, the following is only APPROXIMATE to the actual memory footprint.
Memory footprint delta from the start of the tool (MB): init=14.5898 overall=52.9102
"""
MEDIAN = " p5=265990 median=266400 p95=267500"
"""What newer versions of the tool append to the statistics."""

_SCRIPT = """\
#!/bin/sh
graph=
for word in "$@"; do
  case $word in
    --graph=*) graph=${word#--graph=} ;;
    --num_threads=* | --num_runs=1 | --min_secs=* | --max_secs=* | --warmup_runs=1 | --warmup_min_secs=*) ;;
    *) echo "unknown flag $word" >&2; exit 1 ;;
  esac
done
echo "$@" >>"${0%/*}/tool"
if [ "$(dd if="$graph" bs=1 skip=4 count=4 2>/dev/null)" != TFL3 ]; then
  echo "ERROR: The model is not a valid Flatbuffer buffer" >&2
  exit 1
fi
sed "s#GRAPH#$graph#" <<'END' >&2
LINES
END
"""


def printed(*, median: bool = True) -> str:
    """What the tool prints for a model."""
    return LINES.replace("MEDIAN", MEDIAN if median else "")


def write_benchmark_model(folder: Path, *, median: bool = True) -> Path:
    """Writes the tool; it refuses a file that is no TFLite file."""
    file = folder / "benchmark_model"
    file.write_text(_SCRIPT.replace("LINES\n", printed(median=median)))
    file.chmod(0o755)
    return file
