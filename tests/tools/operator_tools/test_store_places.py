"""`torchserve-py store` opens a store by its path or URL."""

import sys

import pytest

from torchserve_py.tools.operator_tools.store_command import main


@pytest.mark.parametrize("place", ["dynamodb://eu/states", "http://127.0.0.1/states"])
def test_a_url_of_no_known_store_is_refused_by_name(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", place]) == 2
    assert f"{place!r} is no path or URL of a store" in capsys.readouterr().err


def test_without_the_package_of_redis_it_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    for name in ("open_redis", "redis_maintenance", "redis_connection"):
        monkeypatch.delitem(sys.modules, f"ts.sequences.redis.{name}", raising=False)
    assert main(["check", "redis://127.0.0.1:1"]) == 2
    assert "needs the package redis: pip install 'torchserve-py[redis]'" in capsys.readouterr().err
    assert main(["check", "dynamodb://eu/states"]) == 2
    assert "'dynamodb://eu/states' is no path or URL of a store" in capsys.readouterr().err
