"""Predicts the throughput of the engine's ARM kernels by llvm-mca's processor models, without ARM hardware.

The engine's objects for aarch64 are compiled, or found in the cache, and disassembled. From every kernel comes its innermost
loop with the most multiply-adds, on the path of most multiply-adds and fewest other instructions: interior pixels and whole
blocks of channels. llvm-mca (Debian, Ubuntu: `apt-get install llvm-22`; version 17 or later) schedules that path for each core.
It assumes data in the nearest cache.

A share is the multiply-adds per cycle over the most that the core can issue in float32; kernels of other types exceed it.
llvm-mca lets a Cortex-A55 issue two instructions that multiply four floats per cycle, but its vector units have 64 bits. There
the script counts one cycle per vector instruction and per 128-bit load, and takes llvm-mca's cycles if they are more.

    .venv/bin/python scripts/engine/arm_throughput.py [KERNEL…] [--core cortex-a55] [--assembly FOLDER] [--json]
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from nnstretch.cli.console import exit_status, print_answer, script_parser
from nnstretch.devices.engine.build.engine_library import SourceFile, engine_files, object_files
from nnstretch.devices.engine.build.instruction_sets import parse_target
from nnstretch.devices.engine.build.toolchains import ENGINE_FOLDER, make_toolchain
from nnstretch.errors import BuildError, UsageError

OLDEST_LLVM = 17
"""The first version with models of the Neoverse cores."""
ITERATIONS = 100
LEAST_FMAS = 8
"""Loops with fewer multiply-adds are not the kernels' tiles."""


@dataclass(frozen=True)
class Product:
    """How a kernel multiplies.

    Attributes:
        pattern: regular expression of its instructions, from their start.
        multiply_adds: of each.
        features: CPU features that its variant requires, as in the manifest of kernels.
        cores: models of the cores that it is for; all if there are none.
        times: iterations of the inner loop in one of the loop around it, which is analysed then; 0: the inner loop alone is.
    """

    pattern: str
    multiply_adds: int
    features: tuple[str, ...] = ()
    cores: tuple[str, ...] = ()
    times: int = 0


_SERVERS = ("neoverse-n2", "neoverse-v1", "neoverse-v2")
FLOATS = Product(r"fml[as]\s+v\d+\.4s", 4)
_HALVES = Product(r"fmla\s+v\d+\.8h", 8, ("asimdhp",), ("cortex-a55", "neoverse-n1", *_SERVERS))
_BFLOATS = Product(r"bfdot\s", 8, ("bf16",), _SERVERS)
_QUADS = Product(r"sdot\s", 16, ("asimddp",), ("cortex-a55", "neoverse-n1", *_SERVERS))
PRODUCTS: Mapping[str, Product] = {
    "any kernel, float16": _HALVES,
    "float16, 64 terms": replace(_HALVES, times=8),
    "float16, 128 terms": replace(_HALVES, times=16),
    "int8, long products": Product(r"sm(ul|la)l2?\s", 8, cores=("cortex-a55", "cortex-a72")),
    "int8 1×1, dot products": _QUADS,
    "int8 first layer, dot products": _QUADS,
    "int8 dense, dot products": _QUADS,
    "int8 depthwise, dot products": _QUADS,
    "int8, matrix products": Product(r"smmla\s", 32, ("i8mm", "asimddp"), _SERVERS),
    "bfloat16": Product(r"bfmmla\s", 16, ("bf16",), _SERVERS),
    "attention, bfloat16": _BFLOATS,
}
"""Products of the kernels that do not multiply float32."""

