"""The daily files with the usage of keys."""

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from torchserve_py.ops.keys.key_account import KeyAccount, KeyUsage
from torchserve_py.ops.keys.usage_files import UsageFolderError, UsageOfDay, held_folder
from torchserve_py.ops.keys.usage_report import UsageReader, Used

DAY = date(2026, 3, 1)
FILE = "usage-2026-03-01.jsonl"


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / FILE).read_text().splitlines()]


def test_a_line_for_each_key_and_model(tmp_path: Path) -> None:
    used = UsageOfDay(tmp_path, DAY)
    used.add("web", "m", KeyUsage(requests=2, failed=1, tokens=5, seconds=0.25))
    used.add("web", "m", KeyUsage(requests=1, refused=3, seconds=0.5))
    used.add("app", "n", KeyUsage(requests=1))
    used.write()
    common = {"day": "2026-03-01", "failed": 0, "refused": 0, "tokens": 0, "seconds": 0.0}
    web = {"requests": 3, "failed": 1, "refused": 3, "tokens": 5, "seconds": 0.75}
    assert lines(tmp_path) == [
        {**common, "key": "app", "model": "n", "requests": 1},
        {**common, "key": "web", "model": "m", **web},
    ]
    assert [each.name for each in tmp_path.iterdir()] == [FILE]


def test_a_server_that_starts_again_goes_on_counting(tmp_path: Path) -> None:
    for _ in range(2):
        used = UsageOfDay(tmp_path, DAY)
        used.add("web", "m", KeyUsage(requests=2))
        used.write()
    assert [each["requests"] for each in lines(tmp_path)] == [4]


def test_what_cannot_be_read_is_dropped_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = UsageOfDay(tmp_path, DAY)
    before.add("web", "m", KeyUsage(requests=2))
    before.write()
    line = json.dumps({**lines(tmp_path)[0], "requests": "many"})
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"key": "web"}\nnothing\n\xff\xfe\n[1]\n' + line.encode() + b"\n")
    used = UsageOfDay(tmp_path, DAY)
    used.add("web", "m", KeyUsage(requests=1))
    used.write()
    assert [each["requests"] for each in lines(tmp_path)] == [3]
    assert caplog.text.count("a line that is no usage is dropped") == 5


def test_a_folder_is_one_server_s(tmp_path: Path) -> None:
    with (
        held_folder(tmp_path / "usage"),
        pytest.raises(UsageFolderError, match="another server's"),
        held_folder(tmp_path / "usage"),
    ):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageFolderError, match=r"usage_folder .*file"), held_folder(tmp_path / "file"):
        pass
    with held_folder(tmp_path / "usage"):
        pass


def test_each_reading_has_what_is_new() -> None:
    account, reader = KeyAccount("c", "web"), UsageReader()
    account.usage["m"] = KeyUsage(requests=2, tokens=7)
    assert list(reader.read(account)) == [Used("web", "m", KeyUsage(requests=2, tokens=7))]
    assert list(reader.read(account)) == []
    account.usage["m"].requests += 1
    assert list(reader.read(account)) == [Used("web", "m", KeyUsage(requests=1))]
