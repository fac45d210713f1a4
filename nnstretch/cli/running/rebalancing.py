"""What commands say of rebalancing, and the package that `run --rebalance -o` writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.cli.console import Reporter
from nnstretch.errors import UsageError
from nnstretch.report.tables.rebalancing import measured_again_table, rebalancing_text
from nnstretch.report.tables.text import size_text
from nnstretch.scheduler.plan.rebalanced import computing_processors

if TYPE_CHECKING:
    from nnstretch.cli.models.sources import Source
    from nnstretch.scheduler.runtime.base_session import Session

PACKAGE = ".nns"


def is_package_wanted(output: Path | None, rebalance: bool) -> bool:
    """Whether `-o` of `run` names a package, which only rebalancing writes."""
    return rebalance and output is not None and output.suffix == PACKAGE


def check_rebalance(targets: Sequence[str]) -> None:
    """Refuses rebalancing on other machines.

    Raises:
        UsageError: there is one.
    """
    if list(targets) != ["local"]:
        raise UsageError("--rebalance measures runs on this machine; leave it or --target out")


def rebalance_json(report: Reporter, session: Session) -> dict[str, Any]:
    """Shows a rebalancing line by line, and returns it as JSON; empty if there was none."""
    found = session.compiled.rebalancing
    if found is None:
        return {}
    report.show(*rebalancing_text(found, computing_processors(session.plan)))
    return {"rebalance": found.to_json()}


def measured_again_json(report: Reporter, source: Source, session: Session) -> dict[str, Any]:
    """Shows how long the plans of a package took when it was made and take here, and returns these times as JSON.

    Empty for a session that does not change between plans.
    """
    from nnstretch.scheduler.runtime.adaptive.calibration import known_milliseconds
    from nnstretch.scheduler.runtime.adaptive.session import AdaptiveSession

    if not isinstance(session, AdaptiveSession):
        return {}
    before = known_milliseconds(source.metadata)
    plans = {
        facts.name: {"before_ms": before.get(facts.name), "after_ms": facts.seconds * 1e3} for facts in session.facts
    }
    report.show(measured_again_table(plans))
    return {"rebalance": {"plans": plans}}


def save_package(report: Reporter, source: Source, session: Session, path: Path) -> dict[str, Any]:
    """Writes the package of a session, shows its size, and returns both as JSON."""
    session.save(path, {} if source.is_package else source.package_metadata(session.plan.macs))
    size = path.stat().st_size
    plans = getattr(session, "plans", [",".join(session.plan.processors)])
    report.show(f"{path}: for {' or '.join(plans)}, {size_text(size)}")
    return {"file": str(path), "bytes": size}
