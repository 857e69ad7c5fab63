"""From a folder to a model that serves: configuration, imports, constructor, secrets, environment, load."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.contracts.truss.worker.loaded import Load, load

from ts.contracts.truss.deployment import Environment, SecretNotFound, Secrets
from ts.contracts.truss.truss_config import read_config, read_options
from ts.jobs.errors import LoadError

__all__ = ["load"]


def test_the_constructor_gets_what_it_names(load: Load) -> None:
    loaded = load(
        """
        class Model:
            def __init__(self, config, data_dir, *, secrets, environment, lazy_data_resolver):
                self.told = [config["runtime"]["predict_concurrency"], config["resources"]["cpu"], config["mine"],
                             str(data_dir), data_dir.is_dir(), secrets["key"], environment,
                             lazy_data_resolver.block_until_download_complete()]

            def predict(self):
                return self.told
        """,
        "{runtime: {predict_concurrency: 3}, secrets: {key: default}, mine: 1}",
    )
    assert loaded.predict() == [3, "1", 1, "data", True, "default", None, ""]


@pytest.mark.parametrize("parameters", ["self", "self, **kwargs", "self, *args, **kwargs"])
def test_constructors_of_all_kinds(load: Load, parameters: str) -> None:
    loaded = load(f"""
        class Model:
            def __init__({parameters}):
                self.told = sorted(locals().get("kwargs", ()))

            def predict(self):
                return self.told
        """)
    names = ["config", "data_dir", "environment", "lazy_data_resolver", "secrets"]
    assert loaded.predict() == (names if "kwargs" in parameters else [])


def test_a_constructor_that_wants_something_else(load: Load) -> None:
    with pytest.raises(TypeError, match="engine"):
        load("class Model:\n    def __init__(self, engine): ...\n    def predict(self): ...")


def test_a_constructor_that_cannot_do_without_an_engine(load: Load) -> None:
    reads = "class Base:\n    def __init__(self, **kwargs):\n        self.engine = kwargs[{!r}]\nclass Model(Base):\n"
    with pytest.raises(LoadError, match="The class gets no argument trt_llm, and needs it"):
        load(reads.format("trt_llm") + "    def predict(self): ...")
    with pytest.raises(KeyError, match="other"):
        load(reads.format("other") + "    def predict(self): ...")


def test_the_model_s_file_is_a_module_of_its_package(load: Load) -> None:
    loaded = load(
        """
        from __future__ import annotations

        import dataclasses
        import pickle

        import bundled
        import external
        from fastapi import Request
        from model.helper import TOLD

        from . import helper


        @dataclasses.dataclass
        class Point:
            x: int


        class Model:
            def predict(self, inputs: dict, request: Request):
                point = pickle.loads(pickle.dumps(Point(1)))
                return [__name__, TOLD, helper.TOLD, bundled.TOLD, external.TOLD, point.x]
        """,
        "{external_package_dirs: [more]}",
        model__helper='TOLD = "helper"',
        packages__bundled='TOLD = "bundled"',
        more__external='TOLD = "external"',
    )
    assert loaded.predict() == ["model.model", "helper", "helper", "bundled", "external", 1]


def test_another_folder_file_and_class(load: Load, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    loaded = load(
        "",
        "{model_module_dir: src/own, model_class_filename: server.py, model_class_name: Mine}",
        src__own__server="""
        from .near import TOLD

        class Mine:
            def predict(self):
                return [__name__, TOLD]
        """,
        src__own__near="TOLD = 1",
    )
    assert loaded.predict() == ["server", 1]


@pytest.mark.parametrize(
    ("model", "config", "told"),
    [
        ("", "", "model/model.py has no class Model; model_class_name in config.yaml"),
        ("", "{model_class_filename: other.py}", "There is no model class file model/other.py"),
        ("class Model: ...", "", "needs a predict or websocket method"),
        ("raise SystemExit(3)", "", "The model ended with SystemExit while it was loaded: 3"),
        ("class Model:\n def load(self): raise KeyboardInterrupt\n def predict(self): ...", "", "KeyboardInterrupt"),
        ("", "[1]", "config.yaml: expected a mapping of keys to values, got list"),
        ("", "{a: [}", "config.yaml is not valid YAML"),
    ],
)
def test_what_cannot_be_loaded(load: Load, model: str, config: str, told: str) -> None:
    with pytest.raises((LoadError, TypeError, ValueError)) as error:
        load(model, config)
    assert told in str(error.value)


def test_a_file_that_fails_is_no_module(load: Load) -> None:
    with pytest.raises(ZeroDivisionError):
        load("1 / 0")
    assert "model.model" not in sys.modules


LOADS = """
    attempts = []


    class Model:
        {kind} load(self{parameters}):
            attempts.append(self)
            if len(attempts) <= {failures}:
                raise ValueError("not yet")
            self.loaded = True

        def predict(self):
            return [self.loaded, len(attempts), len(set(attempts))]
    """


@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize("parameters", ["", ", *args, **kwargs"])
def test_load_is_tried_again_once(load: Load, kind: str, parameters: str, caplog: pytest.LogCaptureFixture) -> None:
    loaded = load(LOADS.format(kind=kind, parameters=parameters, failures=1))
    assert loaded.predict() == [True, 2, 1]
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


@pytest.mark.parametrize(("retries", "failures"), [(None, 2), ("0", 1)])
def test_load_that_fails_too_often(
    load: Load, retries: str | None, failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if retries is not None:
        monkeypatch.setenv("NUM_LOAD_RETRIES_TRUSS", retries)
    with pytest.raises(ValueError, match="not yet"):
        load(LOADS.format(kind="def", parameters="", failures=failures))


def test_what_load_starts_goes_on_in_the_same_loop(load: Load) -> None:
    loaded = load("""
        import asyncio


        class Model:
            async def load(self):
                self.event = asyncio.Event()
                self.task = asyncio.create_task(self.event.wait())

            async def predict(self):
                self.event.set()
                return await self.task
        """)
    assert loaded.predict() is True


# The environment

ENVIRONMENT = """
    class Model:
        def __init__(self, environment):
            self.told = [environment]

        {kind} setup_environment(self, environment):
            self.told.append(environment)

        def load(self):
            self.told.append("load")

        def predict(self):
            return self.told
    """


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_the_environment_is_told_before_load_and_when_it_changes(
    load: Load, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRUSS_ENVIRONMENT_POLL_SECONDS", "0.001")
    file = tmp_path / "dynamic" / "environment"
    file.parent.mkdir()
    file.write_text('{"name": "staging"}')
    loaded = load(ENVIRONMENT.format(kind=kind))
    expected: list[Any] = [{"name": "staging"}, {"name": "staging"}, "load"]
    assert loaded.predict() == expected

    def change(text: str, number: int) -> None:
        file.write_text(text)
        os.utime(file, ns=(number, number))

    for number, (text, told) in enumerate(
        [('{"name": "production"}', {"name": "production"}), ("not json", ...), ("null", None)]
    ):
        change(text, number)
        if told is not ...:
            expected.append(told)
        for _ in range(1000):
            if loaded.predict() == expected:
                break
            loaded.wait(0.005)
        assert loaded.predict() == expected


async def test_what_is_the_same_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRUSS_DYNAMIC_CONFIG_DIR", str(tmp_path))
    told: list[Any] = []

    async def apply(environment: Any) -> None:
        told.append(environment)
        if environment == {"a": 2}:
            raise ValueError("the model does not like it")

    environment = Environment()
    assert environment.read() is None
    file = tmp_path / "environment"
    for number, text in enumerate(['{"a": 1}', '{"a": 1}', '{"a": 2}', '{"a": 2}', "", '{"a": 1}']):
        file.write_text(text)
        os.utime(file, ns=(number, number))
        await environment.look(apply)
        await environment.look(apply)
    file.unlink()
    await environment.look(apply)
    assert told == [{"a": 1}, {"a": 2}, None, {"a": 1}]


# Secrets


def test_secrets_come_from_a_file_or_a_variable_or_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRUSS_SECRETS_DIR", str(tmp_path))
    secrets = Secrets({"a": "default", "b": None})
    assert secrets["a"] == "default"
    monkeypatch.setenv("TRUSS_SECRET_a", "variable")
    assert secrets["a"] == "variable"
    (tmp_path / "a").write_text("file\n")
    assert secrets["a"] == "file\n"
    (tmp_path / "c").write_text("undeclared")
    for name in ("b", "c"):
        with pytest.raises(SecretNotFound, match=f"The secret '{name}'") as error:
            secrets[name]
        assert isinstance(error.value, KeyError)
        assert name not in secrets
        assert secrets.get(name, "other") == "other"
    assert (dict(secrets), len(secrets)) == ({"a": "file\n"}, 1)
    assert "file" not in repr(secrets)
    assert list(secrets._base_secrets) == ["a", "b"]  # models that run with Truss ask it so


# Configuration


def test_sections_keep_what_is_given_and_get_the_rest(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "{runtime: {streaming_read_timeout: 5, transport: {ping_interval_seconds: 1.5}}, secrets: null, resources: {}}"
    )
    config = read_config(tmp_path)
    runtime = config["runtime"]
    assert (runtime["predict_concurrency"], runtime["streaming_read_timeout"]) == (1, 5)
    assert runtime["transport"] == {"kind": "http", "ping_interval_seconds": 1.5, "ping_timeout_seconds": None}
    assert (config["secrets"], config["resources"]["memory"]) == ({}, "2Gi")


def test_options(tmp_path: Path) -> None:
    assert read_options(tmp_path) == {}
    file = tmp_path / "model-config.yaml"
    file.write_text("minWorkers: 1\ntruss: {cancelOnDisconnect: true, streamErrors: end, aliasConcurrency: 2}")
    assert read_options(tmp_path) == {"cancelOnDisconnect": True, "streamErrors": "end", "aliasConcurrency": 2}
    for text in ("truss:", "truss: {cancelOnDisconnect: }"):
        file.write_text(text)
        assert not read_options(tmp_path).get("cancelOnDisconnect")
