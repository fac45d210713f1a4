"""`nnstretch doctor`: what works on this machine, what is missing, and what mends it."""

from __future__ import annotations

import typer

from nnstretch.cli.console import reporting
from nnstretch.cli.options import Json
from nnstretch.report.tables.text import plain_table


def doctor_command(json: Json = False) -> None:
    """Check this machine: Python, packages and extras, the engine, OpenCL, cores, and how steady measurements are.

    Every finding that needs something names the command that mends it. The exit status is 1 if commands would fail.

    Example: nnstretch doctor
    """
    with reporting(as_json=json) as report:
        from nnstretch.doctor.diagnosis import diagnose
        from nnstretch.doctor.finding import State

        with report.progress("Checking") as advance:
            found = diagnose(advance)
        shown = plain_table("", "what", "found; → what mends or improves it")
        marks = {State.OK: "ok", State.NOTE: "–", State.PROBLEM: "!!"}
        for finding in found:
            remedy = f"\n→ {finding.remedy}" if finding.remedy else ""
            shown.add_row(marks[finding.state], finding.subject, f"{finding.found}{remedy}")
        report.show(shown)
        problems = sum(finding.state is State.PROBLEM for finding in found)
        notes = sum(finding.state is State.NOTE for finding in found)
        report.note(f"{problems or 'no'} problem{'s' * (problems != 1)}, {notes or 'no'} note{'s' * (notes != 1)}")
        report.finish({"problems": problems, "findings": [vars(finding) for finding in found]})
    if problems:
        raise typer.Exit(1)
