"""`nnstretch zoo`: the reference networks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nnstretch.cli.console import Reporter, reporting
from nnstretch.cli.models.network_request import NetworkRequest
from nnstretch.cli.options import Json, check_format, check_writable, option, with_options
from nnstretch.errors import UsageError
from nnstretch.report.tables.text import count_text, plain_table


@with_options(NetworkRequest, parameter="network")
def zoo_command(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Network to show or export; without it all are listed.", show_default=False
        ),
    ] = None,
    output: Annotated[
        Path | None, option("--output -o FILE", "Write the network as this ONNX file; without it none is written.")
    ] = None,
    *,
    network: NetworkRequest,
    json: Json = False,
) -> None:
    """List the reference networks, show one, or export it as ONNX.

    Example: nnstretch zoo resnet50 -o resnet50.onnx
    """
    with reporting(as_json=json) as report:
        if name is None:
            if output is not None or network != NetworkRequest():
                raise UsageError("the options are for one network: name it, as in `nnstretch zoo resnet50`")
            _list(report)
            return
        from nnstretch.frontends.onnx_file import save
        from nnstretch.frontends.torch_module import export
        from nnstretch.zoo import entry

        entry(name)
        if output is not None:
            check_format(check_writable(output), "a network is", ".onnx")
        made = network.build(name)
        if output is not None:
            with report.progress("Exporting") as advance:
                advance(0, 1, name)
                save(export(made.module, made.example_input), output)
        size = "×".join(map(str, made.example_input.shape))
        report.show(
            f"{output or name}: input {size}, {count_text(made.macs)} MACs, {count_text(made.parameters)} parameters"
        )
        report.note(f"nothing was written; -o {name}.onnx writes the network" if output is None else "")
        report.finish({"file": output and str(output), "macs": made.macs, "params": made.parameters})


def _list(report: Reporter) -> None:
    from nnstretch import zoo as networks

    entries = [networks.entry(name) for name in networks.names()]
    shown = plain_table("name", "family", ">input", ">MACs", ">parameters", "paper", optional=("paper",))
    answer = []
    for one in entries:
        size = f"3×{one.input_size}×{one.input_size}"
        shown.add_row(one.name, one.family, size, count_text(one.macs), count_text(one.parameters), one.paper)
        about = {"name": one.name, "family": one.family, "input": [1, 3, one.input_size, one.input_size]}
        answer.append({**about, "macs": one.macs, "params": one.parameters, "paper": one.paper})
    report.show(shown)
    report.finish({"networks": answer})
