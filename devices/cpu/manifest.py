"""The manifest of the engine's kernels (`devices/engine/kernels/manifest.h`): their tiles, operands and parameters by name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from nnstretch.devices.base.routine import KernelCall, Operand
from nnstretch.devices.engine.build.instruction_sets import Isa
from nnstretch.devices.engine.build.toolchains import ENGINE_FOLDER
from nnstretch.graph.activation import Activation, float_bits

PATH = ENGINE_FOLDER / "kernels" / "manifest.h"

Values = int | Sequence[int] | Mapping[str, int]
"""The value of a parameter, of an array of parameters, or of a group by the names of its parameters."""

_MACRO = re.compile(r"#define (\w+?)(?:_([a-z]\w*))?\((.*?)\) ?(.*)")
_CONSTANT = re.compile(r"#define (\w+) (.+)")
_ROW = re.compile(r"(\w+)\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)\s*")
_OPERATIONS = {ast.LShift: int.__lshift__, ast.Sub: int.__sub__}


@dataclass(frozen=True)
class Parameter:
    """A parameter of a family, an array of parameters, or a group.

    Attributes:
        name: the parameter's.
        count: elements of an array; None for one parameter; 0 for one element per operand that is read.
        legal: smallest and largest legal value, or with `among` no more than these values.
        among: whether only the values in `legal` are legal.
        group: the parameters of a group, else none.
    """

    name: str
    count: int | None = None
    legal: tuple[int, ...] = ()
    among: bool = False
    group: tuple[Parameter, ...] = ()


@dataclass(frozen=True)
class Kernel:
    """A kernel of the engine.

    Attributes:
        name: as in packages and profiles.
        family: name of its family.
        dtype: type of the elements that it computes with.
        needs: CPU features that it needs beyond an instruction set's, "BASELINE" for none.
        where: vector hardware that it is made for.
        tile: columns of its row, by their names.
    """

    name: str
    family: str
    dtype: str
    needs: str
    where: str
    tile: Mapping[str, int | str]

    def is_in(self, isa: Isa) -> bool:
        """Whether engines built for `isa` have this kernel."""
        many_registers = isa.block == 16 or isa.architecture == "aarch64"
        return {
            "ANY": True,
            "REGISTERS_32": many_registers,
            "REGISTERS_16": not many_registers,
            "NEON": isa.architecture == "aarch64",
            "BLOCK_16": isa.block == 16,
            "BLOCK_OVER_4": isa.block > 4,
        }[self.where]

    def numbers(self, *columns: str) -> tuple[int, ...]:
        """The values of columns that hold numbers."""
        return tuple(int(self.tile[column]) for column in columns)


@dataclass(frozen=True)
class Family:
    """Kernels that share a parameter list and operands.

    Attributes:
        name: the family's.
        parameters: in the order in which kernels read them.
        reads: names of the operands that kernels read.
        optional: those of `reads` that may be absent.
        kernels: best first.
    """

    name: str
    parameters: tuple[Parameter, ...]
    reads: tuple[str, ...]
    optional: frozenset[str]
    kernels: tuple[Kernel, ...]

    def on(self, isa: Isa) -> tuple[Kernel, ...]:
        """The kernels that engines built for `isa` have, best first."""
        return tuple(kernel for kernel in self.kernels if kernel.is_in(isa))

    def kernel(self, **tile: int | str) -> str:
        """The name of the kernel whose tile has these columns."""
        names = [kernel.name for kernel in self.kernels if tile.items() <= kernel.tile.items()]
        if len(names) != 1:
            raise ValueError(f"{len(names)} kernels of {self.name} have the tile {tile}; one is wanted")
        return names[0]

    def limits(self, *path: str) -> tuple[int, ...]:
        """The legal values of a parameter (smallest and largest, or all of a few); first the groups that it is in."""
        *groups, name = path
        found = self.parameters
        for group in groups:
            found = _named(found, group).group
        return _named(found, name).legal

    def pack(self, values: Mapping[str, Values]) -> tuple[int, ...]:
        """The parameters of a step as the kernels read them.

        Args:
            values: of all parameters of the family, by name.

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
            raise ValueError(f"{owner}: {value!r} is no value of the parameter {parameter.name}")


@cache
def families() -> Mapping[str, Family]:
    """All families by name."""
    lists, constants = _read(PATH.read_text())
    names = [arguments[0] for _, arguments in _rows(lists["FAMILIES", ""])]
    return MappingProxyType({name: _family(name, lists, constants) for name in names})