FUNCTIONS: Mapping[str, tuple[str, str]] = {
    "1×1": ("convolution/conv_direct.c", r"(p\d+v\d)_flat"),
    "any kernel": ("convolution/conv_direct.c", r"(p\d+v\d)_any"),
    "any kernel, float16": ("float16/conv_float16.c", r"(v\d)_whole"),
    "float16, 64 terms": ("float16/conv_float16.c", r"(v\d)_whole"),
    "float16, 128 terms": ("float16/conv_float16.c", r"(v\d)_whole"),
    "first layer": ("convolution/conv_planar.c", r"(p\d+v\d)_tile"),
    "Strassen product": ("convolution/conv_strassen.c", r"(p(\d+)v\d)_pair_\2"),
    "Winograd product": ("winograd/winograd.c", r"product_(\d+v\d)"),
    "Winograd product, int16 weights": ("winograd/winograd.c", r"product_(\d+s\d)"),
    "dense": ("convolution/dense.c", r"(r?\d*v\d)_rows"),
    "depthwise": ("convolution/depthwise.c", r"strips_(g1_\w+)"),
    "two channels": ("convolution/depthwise.c", r"strips_(g2_\w+)"),
    "pair, 1×1": ("convolution/pair.c", r"(p\d+v\d)_tiles"),
    "matrix product": ("attention/matmul.c", r"(r\d+v\d)_run"),
    "attention": ("attention/attention.c", r"(q\d+v\d)_tile"),
    "int8, long products": ("int8/rows_int8.c", r"sixteens_(v\d)"),
    "int8 1×1, dot products": ("int8/conv_int8.c", r"(p\d+v\d)_flat"),
    "int8 first layer, dot products": ("int8/planar_int8.c", r"(p\d+v\d)_pixels"),
    "int8 dense, dot products": ("int8/dense_int8.c", r"(v\d)_rows"),
    "int8 depthwise, dot products": ("int8/depthwise_int8.c", r"row_(\dx\d)"),
    "int8 depthwise": ("int8/depthwise_int8.c", r"row_(\dx\d)"),
    "int8, matrix products": ("int8/rows_int8.c", r"paired_(v\d)"),
    "bfloat16": ("bfloat16/conv_bfloat16.c", r"((?:pair|single)_\w+)"),
    "attention, bfloat16": ("bfloat16/attention_bfloat16.c", r"(q\d+v\d)_tile"),
}
"""Kernels by name: C file, and the functions with their tiles; the first group is the tile's name."""


@dataclass(frozen=True)
class Core:
    """A core.

    Attributes:
        name: as Arm writes it.
        model: llvm-mca's name of the model.
        fmas: multiply-adds of four floats per cycle.
        halves: whether the vector units have 64 bits.
        note: what the model stands for, where it is another core's.
    """

    name: str
    model: str
    fmas: int
    halves: bool = False
    note: str = ""


CORES = (
    Core("Cortex-A55", "cortex-a55", 1, halves=True),
    Core("Cortex-A72", "cortex-a72", 1),
    Core("Cortex-A76", "neoverse-n1", 2, note="the model of Neoverse N1, its server sibling; LLVM has none of its own"),
    Core("Neoverse N2", "neoverse-n2", 2),
    Core("Neoverse V1", "neoverse-v1", 4),
    Core("Cortex-X2", "neoverse-v2", 4, note="the model of Neoverse V2, its server sibling's successor"),
)


@dataclass(frozen=True)
class Loop:
    """The hot path of a kernel's inner loop.

    Attributes:
        kernel: key of FUNCTIONS.
        tile: such as p12v2.
        instructions: of one iteration, in order.
    """

    kernel: str
    tile: str
    instructions: tuple[str, ...]

    def count(self, pattern: str) -> int:
        """Instructions that match a regular expression from their start."""
        return sum(re.match(pattern, text) is not None for text in self.instructions)

    @property
    def product(self) -> Product:
        """How the kernel multiplies."""
        return PRODUCTS.get(self.kernel, FLOATS)

    @property
    def fmas(self) -> int:
        """Instructions that multiply and add."""
        return self.count(self.product.pattern)

    @property
    def loads(self) -> int:
        """Loads of registers, without prefetches."""
        return self.count(r"ld")

    @property
    def vector_slots(self) -> int:
        """Vector instructions and loads of 128-bit registers: an in-order core issues one of them per cycle."""
        wide = self.count(r"(ldu?r|ldp) q|ld1 ") + self.count(r"ldp q|ld1 .*, v\d+.*\}")
        arithmetic = sum(
            re.search(r"\bv\d+\.", text) is not None and not text.startswith(("ld", "st")) for text in self.instructions
        )
        return wide + arithmetic


def main(arguments: Sequence[str] | None = None) -> int:
    """Compiles, analyses and prints; returns the exit status."""
    parser = script_parser(__doc__)
    parser.add_argument("kernels", nargs="*", help=f"of {', '.join(FUNCTIONS)}, or a tile such as p12v2 (default: all)")
    parser.add_argument("--core", action="append", help="a core's name; may be given again (default: all)")
    parser.add_argument("--assembly", type=Path, help="folder for the hot paths as assembly files")
    options = parser.parse_args(arguments)
    return exit_status(lambda: run(options))


