"""Finding a handler's code and initializing it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.ts.frontend_stub import load_message

from ts.jobs.errors import LoadError
from ts.runtime.loader import load_service


@pytest.fixture
def load(tmp_path: Path, model: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setattr("sys.path", list(__import__("sys").path))

    def load_source(source: str, suffix: str = "", **changes: Any) -> Any:
        return load_service(load_message(tmp_path, model(source) + suffix, **changes))  # type: ignore[arg-type]

    return load_source


def test_a_class_is_made_once_and_initialized_with_the_context(load: Callable[..., Any], tmp_path: Path) -> None:
    service = load(
        """
        from json import JSONDecoder  # imported classes do not count

        class Handler:
            def initialize(self, context):
                assert context.request_ids is None
                context.made_by = self

            def handle(self, data, context):
                return context.made_by is self
        """,
        model_name="m",
        gpu_id=1,
        batch_size=3,
        processors=1,
        header_keys=["x-id", "x-start", "x-end"],
        manifest={"model": {"modelName": "m"}},
    )

    context = service.context
    assert service.entry_point([], context) is True
    assert (context.model_name, context.manifest) == ("m", {"model": {"modelName": "m"}})
    assert (context.header_key_sequence_id, context.header_key_sequence_end) == ("x-id", "x-end")
    assert context.system_properties["model_dir"] == str(tmp_path)
    assert (context.system_properties["gpu_id"], context.system_properties["batch_size"]) == (1, 3)


@pytest.mark.parametrize(("suffix", "result"), [("", "handle"), (":handle", "handle"), (":other", "other")])
def test_a_function_is_called_once_without_data_to_load(load: Callable[..., Any], suffix: str, result: str) -> None:
    service = load(
        """
        def handle(data, context):
            if not data:
                context.loaded = "handle"
            return "handle"

        def other(data, context):
            if not data:
                context.loaded = "other"
            return "other"
        """,
        suffix,
    )

    assert service.context.loaded == result
    assert service.entry_point(["row"], service.context) == result


def test_a_handler_in_a_folder_finds_modules_next_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "neighbour_of_handler.py").write_text("ANSWER = 42")
    (folder / "handler_in_folder.py").write_text(
        "import neighbour_of_handler\ndef run(data, context):\n    return neighbour_of_handler.ANSWER"
    )

    service = load_service(load_message(tmp_path, "code/handler_in_folder.py:run"))  # type: ignore[arg-type]

    assert service.entry_point([1], service.context) == 42


def test_the_models_configuration_is_in_the_context(load: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "model-config.yaml").write_text("handler:\n  top: 5\n")
    source = "def handle(data, context):\n    return context.model_yaml_config"

    service = load(source, manifest={"model": {"configFile": "model-config.yaml"}})

    assert service.entry_point([], service.context) == {"handler": {"top": 5}}


def test_what_a_handler_imports_in_vain_is_named(load: Callable[..., Any]) -> None:
    with pytest.raises(ModuleNotFoundError, match="library_that_nobody_has"):
        load("import library_that_nobody_has\ndef handle(data, context): ...")


def test_an_absent_handler_is_named_with_the_place_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=rf"no module 'absent_handler' in {tmp_path}, and no built-in handler"):
        load_service(load_message(tmp_path, "absent_handler"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "class A: ...\nclass B: ...",
            r"\.py has no model: it has the classes A, B, and no function 'handle'\. Write @serve .*or write one class",
        ),
        (
            "value = 1",
            r"\.py has no model: it has no class, and no function 'handle'\. Write @serve \(from ts import serve\)",
        ),
        ("class A:\n    def initialize(self, context): ...", "Expect handle method in class"),
        ("class A:\n    def handle(self, data, context): ...", "Expect initialize method in class"),
    ],
)
def test_a_module_that_is_no_handler_is_refused(load: Callable[..., Any], source: str, message: str) -> None:
    with pytest.raises(LoadError, match=message):
        load(source)


def test_a_handler_with_the_name_of_a_python_module_in_use_is_refused(
    tmp_path: Path, model: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    model("def handle(data, context): ...", "signal.py")

    with pytest.raises(LoadError, match=r"signal\.py has the name of a module"):
        load_service(load_message(tmp_path, "signal.py"))  # type: ignore[arg-type]


def test_an_absent_envelope_is_named(load: Callable[..., Any]) -> None:
    with pytest.raises(LoadError, match="no service envelope 'absent'"):
        load("def handle(data, context): ...", envelope="absent")
