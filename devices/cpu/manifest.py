"""The manifest of the engine's kernels (`devices/engine/kernels/manifest.h`): their tiles, operands and parameters by name."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType

from nnstretch.devices.base.routine import OUTPUT, KernelCall, Operand
from nnstretch.devices.engine.build.instruction_sets import Isa
from nnstretch.devices.engine.build.toolchains import ENGINE_FOLDER
from nnstretch.graph.activation import Activation, float_bits

PATH = ENGINE_FOLDER / "kernels" / "manifest.h"

Values = int | Sequence[int] | Mapping[str, int]
"""The value of a parameter, of an array of parameters, or of a group by the names of its parameters."""

_INCLUDE = re.compile(r'^#include "(manifest/\w+\.h)"$', re.MULTILINE)
_MACRO = re.compile(r"#define (\w+?)(?:_([a-z]\w*))?\((.*?)\) ?(.*)")
_CONSTANT = re.compile(r"#define (\w+) (.+)")
_ROW = re.compile(r"(\w+)\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)\s*")
_OPERATIONS = {ast.LShift: int.__lshift__, ast.Sub: int.__sub__}


def _has_32_registers(isa: Isa) -> bool:
    return isa.block == 16 or isa.architecture == "aarch64"


_WHERE: Mapping[str, Callable[[Isa], bool]] = {
    "ANY": lambda _: True,
    "REGISTERS_32": _has_32_registers,
    "REGISTERS_16": lambda isa: not _has_32_registers(isa),
    "NEON": lambda isa: isa.architecture == "aarch64",
    "BLOCK_16": lambda isa: isa.block == 16,
    "BLOCK_OVER_4": lambda isa: isa.block > 4,
}


@dataclass(frozen=True)
class Parameter:
    """A parameter of a family, an array of parameters, or a group.

    Attributes:
        name: name of the parameter, array or group.
        count: elements of an array; None for one parameter; 0 for one element per operand that is read.
        legal: smallest and largest legal value, or with `among` all legal values.
        among: whether `legal` lists all legal values.
        group: parameters of a group, else empty.
    """

    name: str
    count: int | None = None
    legal: tuple[int, ...] = ()
    among: bool = False
    group: tuple[Parameter, ...] = ()

    def takes(self, value: int) -> bool:
        """Whether a value of one parameter is legal."""
        return value in self.legal if self.among else self.legal[0] <= value <= self.legal[1]


@dataclass(frozen=True)
class Kernel:
    """A kernel of the engine.

    Attributes:
        name: name in packages and profiles.
        family: name of the family.
        where: vector hardware that it is written for.
        tile: values of the tile's columns, by name.
        narrow: whether it is for weights within ±64.
    """

    name: str
    family: str
    where: str
    tile: Mapping[str, int | str]
    narrow: bool = False

    def is_in(self, isa: Isa) -> bool:
        """Whether engines built for `isa` have this kernel."""
        return _WHERE[self.where](isa) and (not self.narrow or _WHERE["BLOCK_OVER_4"](isa))

    def numbers(self, *columns: str) -> tuple[int, ...]:
        """The values of columns that hold numbers."""
        return tuple(int(self.tile[column]) for column in columns)


@dataclass(frozen=True)
class Family:
    """Kernels that share a parameter list and operands.

    Attributes:
        name: name of the family.
        parameters: parameters in the order in which kernels read them.
        reads: names of the operands that kernels read.
        optional: names of the operands that may be absent.
        kernels: kernels of all instruction sets, best first.
    """

    name: str
    parameters: tuple[Parameter, ...]
    reads: tuple[str, ...]
    optional: frozenset[str]
    kernels: tuple[Kernel, ...]

    def on(self, isa: Isa) -> tuple[Kernel, ...]:
        """The kernels that engines built for `isa` have, best first."""
        return tuple(kernel for kernel in self.kernels if kernel.is_in(isa))

    def tiles(self, isa: Isa, first: str = "pixels", second: str = "vectors") -> tuple[tuple[int, int], ...]:
        """The distinct values of two columns among the kernels that engines built for `isa` have, best first."""
        found = (kernel.numbers(first, second) for kernel in self.on(isa))
        return tuple(dict.fromkeys((a, b) for a, b in found))

    def kernel(self, **tile: int | str) -> str:
        """The name of the only kernel, of those for any weights, whose tile has these values.

        Raises:
            ValueError: no kernel, or more than one, has them.
        """
        return self._kernel(tile, narrow=False)

    def narrow_kernel(self, **tile: int | str) -> str:
        """The same of the kernels for narrow weights."""
        return self._kernel(tile, narrow=True)

    def _kernel(self, tile: Mapping[str, int | str], *, narrow: bool) -> str:
        fitting = (kernel for kernel in self.kernels if kernel.narrow == narrow)
        names = [kernel.name for kernel in fitting if tile.items() <= kernel.tile.items()]
        if len(names) != 1:
            raise ValueError(f"{len(names)} kernels of {self.name} have the tile {tile}; expected one")
        return names[0]

    def limits(self, *path: str) -> tuple[int, ...]:
        """The legal values of a parameter: smallest and largest, or all.

        Args:
            path: names of the enclosing groups, outermost first, then the parameter's name.
        """
        *groups, name = path
        return _named(self._in(*groups), name).legal

    def takes(self, values: Mapping[str, int], *groups: str) -> bool:
        """Whether these values of parameters, by name, are legal; `groups` are the enclosing groups, outermost first."""
        return all(_named(self._in(*groups), name).takes(value) for name, value in values.items())

    def _in(self, *groups: str) -> tuple[Parameter, ...]:
        """The parameters of a group in groups, outermost first; those of the family without any."""
        found = self.parameters
        for group in groups:
            found = _named(found, group).group
        return found

    def pack(self, values: Mapping[str, Values]) -> tuple[int, ...]:
        """The parameters of a step in the order in which kernels read them.

        Args:
            values: values of all parameters of the family, by name.

        Raises:
            ValueError: a parameter is missing, unknown, or of the wrong kind or length.
        """
        return tuple(_packed(self.name, self.parameters, values))


def _named(parameters: Sequence[Parameter], name: str) -> Parameter:
    return next(parameter for parameter in parameters if parameter.name == name)


def _packed(owner: str, parameters: Sequence[Parameter], values: Mapping[str, Values]) -> Iterator[int]:
    names = [parameter.name for parameter in parameters]
    if len(values) != len(names) or not all(name in values for name in names):
        raise ValueError(f"{owner} has the parameters {', '.join(names)}, not {', '.join(values)}")
    for parameter in parameters:
        value = values[parameter.name]
        if parameter.group and isinstance(value, Mapping):
            yield from _packed(parameter.name, parameter.group, value)
        elif (
            parameter.count is not None
            and isinstance(value, Sequence)
            and len(value) == (parameter.count or len(value))
        ):
            yield from value
        elif parameter.count is None and not parameter.group and not isinstance(value, Sequence | Mapping):
            yield value
        else:
            raise ValueError(f"{owner}: the parameter {parameter.name} cannot be {value!r}")


@cache
def families() -> Mapping[str, Family]:
    """All families by name."""
    return read_families(manifest_text())


def manifest_text() -> str:
    """The text of the manifest, with the files that it includes in their places."""
    return _INCLUDE.sub(lambda found: (PATH.parent / found[1]).read_text(), PATH.read_text())


@cache
def kernels() -> Mapping[str, Kernel]:
    """All kernels of all instruction sets by name."""
    return MappingProxyType({kernel.name: kernel for family in families().values() for kernel in family.kernels})


def family(name: str) -> Family:
    """The family with this name."""
    return families()[name]


def kernel_call(
    kernel: str, reads: tuple[Operand | None, ...], *, in_place: int | None = None, **parameters: Values
) -> KernelCall:
    """A call of an engine kernel that writes output 0, with parameters by name.

    Raises:
        ValueError: the parameters are not those of the kernel's family.
    """
    values = family(kernels()[kernel].family).pack(parameters)
    return KernelCall(kernel, reads, (OUTPUT,), values, in_place=in_place)


def activation_parameters(activation: Activation) -> Mapping[str, int]:
    """The group `activation_parameters`."""
    return {"kind": int(activation.kind), "a": float_bits(activation.a), "b": float_bits(activation.b)}


@dataclass(frozen=True)
class _Row:
    """A row of a list, such as `P(rows, RANGE(1, 8), BETWEEN(1, 5))`."""

    text: str
    kind: str
    arguments: list[str]


_Lists = Mapping[tuple[str, str], str]


def _malformed(text: str, problem: str) -> ValueError:
    return ValueError(f"{PATH}: {text}: {problem}")


def read_families(text: str) -> Mapping[str, Family]:
    """Families by name, from the text of a manifest.

    Raises:
        ValueError: a list is missing or a row is malformed; the message names the file and the row.
    """
    lists, constants = _read(text)
    return MappingProxyType({name: _family(name, lists, constants) for name in _family_names("", lists)})


def _family_names(folder: str, lists: _Lists) -> Iterator[str]:
    """Names of the families of a folder; of all folders if `folder` is empty."""
    for row in _rows(_list(lists, "FAMILIES", folder)):
        match row.kind, row.arguments:
            case "F", [family]:
                yield family
            case kind, ["F"] if kind.startswith("FAMILIES_"):
                yield from _family_names(kind.removeprefix("FAMILIES_"), lists)
            case _:
                raise _malformed(row.text, "expected F(family) or FAMILIES_folder(F)")


def _read(text: str) -> tuple[_Lists, Mapping[str, int]]:
    """Bodies of the lists by kind and family (of COLUMNS: the text between the parentheses), and all constants."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    lists: dict[tuple[str, str], str] = {}
    constants: dict[str, int] = {"EACH_READ": 0}
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if macro := _MACRO.fullmatch(line.strip()):
            kind, name, arguments, body = macro.groups()
            lists[kind, name or ""] = arguments if kind == "COLUMNS" else body
        elif constant := _CONSTANT.fullmatch(line.strip()):
            constants[constant[1]] = _number(constant[2], constants, line.strip())
        elif line.strip() and not line.startswith(("#ifndef", "#define NNS_MANIFEST_H", "#endif")):
            raise _malformed(line.strip(), "expected the #define of a list or of a number")
    return lists, constants