def run(options: argparse.Namespace) -> None:
    """Prints the table of all loops."""
    program, chosen = find_llvm_mca(), cores(options.core)
    disassembler = find_llvm_objdump(program)
    by_kernel = options.kernels and FUNCTIONS.keys() >= set(options.kernels)
    compiled_kernels = dict.fromkeys(options.kernels) if by_kernel else FUNCTIONS
    loops = [loop for loop in kernel_loops(compiled_kernels, disassembler) if is_asked(loop, options.kernels)]
    if not loops:
        raise UsageError(f"no kernel or tile is named {', '.join(options.kernels)}; there are {', '.join(FUNCTIONS)}")
    if options.assembly:
        options.assembly.mkdir(parents=True, exist_ok=True)
        for loop in loops:
            file = re.sub(r"\W+", "_", f"{loop.kernel} {loop.tile}") + ".s"
            (options.assembly / file).write_text("\n".join(loop.instructions) + "\n")
    answer = {
        "llvm": llvm_version(program),
        "cores": [asdict(core) for core in chosen],
        "loops": described(loops, program, chosen),
    }
    print_answer(answer, print_markdown, as_json=options.json)


def is_asked(loop: Loop, names: Sequence[str]) -> bool:
    """Whether a loop belongs to the kernels or tiles that were named."""
    return not names or loop.kernel in names or loop.tile in names


def cores(names: Sequence[str] | None) -> tuple[Core, ...]:
    """The cores with these names or models; all for None.

    Raises:
        UsageError: a name is unknown.
    """
    known = {key: core for core in CORES for key in (core.name.lower(), core.model)}
    if unknown := [name for name in names or () if name.lower() not in known]:
        raise UsageError(f"no core is named {unknown[0]}; there are {', '.join(core.name for core in CORES)}")
    return tuple(known[name.lower()] for name in names) if names else CORES


def find_llvm_mca() -> str:
    """The newest llvm-mca of this machine.

    Raises:
        UsageError: there is none of a version that has the models.
    """
    versions = range(99, OLDEST_LLVM - 1, -1)
    named = (shutil.which(f"llvm-mca-{version}") for version in versions)
    if found := next(filter(None, named), None):
        return found
    plain = shutil.which("llvm-mca")
    if plain and int(llvm_version(plain).partition(".")[0]) >= OLDEST_LLVM:
        return plain
    raise UsageError(
        f"llvm-mca {OLDEST_LLVM} or later is not there; install it (Debian, Ubuntu: apt-get install llvm-22, or llvm-19)"
    )


def find_llvm_objdump(llvm_mca: str) -> str:
    """The llvm-objdump of the same version, which lies beside llvm-mca.

    Raises:
        UsageError: it does not.
    """
    beside = Path(llvm_mca).with_name(Path(llvm_mca).name.replace("llvm-mca", "llvm-objdump"))
    if not beside.exists():
        raise UsageError(
            f"{beside.name} is not beside {llvm_mca}; install it (Debian, Ubuntu: it is in llvm-mca's package)"
        )
    return str(beside)


def llvm_version(program: str) -> str:
    """The version of an LLVM tool, such as 22.1.8."""
    text = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"LLVM version (\S+)", text)
    return found[1] if found else "0"


# ---- loops --------------------------------------------------------------------------------------------------------


def kernel_loops(kernels: Iterable[str], llvm_objdump: str) -> Iterator[Loop]:
    """The hot paths of kernels for aarch64, which are keys of FUNCTIONS."""
    chosen = [(kernel, *FUNCTIONS[kernel], PRODUCTS.get(kernel, FLOATS)) for kernel in kernels]
    variants = list(dict.fromkeys((file, product.features) for _, file, _, product in chosen))
    made = object_files([kernel_source(*variant) for variant in variants])
    found = {variant: functions(disassembled(path, llvm_objdump)) for variant, path in zip(variants, made, strict=True)}
    for kernel, file, pattern, product in chosen:
        for name, lines in found[file, product.features].items():
            tile = re.fullmatch(pattern, name)
            path = hot_path(lines, product.pattern, product.times) if tile else ()
            if tile and path:
                yield Loop(kernel, tile[1], path)


def kernel_source(file: str, features: Sequence[str]) -> SourceFile:
    """One of the engine's kernel files, compiled for CPUs with these features as in the runner for targets."""
    toolchain = make_toolchain(parse_target("aarch64-linux-musl"), features=features)
    (source,) = engine_files(toolchain, [ENGINE_FOLDER / "kernels" / file])
    return source


def disassembled(made: Path, llvm_objdump: str) -> str:
    """The instructions of an object file, with labels where branches go to.

    Raises:
        BuildError: llvm-objdump fails.
    """
    command = [llvm_objdump, "-d", "--no-show-raw-insn", "--no-leading-addr", "--symbolize-operands", str(made)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"llvm-objdump fails: {done.stderr.strip().partition(chr(10))[0]}")
    return done.stdout


