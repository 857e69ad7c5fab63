"""Which responses in the background have not ended, as a server that starts finds them."""

import logging
import os
from pathlib import Path

import pytest

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