def _list(lists: _Lists, kind: str, name: str) -> str:
    if (kind, name) not in lists:
        raise _malformed(f"{kind}_{name}" if name else kind, "this list is missing")
    return lists[kind, name]


def _rows(body: str) -> Iterator[_Row]:
    end = 0
    body = body.strip()
    for row in _ROW.finditer(body):
        if row.start() != end:
            break
        end = row.end()
        arguments = [argument.strip() for argument in re.split(r",(?![^(]*\))", row[2])]
        yield _Row(row[0].strip(), row[1], arguments)
    if end != len(body):
        raise _malformed(body[end : end + 60], "expected NAME(arguments)")


def _number(text: str, constants: Mapping[str, int], row: str) -> int:
    """The value of a number, a constant, or a difference or shift of such; `row` is what an error names."""

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.Name) and node.id in constants:
            return constants[node.id]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
            return _OPERATIONS[type(node.op)](value(node.left), value(node.right))
        raise _malformed(row, f"{text!r} is neither a number nor a constant of this file")

    try:
        return value(ast.parse(text.strip(), mode="eval").body)
    except SyntaxError:
        raise _malformed(row, f"{text!r} is neither a number nor a constant of this file") from None


def _parameters(name: str, lists: _Lists, constants: Mapping[str, int]) -> Iterator[Parameter]:
    for row in _rows(_list(lists, "PARAMETERS", name)):
        match row.kind, row.arguments:
            case "G", [group, parameter]:
                yield Parameter(parameter, group=tuple(_parameters(group, lists, constants)))
            case ("P", [parameter, legal, _]) | ("A", [parameter, _, legal, _]):
                count = _number(row.arguments[1], constants, row.text) if row.kind == "A" else None
                domain, numbers = _legal(legal, constants, row.text)
                yield Parameter(parameter, count, numbers, domain == "ONE_OF")
            case kind, ["P", "A", "G"] if kind.startswith("PARAMETERS_"):
                yield from _parameters(kind.removeprefix("PARAMETERS_"), lists, constants)
            case _:
                expected = (
                    "P(name, legal, draw), A(name, count, legal, draw), G(group, name) or PARAMETERS_list(P, A, G)"
                )
                raise _malformed(row.text, f"expected {expected}")


