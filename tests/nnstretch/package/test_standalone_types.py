"""Standalone models whose inputs and outputs are of other types than float32."""

from __future__ import annotations

import ctypes
import shutil
import struct
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from nnstretch.compiler.compile import plan_model
from nnstretch.compiler.processors import build_processors
from nnstretch.devices.engine.build.instruction_sets import local_isa, parse_target
from nnstretch.devices.engine.build.standalone import EXAMPLE, HEADER, LIBRARY, Binaries, build_binaries, header
from nnstretch.errors import FeedError, FileError, PackageError, UsageError
from nnstretch.frontends.tflite_file import load_tflite
from nnstretch.graph.dtypes import ELEMENT_TYPES
from nnstretch.graph.metadata import PLACEMENT_KEY
from nnstretch.package.standalone import check, write_model_file
from nnstretch.package.standalone_head import read_ends, read_head
from nnstretch.package.standalone_session import StandaloneSession
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.runtime.session import PlanSession
from tests.kits.graphs.graphs import RandomNetwork
from tests.kits.graphs.typed_networks import NATIVE, NETWORKS, SHAPE, all_types, bytes_of_an_image
from tests.nnstretch.frontends.test_tflite_file import quantised_file
from tests.nnstretch.package.test_standalone import refuses, run

WORDS_AT = 64
N_TENSORS, FIRST_TENSOR = 3, 5
"""Words with the number of inputs, and of the first input."""


@dataclass(frozen=True)
class Case:
    """A model file with inputs, and the outputs of the session of the same plan."""

    model: Path
    compiled: Compiled
    feeds: Mapping[str, np.ndarray]
    outputs: Sequence[np.ndarray]


def make_case(path: Path, graph: ir.Model, feeds: Mapping[str, np.ndarray], processors: str = "cpu:0") -> Case:
    compiled = plan_model(graph, build_processors(processors), tune=False)
    write_model_file(compiled, path.stem, local_isa(), path)
    with PlanSession(compiled) as session:
        return Case(path, compiled, feeds, session.run(None, feeds))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("typed")


@pytest.fixture(scope="module", params=[*NETWORKS, "a TFLite file"])
def case(request: pytest.FixtureRequest, folder: Path) -> Case:
    name = str(request.param)
    path = folder / f"{name.replace(' ', '_')}.nnm"
    if name in NETWORKS:
        network = NETWORKS[name]()
        return make_case(path, network.graph(), network.feeds)
    x = np.random.default_rng(0).integers(-128, 128, (1, 4, 6, 6)).astype(np.int8)
    return make_case(path, load_tflite(quantised_file(folder / "int8.tflite")), {"x": x})


@pytest.fixture(scope="module")
def image(folder: Path) -> Case:
    network = bytes_of_an_image()
    return make_case(folder / "image.nnm", network.graph(), network.feeds)


@pytest.fixture(scope="module")
def binaries() -> Binaries:
    return build_binaries(parse_target("local"))