@cache
def kernels() -> Mapping[str, Kernel]:
    """All kernels of all instruction sets by name."""
    return MappingProxyType({kernel.name: kernel for family in families().values() for kernel in family.kernels})


def family(name: str) -> Family:
    """The family of that name."""
    return families()[name]


def kernel_call(
    kernel: str,
    reads: tuple[Operand | None, ...],
    writes: tuple[Operand, ...],
    *,
    in_place: int | None = None,
    **parameters: Values,
) -> KernelCall:
    """A call of one of the engine's kernels with parameters by name.

    Raises:
        ValueError: the parameters are not those of the kernel's family.
    """
    values = family(kernels()[kernel].family).pack(parameters)
    return KernelCall(kernel, reads, writes, values, in_place=in_place)


def activation_parameters(activation: Activation) -> Mapping[str, int]:
    """The group `activation_parameters`."""
    return {"kind": int(activation.kind), "a": float_bits(activation.a), "b": float_bits(activation.b)}


_Lists = Mapping[tuple[str, str], str]


def _read(text: str) -> tuple[_Lists, Mapping[str, int]]:
    """The bodies of lists by kind and family (columns: what stands between their parentheses), and all constants."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    lists: dict[tuple[str, str], str] = {}
    constants: dict[str, int] = {"EACH_READ": 0}
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if macro := _MACRO.fullmatch(line.strip()):
            kind, name, arguments, body = macro.groups()
            lists[kind, name or ""] = arguments if kind == "COLUMNS" else body
        elif constant := _CONSTANT.fullmatch(line.strip()):
            constants[constant[1]] = _number(constant[2], constants)
        elif line.strip() and not line.startswith(("#ifndef", "#define NNS_MANIFEST_H", "#endif")):
            raise ValueError(f"{PATH}: cannot read {line.strip()!r}")
    return lists, constants


def _rows(body: str) -> Iterator[tuple[str, list[str]]]:
    """The rows of a list: what each is, and its arguments."""
    end = 0
    body = body.strip()
    for row in _ROW.finditer(body):
        if row.start() != end:
            break
        end = row.end()
        yield row[1], [argument.strip() for argument in re.split(r",(?![^(]*\))", row[2])]
    if end != len(body):
        raise ValueError(f"{PATH}: cannot read {body[end : end + 60]!r}")


def _number(text: str, constants: Mapping[str, int]) -> int:
    """The value of a number, a constant, or a difference or shift of such."""

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.Name):
            return constants[node.id]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
            return _OPERATIONS[type(node.op)](value(node.left), value(node.right))
        raise ValueError(f"{PATH}: {text!r} is no number")

    return value(ast.parse(text.strip(), mode="eval").body)


def _parameters(name: str, lists: _Lists, constants: Mapping[str, int]) -> Iterator[Parameter]:
    for kind, arguments in _rows(lists["PARAMETERS", name]):
        if kind == "G":
            group, parameter = arguments
            yield Parameter(parameter, group=tuple(_parameters(group, lists, constants)))
        elif kind in ("P", "A"):
            parameter, *count, legal, _ = arguments
            ((domain, values),) = _rows(legal)
            numbers = tuple(_number(value, constants) for value in values)
            yield Parameter(parameter, _number(count[0], constants) if count else None, numbers, domain == "ONE_OF")
        else:
            yield from _parameters(kind.removeprefix("PARAMETERS_"), lists, constants)


def _family(name: str, lists: _Lists, constants: Mapping[str, int]) -> Family:
    reads = [(kind, arguments[0].lower()) for kind, arguments in _rows(lists["READS", name])]
    columns = [column.strip() for column in lists.get(("COLUMNS", name), "").split(",") if column]
    found = []
    for _, (_stem, kernel, dtype, needs, where, *tile) in _rows(lists["KERNELS", name]):
        values = [int(value) if value.isdigit() else value for value in tile]
        row = MappingProxyType(dict(zip(columns, values, strict=True)))
        found.append(Kernel(kernel.strip('"'), name, dtype, needs, where, row))
    optional = frozenset(read for kind, read in reads if kind == "OPTIONAL")
    return Family(
        name, tuple(_parameters(name, lists, constants)), tuple(read for _, read in reads), optional, tuple(found)
    )