def _legal(text: str, constants: Mapping[str, int], row: str) -> tuple[str, tuple[int, ...]]:
    """Kind and numbers of legal values: RANGE(low, high) or ONE_OF(…)."""
    domain = re.fullmatch(r"(RANGE|ONE_OF)\((.*)\)", text)
    values = domain[2].split(",") if domain else []
    if not domain or (domain[1] == "RANGE" and len(values) != 2):
        raise _malformed(row, f"the legal values {text!r} are neither RANGE(low, high) nor ONE_OF(…)")
    return domain[1], tuple(_number(value.strip(), constants, row) for value in values)


def _reads(name: str, lists: _Lists) -> Iterator[tuple[str, bool]]:
    """Names of the operands that kernels read, and whether each is optional."""
    for row in _rows(_list(lists, "READS", name)):
        match row.kind, row.arguments:
            case (("REQUIRED" | "OPTIONAL"), [operand]):
                yield operand.lower(), row.kind == "OPTIONAL"
            case kind, ["REQUIRED", "OPTIONAL"] if kind.startswith("READS_"):
                yield from _reads(kind.removeprefix("READS_"), lists)
            case _:
                raise _malformed(row.text, "expected REQUIRED(name), OPTIONAL(name) or READS_list(REQUIRED, OPTIONAL)")


def _kernels(name: str, lists: _Lists) -> Iterator[Kernel]:
    columns = [column.strip() for column in lists.get(("COLUMNS", name), "").split(",") if column]
    expected = ", ".join(("stem, name, where", *columns))
    for row in _rows(_list(lists, "KERNELS", name)):
        if row.kind != "K" or len(row.arguments) != 3 + len(columns):
            raise _malformed(row.text, f"expected K({expected})")
        _stem, kernel, where, *tile = row.arguments
        if where not in _WHERE:
            raise _malformed(row.text, f"{where!r} is none of {', '.join(_WHERE)}")
        values = [int(value) if value.isdigit() else value for value in tile]
        yield Kernel(kernel.strip('"'), name, where, MappingProxyType(dict(zip(columns, values, strict=True))))


def _family(name: str, lists: _Lists, constants: Mapping[str, int]) -> Family:
    reads = dict(_reads(name, lists))
    optional = frozenset(read for read, is_optional in reads.items() if is_optional)
    parameters, found = tuple(_parameters(name, lists, constants)), tuple(_kernels(name, lists))
    if name in (row.arguments[0] for row in _rows(lists.get(("NARROW", ""), ""))):
        found += tuple(replace(kernel, name=f"{kernel.name}_narrow", narrow=True) for kernel in found)
    return Family(name, parameters, tuple(reads), optional, found)
