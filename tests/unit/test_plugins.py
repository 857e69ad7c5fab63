"""Plugins: those that the server has, and what is wrong with one of another package."""

import importlib
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from unittest import mock

import pytest

import torchserve_py
from torchserve_py import cli, plugins
from torchserve_py.base.settings.flags import parse_flags
from torchserve_py.base.settings.resolution import Resolution
from torchserve_py.base.settings.server_settings import server_settings, sources
from torchserve_py.base.settings.table import Number, SettingsSection, setting
from torchserve_py.plugin_api import Plugin, PluginUnavailable

ROOT = Path(torchserve_py.__file__).parent


def test_every_plugin_is_listed() -> None:
    folders = {".".join(each.parent.relative_to(ROOT).parts) for each in ROOT.glob("*/*/plugin.py")}
    assert folders == set(plugins.BUILT_IN)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("no_such_package:PLUGIN", "cannot be imported: ModuleNotFoundError"),
        ("tests.unit.test_plugins:ROOT", "it must be a Plugin"),
        ("tests.unit.test_plugins:NAMED_AS_ANOTHER", "Two plugins are called 'grpc'"),
    ],
)
def test_what_is_wrong_with_a_plugin_is_said(value: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    importlib.import_module("tests.unit.test_plugins")
    entry = EntryPoint("other", value, plugins.ENTRY_POINTS)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [entry])
    with pytest.raises(PluginUnavailable, match=said):
        plugins.plugins.__wrapped__()


def test_a_command_says_what_is_wrong_with_a_plugin(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = EntryPoint("other", "no_such_package:PLUGIN", plugins.ENTRY_POINTS)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [entry])
    plugins.plugins.cache_clear()
    try:
        assert cli.main(["serve", "model.py"]) == 1
    finally:
        plugins.plugins.cache_clear()
    assert "The plugin other (no_such_package:PLUGIN) cannot be imported" in capsys.readouterr().err


@pytest.fixture
def with_a_plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Plugin], None]]:
    """Adds a plugin to those that the server has."""
    known = [plugins.settings_sections, server_settings, sources, plugins.launchers]

    def add(plugin: Plugin) -> None:
        found = [*plugins.plugins(), plugin]
        monkeypatch.setattr(plugins, "plugins", lambda: found)
        for each in known:
            each.cache_clear()

    yield add
    monkeypatch.undo()
    for each in known:
        each.cache_clear()


class GuideSettings(SettingsSection):
    """A section."""

    guide_length: Number = setting(80, "how long a guide may be")


class AnotherPort(SettingsSection):
    """A section with a setting that the server has."""

    max_connections: Number = setting(80, "how many")


def test_a_plugin_has_settings_of_its_own(tmp_path: Path, with_a_plugin: Callable[[Plugin], None]) -> None:
    with_a_plugin(Plugin(name="guide", settings=lambda: GuideSettings))
    (tmp_path / "config.properties").write_text("model_store=.\nguide_length=8\n")
    settings = Resolution(parse_flags([]), {}, tmp_path).settings()
    assert settings.of(GuideSettings).guide_length == 8
    (tmp_path / "config.properties").write_text("model_store=.\nguide_length=long\n")
    [problem] = Resolution(parse_flags([]), {}, tmp_path).errors
    assert problem.endswith("config.properties:2: guide_length = long: it must be an integer from 1")


def test_a_plugin_has_no_setting_of_another_ones(with_a_plugin: Callable[[Plugin], None]) -> None:
    with_a_plugin(Plugin(name="guide", settings=lambda: AnotherPort))
    with pytest.raises(PluginUnavailable, match="There are 2 settings called 'max_connections'"):
        server_settings()


def test_the_authorization_of_another_package_takes_the_place_of_the_servers_own(
    with_a_plugin: Callable[[Plugin], None],
) -> None:
    settings, own = server_settings().model_construct(disable_token_authorization=False), mock.Mock()
    with_a_plugin(Plugin(name="guide", authorization=own))
    assert plugins.authorization(settings) is own.return_value
    own.assert_called_once_with(settings)


def test_settings_without_a_section_say_so() -> None:
    with pytest.raises(TypeError, match="GuideSettings is not a section of ServerSettings"):
        server_settings().model_construct().of(GuideSettings)


NAMED_AS_ANOTHER = Plugin(name="grpc")
