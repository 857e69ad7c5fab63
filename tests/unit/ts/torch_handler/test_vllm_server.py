"""What `ts.torch_handler.vllm_server` asks of vLLM, in the shapes that its versions have."""

from __future__ import annotations

import argparse
import logging
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from ts.torch_handler.vllm_server import open_application, server_arguments


class Engine:
    model_config = "model config"
    vllm_config = "vllm config"

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments

    @classmethod
    def from_engine_args(cls, arguments: argparse.Namespace) -> Engine:
        return cls(arguments)

    async def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)


class EngineArguments:
    @staticmethod
    def from_cli_args(arguments: argparse.Namespace) -> argparse.Namespace:
        return arguments


def make_arg_parser(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    for flag in ("--model", "--served-model-name", "--chat-template"):
        parser.add_argument(flag)
    parser.add_argument("--lora-modules", nargs="+")
    parser.add_argument("--max-num-seqs", type=int, default=1)
    parser.add_argument("--disable-log-requests", action="store_true")
    return parser


def install(monkeypatch: pytest.MonkeyPatch, modules: dict[str, dict[str, Any]]) -> None:
    """Have these modules imported, with these contents, and packages around them."""
    vllm = {"AsyncLLMEngine": Engine, "AsyncEngineArgs": EngineArguments, "__version__": "9.9"}
    for name, contents in {"vllm": vllm, **modules}.items():
        module = types.ModuleType(name)
        module.__path__ = []
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
        for index, letter in enumerate(name):
            if letter == "." and name[:index] not in sys.modules:
                package = types.ModuleType(name[:index])
                package.__path__ = []
                monkeypatch.setitem(sys.modules, name[:index], package)


@pytest.fixture
def told() -> dict[str, Any]:
    """What vLLM's functions were called with."""
    return {}


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch, told: dict[str, Any]) -> None:
    """The shape of 0.6: a plain function that takes the model's configuration."""

    def build_app(args: Any) -> Any:
        return types.SimpleNamespace(state=types.SimpleNamespace())

    def init_app_state(engine_client: Any, model_config: Any, state: Any, args: Any) -> None:
        told.update(model_config=model_config, state=state)

    server = {"build_app": build_app, "init_app_state": init_app_state}
    openai = "vllm.entrypoints.openai"
    install(
        monkeypatch,
        {
            f"{openai}.api_server": server,
            f"{openai}.cli_args": {"make_arg_parser": make_arg_parser},
            "vllm.utils": {"FlexibleArgumentParser": argparse.ArgumentParser},
        },
    )


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch, told: dict[str, Any]) -> None:
    """The shape of 0.32, without the modules that it keeps for the old names: a coroutine that takes the tasks."""

    def build_app(args: Any, supported_tasks: Any = None, model_config: Any = None) -> Any:
        told.update(build=(supported_tasks, model_config))
        return types.SimpleNamespace(state=types.SimpleNamespace())

    async def init_app_state(engine_client: Any, state: Any, args: Any, supported_tasks: Any = None) -> None:
        told.update(tasks=supported_tasks, state=state)

    install(
        monkeypatch,
        {
            "vllm.entrypoints.launchers.app": {"build_app": build_app},
            "vllm.entrypoints.launchers.api_server.app_state": {"init_app_state": init_app_state},
            "vllm.entrypoints.launchers.cli_args": {"make_arg_parser": make_arg_parser},
            "vllm.utils.argparse_utils": {"FlexibleArgumentParser": argparse.ArgumentParser},
        },
    )


@pytest.mark.usefixtures("early")
async def test_an_early_version_is_opened(told: dict[str, Any], tmp_path: Path) -> None:
    engine, application = await open_application({"model_path": "a/b"}, tmp_path, "mine")
    assert engine.arguments.model == "a/b"
    assert told == {"model_config": "model config", "state": application.state}  # type: ignore[attr-defined]


@pytest.mark.usefixtures("late")
async def test_a_late_version_is_opened(told: dict[str, Any], tmp_path: Path) -> None:
    _, application = await open_application({"model_path": "a/b"}, tmp_path, "mine")
    state = application.state  # type: ignore[attr-defined]
    assert told == {"build": (("generate",), "model config"), "tasks": ("generate",), "state": state}


@pytest.mark.usefixtures("late")
async def test_a_worker_whose_engine_has_died_exits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    codes: list[int] = []
    monkeypatch.setattr("os._exit", codes.append)
    _, application = await open_application({"model_path": "a/b"}, tmp_path, "mine")
    application.state.server.should_exit = True  # type: ignore[attr-defined]
    assert codes == [1]


async def test_a_version_without_the_server_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, {})
    with pytest.raises(ImportError, match=r"vLLM 9\.9 has no make_arg_parser in vllm\.entrypoints\.openai\.cli_args"):
        await open_application({"model_path": "a/b"}, tmp_path, "mine")


async def test_without_vllm_the_error_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(ModuleNotFoundError, match="needs the package vllm, which is not installed: pip install vllm"):
        await open_application({"model_path": "a/b"}, tmp_path, "mine")


@pytest.mark.usefixtures("early")
def test_files_of_the_model_are_found_and_names_are_left_alone(tmp_path: Path) -> None:
    for name in ("weights", "lora"):
        (tmp_path / name).mkdir()
    adapters = {"mine": "lora", "theirs": "some/adapter"}
    arguments = server_arguments({"model_path": "weights", "adapters": adapters}, tmp_path, "mine")
    assert arguments.model == str(tmp_path / "weights")
    assert arguments.served_model_name == ["weights", "mine"]
    assert arguments.lora_modules == [f"mine={tmp_path / 'lora'}", "theirs=some/adapter"]
    assert arguments.disable_log_requests is True


@pytest.mark.usefixtures("early")
def test_options_of_the_engine_are_set_and_unknown_ones_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = {"model": "a/b", "served_model_name": "short", "max_num_seqs": 7, "swap_space": 4}
    with caplog.at_level(logging.WARNING):
        arguments = server_arguments({"vllm_engine_config": options}, tmp_path, "mine")
    assert (arguments.model, arguments.served_model_name, arguments.max_num_seqs) == ("a/b", ["short", "mine"], 7)
    assert caplog.messages == ["vllm_engine_config: this version of vLLM has no swap_space; it is ignored."]


@pytest.mark.usefixtures("early")
@pytest.mark.parametrize("config", [{}, {"model_path": ""}, {"vllm_engine_config": {"model": ""}}])
def test_a_configuration_without_a_model_is_refused(config: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="names no model"):
        server_arguments(config, tmp_path, "mine")
