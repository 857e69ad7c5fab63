"""Which responses in the background have not ended, as a server that starts finds them."""

import logging
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.endpoints.conftest import Start
from tests.endpoints.fake_serving import FakeModel, FakeServing

from torchserve_py.apis.openai import owned_ids
from torchserve_py.apis.openai.background_runs import continue_runs
from torchserve_py.apis.openai.unfinished_runs import UnfinishedRuns


async def test_they_are_found_in_the_order_in_which_they_began(tmp_path: Path) -> None:
    runs = UnfinishedRuns(tmp_path)
    assert await runs.oldest_first() == []
    assert not [*tmp_path.iterdir()], "a server without such responses makes no folder"
    for age, name in enumerate(("resp_b", "resp_a", "resp_c")):
        await runs.add(name)
        os.utime(tmp_path / "background" / name, (age, age))
    await runs.remove("resp_a")
    await runs.remove("resp_a")
    assert await UnfinishedRuns(tmp_path).oldest_first() == ["resp_b", "resp_c"]


async def test_a_folder_that_cannot_be_written_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "data").write_text("a file")
    runs = UnfinishedRuns(tmp_path / "data")
    with caplog.at_level(logging.WARNING):
        await runs.add("resp_a")
        await runs.add("resp_b")
        await runs.remove("resp_a")
    assert await runs.oldest_first() == []
    (told,) = caplog.messages
    assert "will not go on after a restart by themselves" in told


@pytest.mark.parametrize(("model", "key"), [("gone", None), ("m", SimpleNamespace(name="gone"))])
async def test_one_whose_model_or_key_is_not_there_is_forgotten_after_a_week(
    model: str, key: Any, start: Start, tmp_path: Path
) -> None:
    endpoints = await start(FakeServing([FakeModel("m")]), data_folder=tmp_path)
    sequence = owned_ids.new_sequence(FakeModel(model).served, key)
    old, new = (owned_ids.new_response(sequence) for _ in range(2))
    runs = UnfinishedRuns(tmp_path)
    for each in (old, new):
        await runs.add(each)
    week_ago = time.time() - 7 * 86_400 - 60
    os.utime(tmp_path / "background" / old, (week_ago, week_ago))
    await continue_runs(endpoints.endpoints.context)
    assert await runs.oldest_first() == [new]
