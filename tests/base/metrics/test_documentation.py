"""docs/metrics.md lists every series, and none that does not exist."""

import re
from enum import StrEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.base.metrics.exposition import documented, server_metrics
from tests.fleet.saved_models.worlds import Server, States

from torchserve_py.apis.bookmarks.bookmark_counts import BookmarkCounts
from torchserve_py.base.causes import CloseReason, Reason
from torchserve_py.endpoints.connection_counts import ConnectionCounts
from torchserve_py.fleet.memory_budget.budget_metrics import BudgetMetrics
from torchserve_py.fleet.saved_models.fleet_member import show_member
from torchserve_py.fleet.saved_models.snapshot_writer import show_writer
from torchserve_py.ops.keys.usage_report import usage_families
from torchserve_py.ops.tls.renewal import expiry_family
from torchserve_py.tools.journal.journal_care import journal_families
from torchserve_py.versions.rollout.rollouts import Rollouts
from torchserve_py.versions.traffic.canaries import Canaries
from torchserve_py.versions.traffic.shadows import Shadows

DOCS = Path(__file__).parents[3] / "docs" / "metrics.md"


def test_every_family_is_documented_with_its_type() -> None:
    metrics = server_metrics()
    metrics.model("noop", "1.0")
    BudgetMetrics(metrics)
    ConnectionCounts(metrics)
    nobody: Any = None
    show_member(metrics, Server(States()).member)
    writer: Any = SimpleNamespace(is_behind=False)
    show_writer(metrics, writer)
    shadows = Shadows(nobody)
    families = (
        Canaries(nobody, nobody, nobody).decisions,
        Rollouts(nobody, nobody, nobody, 0.0).ended,
        *BookmarkCounts().families,
        *usage_families(),
    )
    metrics.add(expiry_family())
    for family in (*families, shadows.requests, shadows.seconds, *journal_families()):
        metrics.add(family)
    rows = re.findall(r"^\| (`[^|]+`) \| (counter|gauge|histogram) \|", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    in_docs = {name: kind for names, kind in rows for name in re.findall(r"`(\w+)`", names)}
    assert in_docs == {name: kind for name, (kind, _) in documented(metrics).items()}


@pytest.mark.parametrize(
    ("name", "reasons"), [("ts_sequences_closed_total", CloseReason), ("ts_scaling_total", Reason)]
)
def test_every_reason_is_documented(name: str, reasons: type[StrEnum]) -> None:
    (row,) = [line for line in DOCS.read_text(encoding="utf-8").splitlines() if f"`{name}`" in line]
    assert re.findall(r"`(\w+)`", row)[1:] == [reason.value for reason in reasons]
