"""A git-lfs pointer or a web page under the name of a model's file is named as what it is, by every loader."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.ts.frontend_stub import FrontendStub, load_message

from ts.protocol.misplaced_files import misplaced, misplaced_in

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
PAGE = b"\n<!DOCTYPE html><html><title>Sign in</title></html>"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (POINTER, "is a git-lfs pointer, not the file that it stands for: run 'git lfs pull'"),
        (PAGE, "is an HTML page"),
        (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "is an XML text"),
        (b"", "is empty"),
    ],
)
def test_what_lies_in_the_place_of_a_file_is_named(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(content)
    assert words in misplaced(tmp_path / "model.pt")
    (tmp_path / "sub").mkdir()
    (tmp_path / "model.pt").rename(tmp_path / "sub" / "model.safetensors")
    assert misplaced_in(str(tmp_path)).startswith(f"model.safetensors {words}")


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"PK\x03\x04")
    (tmp_path / "page.html").write_bytes(PAGE)
    (tmp_path / "__init__.py").touch()
    assert not misplaced(tmp_path / "model.pt")
    assert not misplaced(tmp_path / "absent.pt")
    assert not misplaced_in(str(tmp_path))


@pytest.mark.torch
@pytest.mark.parametrize("name", ["model.pt", "model.safetensors", "model.onnx", "model.pt2"])
@pytest.mark.parametrize("content", [POINTER, PAGE])
def test_the_default_handler_names_it(
    name: str, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    from ts.runtime.loader import load_service

    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / name).write_bytes(content)
    manifest = {"model": {"modelName": "m", "serializedFile": name}}
    load: Any = load_message(tmp_path, "base_handler", manifest=manifest)
    with pytest.raises(RuntimeError, match=rf"{name} is (a git-lfs pointer|an HTML page)"):
        load_service(load)


def test_a_handler_of_ones_own_that_cannot_load_it_is_told_so(
    frontend: FrontendStub, model: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ts.process import worker

    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    (tmp_path / "weights.bin").write_bytes(POINTER)
    handler = model(
        """
        def handle(data, context):
            raise ValueError("invalid load key, 'v'.")
        """
    )
    connection, peer = frontend.connect()
    peer.send("load", load_message(tmp_path, handler))
    assert worker.load(connection, None) is None  # type: ignore[arg-type]
    _, loaded = peer.receive()
    cause, _, hint = loaded["message"].partition(" In the model's folder, ")
    assert cause.endswith("ValueError: invalid load key, 'v'.")
    assert hint == "weights.bin is a git-lfs pointer, not the file that it stands for: run 'git lfs pull'."
    connection.close()