def assert_equal(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> None:
    assert [(y.shape, y.dtype) for y in found] == [(y.shape, y.dtype) for y in wanted]
    assert [y.tobytes() for y in found] == [y.tobytes() for y in wanted]


# -- what is computed -----------------------------------------------------------------------------------------------


def test_sessions_compute_what_those_of_the_plan_do(case: Case) -> None:
    assert not case.compiled.plan.fallback_layers
    with StandaloneSession(case.model) as session:
        assert_equal(session.run(None, case.feeds), case.outputs)
        with PlanSession(case.compiled) as other:
            assert (session.get_inputs(), session.get_outputs()) == (other.get_inputs(), other.get_outputs())


def test_the_executable_reads_and_writes_arrays_of_the_types(case: Case, binaries: Binaries, tmp_path: Path) -> None:
    given = [tmp_path / f"x{i}.npy" for i in range(len(case.feeds))]
    made = [tmp_path / f"y{i}.npy" for i in range(len(case.outputs))]
    for path, array in zip(given, case.feeds.values(), strict=True):
        np.save(path, bits(array))
    named = [word for path in made for word in ("-o", path)]
    run(binaries.executable, "-m", case.model, *given, *named, "-n", "1")
    assert_equal([np.load(path) for path in made], [bits(y) for y in case.outputs])


def test_the_executable_reads_and_writes_raw_numbers(image: Case, binaries: Binaries, tmp_path: Path) -> None:
    image.feeds["x"].tofile(tmp_path / "x")
    done = run(binaries.executable, "-m", image.model, tmp_path / "x", "-o", tmp_path / "y", "-n", "0")
    assert (tmp_path / "y").read_bytes() == image.outputs[0].tobytes()
    assert "input x: uint8 1x3x12x10\noutput y: float32 1x8x6x5\n" in done.stdout


def test_arrays_whose_bytes_have_an_order(image: Case, binaries: Binaries, tmp_path: Path) -> None:
    """As some programs write them."""
    np.save(tmp_path / "x.npy", image.feeds["x"])
    content = (tmp_path / "x.npy").read_bytes()
    assert content.count(b"'|u1'") == 1
    (tmp_path / "x.npy").write_bytes(content.replace(b"'|u1'", b"'<u1'"))
    run(binaries.executable, "-m", image.model, tmp_path / "x.npy", "-o", tmp_path / "y", "-n", "0")
    assert (tmp_path / "y").read_bytes() == image.outputs[0].tobytes()
    for cut in (b"'", b"'<", b"'|u", b"|u1'", b""):
        (tmp_path / "x.npy").write_bytes(content.replace(b"'|u1'", cut.ljust(5)))
        refuses(binaries.executable, "-m", image.model, tmp_path / "x.npy", words=["numbers of type"])


def bits(array: np.ndarray) -> np.ndarray:
    """An array as .npy files have it: NumPy has no bfloat16."""
    return array.view(np.uint16) if array.dtype == ml_dtypes.bfloat16 else array


def test_the_executable_makes_inputs_of_all_types(folder: Path, binaries: Binaries, tmp_path: Path) -> None:
    """Noise, all bytes, and zeros where a number may be an index."""
    network = all_types()
    case = make_case(folder / "all.nnm", network.graph(), network.feeds)
    made = [tmp_path / f"{name}.npy" for name in NATIVE]
    named = [word for path in made for word in ("-o", path)]
    lines = run(binaries.executable, "-m", case.model, *named, "-n", "0").stdout.splitlines()
    for name, path in zip(NATIVE, made, strict=True):
        y = np.load(path)
        y = y.view(ml_dtypes.bfloat16) if name == "bfloat16" else y
        kind = ELEMENT_TYPES[name].kind
        assert f"input {name}: {name} {'x'.join(map(str, SHAPE))}" in lines
        (said,) = (line for line in lines if line.startswith(f"output {name}_turned: from"))
        least, most = (float(word) for word in (said.split()[3], said.split()[7]))
        assert (least, most) == pytest.approx((float(y.min()), float(y.max())), rel=1e-5)
        assert (most > least) == (kind in ("float", "bool") or ELEMENT_TYPES[name].bytes == 1)
        assert -1 <= least <= 1 or kind == "int"


def compiled_program(folder: Path, binaries: Binaries, source: str, interface: str) -> Path:
    """A program in C with the library beside it."""
    if not shutil.which("gcc"):
        pytest.skip("gcc is not there")
    (folder / HEADER).write_text(interface)
    (folder / "program.c").write_text(source)
    shutil.copy(binaries.library, folder / LIBRARY)
    flags = ("-Wall", "-Wextra", "-Werror", "-pedantic", "-std=c99", "-L.", "-lnnstretch", "-Wl,-rpath,$ORIGIN")
    subprocess.run(["gcc", "program.c", "-o", "program", *flags], cwd=folder, check=True)
    return folder / "program"


def test_programs_of_an_older_header_run(image: Case, binaries: Binaries, tmp_path: Path) -> None:
    """In theirs, the description of a tensor ends with the count."""
    now = header()
    before = now[: now.index("    int32_t dtype; ")] + now[now.index("} nns_tensor;") :]
    source = EXAMPLE.read_text()
    for word, instead in {
        "calloc((size_t)tensor->bytes, 1)": "calloc((size_t)tensor->count, sizeof(float))",
        "bytes = (size_t)tensor->bytes": "bytes = (size_t)tensor->count * (writing ? 4 : 1)",
        "{input, x->bytes}": "{input, x->count}",
        "{output, y->bytes}": "{output, y->count * 4}",
        "switch (tensor->dtype)": "(void)tensor; switch (NNS_FLOAT32)",
    }.items():
        assert source.count(word) == 1
        source = source.replace(word, instead)
    program = compiled_program(tmp_path, binaries, source, before)
    image.feeds["x"].tofile(tmp_path / "x")
    run(program, image.model, tmp_path / "x", tmp_path / "y")
    assert (tmp_path / "y").read_bytes() == image.outputs[0].tobytes()


def test_the_example_reads_quantised_outputs(folder: Path, binaries: Binaries, tmp_path: Path) -> None:
    network = NETWORKS["int8 ends"]()
    case = make_case(folder / "ends.nnm", network.graph(), network.feeds)
    program = compiled_program(tmp_path, binaries, EXAMPLE.read_text(), header())
    case.feeds["x"].tofile(tmp_path / "x")
    done = run(program, case.model, tmp_path / "x", tmp_path / "y")
    (y,) = case.outputs
    assert (tmp_path / "y").read_bytes() == y.tobytes()
    assert f"is largest at {y.argmax()}, {y.max()}\n" in done.stdout


@pytest.mark.opencl
def test_a_device_computes_of_bytes(folder: Path) -> None:
    """The CPU makes numbers of them, and the device computes with these."""
    network = bytes_of_an_image()
    for node in network.proto.graph.node:
        if node.op_type in ("Conv", "Relu"):
            node.metadata_props.add(key=PLACEMENT_KEY, value="1")
    case = make_case(folder / "device.nnm", network.graph(), network.feeds, "cpu:0,opencl:0@1")
    assert any(step.kind == "opencl" for step in case.compiled.plan.steps)
    assert read_head(case.model).format == 5
    with StandaloneSession(case.model, trusted_sources=True) as session:
        assert_equal(session.run(None, case.feeds), case.outputs)


# -- formats --------------------------------------------------------------------------------------------------------


def test_files_have_the_lowest_format_that_can_hold_them(image: Case, tmp_path: Path) -> None:
    """So that older libraries read those of float32, which have no types."""
    plain = make_case(tmp_path / "plain.nnm", RandomNetwork(0, 0).graph(), {"x": RandomNetwork(0, 0).input})
    assert (read_head(plain.model).format, read_head(image.model).format) == (2, 4)
    words = words_of(plain.model.read_bytes())
    shapes = [t.type.shape for t in (*plain.compiled.plan.inputs, *plain.compiled.plan.outputs)]
    described = [word for shape in shapes for word in (len(shape), *shape)]
    assert words[FIRST_TENSOR : FIRST_TENSOR + len(described)] == described


def test_a_file_that_names_the_type_float32_is_read(tmp_path: Path) -> None:
    network = RandomNetwork(0, 0)
    plain = make_case(tmp_path / "plain.nnm", network.graph(), {"x": network.input})
    content = plain.model.read_bytes()
    n_words, _, start = struct.unpack_from("<3q", content, 24)
    words, rest = words_of(content), content[WORDS_AT + 8 * n_words : start]
    at, count = FIRST_TENSOR, words[N_TENSORS] + words[N_TENSORS + 1]
    for _ in range(count):
        words.insert(at, ELEMENT_TYPES["float32"].code)
        at += 2 + words[at + 1]
    typed = bytearray(
        content[:WORDS_AT] + struct.pack(f"<{len(words)}q", *words) + rest[: start - WORDS_AT - 8 * len(words)]
    )
    struct.pack_into("<q", typed, 8, 4)
    struct.pack_into("<q", typed, 24, len(words))
    path = mended(tmp_path / "typed.nnm", typed + content[start:])
    assert read_ends(path) == read_ends(plain.model)
    with StandaloneSession(path) as session:
        assert_equal(session.run(None, plain.feeds), plain.outputs)


def words_of(content: bytes) -> list[int]:
    (count,) = struct.unpack_from("<q", content, 24)
    return list(struct.unpack_from(f"<{count}q", content, WORDS_AT))


def mended(path: Path, content: bytearray) -> Path:
    """Writes a model file with a checksum that fits."""
    start = struct.unpack_from("<q", content, 40)[0]
    struct.pack_into("<Q", content, 56, 0)
    struct.pack_into("<Q", content, 56, check(content[:start], bytes(content[start:])))
    path.write_bytes(content)
    return path


def changed(case: Case, path: Path, **words: int) -> Path:
    """A copy of a model with other words, by their numbers as `w5=14`, and a checksum that fits."""
    content = bytearray(case.model.read_bytes())
    for name, value in words.items():
        struct.pack_into("<q", content, WORDS_AT + 8 * int(name[1:]), value)
    return mended(path, content)


# -- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, -1, 14, 1 << 40, -(1 << 63), (1 << 32) + 6])
def test_types_that_there_are_not(image: Case, binaries: Binaries, tmp_path: Path, code: int) -> None:
    path = changed(image, tmp_path / "a.nnm", w5=code)
    refuses(binaries.executable, "-m", path, words=["damaged", f"the type of a tensor is {code}; it must be in 1..13"])
    with pytest.raises(PackageError, match="damaged"):
        read_ends(path)


@pytest.mark.parametrize(
    "words",
    [
        {"w5": 4, "w7": 1 << 62},  # float64, of more bytes than there are
        {"w5": 11, "w7": (1 << 63) - 1, "w8": 2},
        {"w6": -1},
        {"w6": 17},
        {"w6": 1 << 62},
        {"w7": 0},
    ],
)
def test_sizes_that_cannot_be(image: Case, binaries: Binaries, tmp_path: Path, words: Mapping[str, int]) -> None:
    refuses(binaries.executable, "-m", changed(image, tmp_path / "a.nnm", **words), words=["damaged"])


def test_inputs_with_fewer_bytes_than_steps_read(image: Case, binaries: Binaries, tmp_path: Path) -> None:
    refuses(binaries.executable, "-m", changed(image, tmp_path / "a.nnm", w7=1, w8=1), words=["buffer"])


@pytest.mark.parametrize("words", [{"w3": -1}, {"w3": 99}, {"w4": 1 << 62}, {"w6": 1 << 62}, {"w6": -1}])
def test_descriptions_that_cannot_be_read(image: Case, tmp_path: Path, words: Mapping[str, int]) -> None:
    with pytest.raises(PackageError, match="does not describe its inputs and outputs"):
        read_ends(changed(image, tmp_path / "a.nnm", **words))


def test_files_whose_description_is_not_there(image: Case, tmp_path: Path) -> None:
    path = tmp_path / "a.nnm"
    whole = image.model.read_bytes()
    for content, said in ((whole[:100], "damaged"), (whole[:64], "damaged"), (whole[:63], "no model file"),
                          (whole[:8] + struct.pack("<q", 18) + whole[16:], "has format 18")):  # fmt: skip
        path.write_bytes(content)
        with pytest.raises(PackageError, match=said):
            read_ends(path)
    with pytest.raises(FileError, match="cannot read"):
        read_ends(tmp_path / "none.nnm")


def test_types_that_no_kernel_has(image: Case, tmp_path: Path) -> None:
    plan = image.compiled.plan
    (x,) = plan.inputs
    strings = replace(plan, inputs=(replace(x, type=replace(x.type, dtype="string")),))
    with pytest.raises(UsageError, match="x is string, which native kernels do not have"):
        write_model_file(replace(image.compiled, plan=strings), "a", local_isa(), tmp_path / "a")


@pytest.mark.parametrize(
    ("convert", "found"),
    [
        (lambda x: x.astype(np.float32), "'<f4'"),
        (lambda x: x.view(np.int8), "'|i1'"),
        (lambda x: x.astype(np.bool_), "'|b1'"),
        (lambda x: x.astype(">u2"), "'>u2'"),
        (lambda x: x.astype([("a", np.uint8)]), "[('a'"),
    ],
)
def test_arrays_of_other_types(
    image: Case, binaries: Binaries, tmp_path: Path, convert: Callable[[np.ndarray], np.ndarray], found: str
) -> None:
    x = image.feeds["x"]
    np.save(tmp_path / "x.npy", convert(x))
    said = f"numbers of type {found}, and input x takes uint8, which is '|u1' there; convert them"
    refuses(binaries.executable, "-m", image.model, tmp_path / "x.npy", words=[said])


def test_raw_files_of_other_sizes(image: Case, binaries: Binaries, tmp_path: Path) -> None:
    x = image.feeds["x"]
    for content in (x.tobytes()[:-1], x.tobytes() + b"x", x.astype(np.float32).tobytes()):
        (tmp_path / "x").write_bytes(content)
        size = "less" if len(content) < x.nbytes else "more"
        words = [f"has {size} than the 360 bytes of the 360 uint8 numbers of input x"]
        refuses(binaries.executable, "-m", image.model, tmp_path / "x", words=words)


def test_feeds_of_other_types(image: Case) -> None:
    x = image.feeds["x"]
    with StandaloneSession(image.model) as session:
        for wrong in (x.astype(np.float32), x.view(np.int8)):
            with pytest.raises(FeedError, match=r"input 'x' is .*; the model wants uint8"):
                session.run(None, {"x": wrong})


def test_the_library_names_the_type_of_wrong_sizes(image: Case, tmp_path: Path) -> None:
    library = ctypes.CDLL(str(build_binaries(parse_target("local")).library))
    model, text = ctypes.c_void_p(), ctypes.create_string_buffer(256)
    status = library.nns_model_load(str(image.model).encode(), None, ctypes.byref(model), text, ctypes.c_size_t(256))
    assert status == 0
    arrays = [(ctypes.c_int64 * 2)(0, size) for size in (4 * 360, 4 * 240)]
    assert library.nns_model_run_sized(model, arrays[0], 1, arrays[1], 1, text, ctypes.c_size_t(256)) != 0
    assert text.value.decode() == "input x has 1440 bytes and needs 360: 360 uint8 numbers"
    library.nns_model_free(model)


def test_the_library_knows_its_types() -> None:
    library = ctypes.CDLL(str(build_binaries(parse_target("local")).library))
    library.nns_dtype_name.restype = ctypes.c_char_p
    library.nns_dtype_bytes.restype = ctypes.c_int64
    for name in NATIVE:
        element = ELEMENT_TYPES[name]
        assert (library.nns_dtype_name(element.code), library.nns_dtype_bytes(element.code)) == (
            name.encode(),
            element.bytes,
        )
    for code in (0, -1, 14, 1 << 30):
        assert (library.nns_dtype_name(code), library.nns_dtype_bytes(code)) == (None, 0)