def functions(assembly: str) -> dict[str, list[str]]:
    """Labels and instructions of every function, by its name.

    An instruction behind one that always jumps has a label, too: a jump by a table may go there.
    """
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for raw in assembly.splitlines():
        line = re.sub(r"<L(\d+)>", r".L\1", re.sub(r"\s+", " ", raw.partition("//")[0]).strip())
        if name := re.fullmatch(r"<(.+)>:", line):
            lines = found.setdefault(name[1], [])
        elif re.fullmatch(r"\.L\d+:", line):
            lines.append(line)
        elif line and not line.endswith(":") and "file format" not in line:
            if lines and re.match(r"(b|br|ret)( |$)", lines[-1]):
                lines.append(f".Lbehind{len(lines)}:")
            lines.append(re.sub(r" <[^>]*>", "", line))
    return found


def hot_path(lines: Sequence[str], product: str = FLOATS.pattern, times: int = 0) -> tuple[str, ...]:
    """One iteration of the innermost loop with the most multiply-adds, which `product` matches; empty if no loop has any.

    With `times`, one iteration of the loop around it, in which it runs so often.
    """
    if not lines:
        return ()
    following = successors(lines)
    order, backs = sorted_lines(following)
    multiplies = [re.match(product, line) is not None for line in lines]
    paths = {(begin, end): heaviest_path(lines, multiplies, following, order, begin, end) for end, begin in backs}

    def count(path: Sequence[int]) -> int:
        return sum(multiplies[index] for index in path)

    busy = {begin for (begin, _), path in paths.items() if count(path) >= LEAST_FMAS}
    innermost = [path for path in paths.values() if path and path[0] in busy and busy.isdisjoint(path[1:])]
    best = max(innermost, key=lambda path: (count(path), -len(path)), default=())
    if times:
        best = repeated(best, paths.values(), times)
    return tuple(lines[index] for index in best if not lines[index].endswith(":"))


def repeated(inner: tuple[int, ...], paths: Iterable[tuple[int, ...]], times: int) -> tuple[int, ...]:
    """The shortest path through a loop that has another one inside, whose path is repeated; empty if there is none."""
    around = min((path for path in paths if inner and inner[0] in path[1:]), key=len, default=())
    if not around:
        return ()
    begin = around.index(inner[0])
    return around[:begin] + inner * times + tuple(index for index in around[begin:] if index not in inner)


def successors(lines: Sequence[str]) -> list[tuple[int, ...]]:
    """The lines that may run after each line. A jump by a table may go to every label that no branch names."""
    places = {line[:-1]: index for index, line in enumerate(lines) if line.endswith(":")}
    targets = [places.get(_target(line) or "") for line in lines]
    unnamed = tuple(sorted(set(places.values()).difference(target for target in targets if target is not None)))
    found: list[tuple[int, ...]] = []
    for index, (line, target) in enumerate(zip(lines, targets, strict=True)):
        ends = re.match(r"(b|br|ret)( |$)", line) is not None or index + 1 == len(lines)
        after = unnamed if line.startswith("br ") else () if target is None else (target,)
        found.append((() if ends else (index + 1,)) + after)
    return found


def sorted_lines(following: Sequence[Sequence[int]]) -> tuple[list[int], list[tuple[int, int]]]:
    """Lines in topological order but for the branches that close loops, and these branches: from, to."""
    order: list[int] = []
    backs: list[tuple[int, int]] = []
    entered, left = {0}, set[int]()
    stack = [(0, iter(following[0]))]
    while stack:
        index, rest = stack[-1]
        after = next(rest, None)
        if after is None:
            stack.pop()
            left.add(index)
            order.append(index)
        elif after not in entered:
            entered.add(after)
            stack.append((after, iter(following[after])))
        elif after not in left:
            backs.append((index, after))
    return order[::-1], backs


def heaviest_path(
    lines: Sequence[str],
    multiplies: Sequence[bool],
    following: Sequence[Sequence[int]],
    order: Sequence[int],
    begin: int,
    end: int,
) -> tuple[int, ...]:
    """The lines from a loop's first to its last, on the path of most multiply-adds and fewest others."""
    place = {index: position for position, index in enumerate(order)}
    weights, before = {begin: (0, 0)}, dict[int, int]()
    for index in order[place[begin] : place[end] + 1]:
        if index not in weights:
            continue
        fmas, instructions = weights[index]
        here = (fmas + multiplies[index], instructions - (not lines[index].endswith(":")))
        for after in following[index]:
            if place[after] > place[index] and (after not in weights or here > weights[after]):
                weights[after], before[after] = here, index
    path = [end] if end in weights else []
    while path and path[-1] != begin:
        path.append(before[path[-1]])
    return tuple(reversed(path))


