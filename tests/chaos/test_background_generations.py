"""A few kills of `tests.chaos.background_generations`, which runs for longer by itself."""

import pytest
from tests.chaos.background_generations import run

pytestmark = pytest.mark.torch


def test_generations_outlive_their_worker_and_their_server() -> None:
    report = run(kills=2, server_every=2)
    assert not report.wrong, f"{report}\n" + "\n".join(report.wrong)
