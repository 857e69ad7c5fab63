"""The server process as a whole, without its endpoints: how it ends when something of its own goes wrong."""

import logging
import sys
from pathlib import Path

import pytest

from torchserve_py import server
from torchserve_py.base.settings.server_settings import server_settings
from torchserve_py.base.settings.table import Settings
from torchserve_py.core.models.registry import ModelRegistry
from torchserve_py.server import Server, run

DEADLINE = 60.0


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return server_settings().model_construct(
        model_store=tmp_path, temp_dir=tmp_path, log_location=tmp_path / "logs", metric_time_interval=0
    )


@pytest.mark.parametrize("error", [OSError("no room"), ZeroDivisionError("no divisor")], ids=["expected", "unexpected"])
def test_a_start_that_fails_is_told_in_the_log_and_leaves_nothing(
    settings: Settings, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_: Server) -> None:
        raise error

    monkeypatch.setattr(ModelRegistry, "load_startup_models", fail)
    assert run(settings) == 1
    (record,) = (record for record in caplog.records if record.levelno >= logging.ERROR)
    assert record.message.startswith("The server cannot run")
    assert str(error) in record.message or (record.exc_info is not None and record.exc_info[1] is error)
    assert [path for path in settings.temp_dir.iterdir() if path.name.startswith("ts-")] == []


def test_doubtful_settings_are_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "config.properties").write_text(f"vmargs=-Xmx1g\nmodel_store={tmp_path}")
    started: list[Settings] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TS_CONFIG_FILE", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["server"])
    monkeypatch.setattr(server, "configure_logging", lambda settings: None)
    monkeypatch.setattr(server, "run", lambda settings: started.append(settings) or 0)
    assert server.main() == 0
    assert [settings.model_store for settings in started] == [tmp_path]
    assert "vmargs (config.properties:1)" in caplog.text