def _target(line: str) -> str | None:
    """The label that a branch names."""
    found = re.match(r"(?:b|b\.\w+|cbn?z|tbn?z) (?:.*, )?(\.L\w+)$", line)
    return found[1] if found else None


# ---- throughput ---------------------------------------------------------------------------------------------------


def described(loops: Sequence[Loop], program: str, chosen: Sequence[Core]) -> list[dict[str, Any]]:
    """The rows of the answer: instructions of every loop and its throughput on every core that it is for."""
    found = {core.name: throughputs_of_some(loops, program, core) for core in chosen}
    return [
        {
            "kernel": loop.kernel,
            "tile": loop.tile,
            "instructions": len(loop.instructions),
            "multiply_adds": loop.fmas,  # instructions
            "loads": loop.loads,
            "cores": {name: figures[number] for name, figures in found.items() if number in figures},
        }
        for number, loop in enumerate(loops)
    ]


def throughputs_of_some(loops: Sequence[Loop], program: str, core: Core) -> dict[int, dict[str, Any]]:
    """The throughputs of the loops that are for a core, by their numbers. Errors as for `throughputs`."""
    fitting = [
        number for number, loop in enumerate(loops) if core.model in loop.product.cores or not loop.product.cores
    ]
    found = throughputs([loops[number] for number in fitting], program, core) if fitting else []
    return dict(zip(fitting, found, strict=True))


def throughputs(loops: Sequence[Loop], program: str, core: Core) -> list[dict[str, Any]]:
    """Of every loop the cycles of an iteration on one core, the share of its multiply-add throughput, and what limits it.

    Raises:
        BuildError: llvm-mca fails.
    """
    command = [program, "-march=aarch64", f"-mcpu={core.model}", f"-iterations={ITERATIONS}", "-json"]
    text = "".join(
        f"# LLVM-MCA-BEGIN {number}\n{_straight(loop)}# LLVM-MCA-END {number}\n" for number, loop in enumerate(loops)
    )
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"llvm-mca fails for {core.name}: {done.stderr.strip().partition(chr(10))[0]}")
    regions = json.loads(done.stdout)["CodeRegions"]
    return [figures(loop, region["SummaryView"], core) for loop, region in zip(loops, regions, strict=True)]


def figures(loop: Loop, summary: Mapping[str, Any], core: Core) -> dict[str, Any]:
    """A loop's throughput on one core from llvm-mca's summary of it."""
    cycles = summary["TotalCycles"] / summary["Iterations"]
    issue = summary["TotaluOps"] / summary["Iterations"] / summary["DispatchWidth"]
    ideal, floats = loop.fmas / core.fmas, loop.fmas * loop.product.multiply_adds / (4 * core.fmas)
    if core.halves:
        issue = max(issue, loop.vector_slots)
        cycles = max(cycles, issue)
    return {
        "cycles": round(cycles, 2),
        "multiply_adds_per_cycle": round(loop.fmas * loop.product.multiply_adds / cycles, 3),
        "share": round(floats / cycles, 4),
        "limit": limit(cycles, ideal, issue, summary["BlockRThroughput"]),
    }


def _straight(loop: Loop) -> str:
    """A loop's assembly without its branches."""
    return "".join(f"{line}\n" for line in loop.instructions if not _target(line))


def limit(cycles: float, ideal: float, issue: float, block: float) -> str:
    """What limits a loop: multiply-adds, the issue of instructions, another unit, or waiting for results."""
    if cycles <= 1.03 * ideal:
        return "multiply-adds"
    bounds = {"multiply-adds": ideal, "issue": issue, "a unit": block}
    name = max(bounds, key=lambda key: bounds[key])
    return name if cycles <= 1.06 * bounds[name] else "latency"


def print_markdown(answer: Mapping[str, Any]) -> None:
    """Prints the answer as a table in Markdown."""
    names = [core["name"] for core in answer["cores"]]
    head = ["kernel", "tile", "multiply-adds", "loads", "others", *names]
    print("| " + " | ".join(head) + " |")
    print("|---|---|" + "--:|" * (len(head) - 2))
    for loop in answer["loops"]:
        others = loop["instructions"] - loop["multiply_adds"] - loop["loads"]
        shares = [f"{100 * loop['cores'][name]['share']:.0f} %" if name in loop["cores"] else "" for name in names]
        cells = [loop["kernel"], loop["tile"], loop["multiply_adds"], loop["loads"], others, *shares]
        print("| " + " | ".join(map(str, cells)) + " |")


if __name__ == "__main__":
    raise SystemExit(main())
