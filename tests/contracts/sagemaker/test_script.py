"""The functions of a script: which are found, what they get, and what is refused."""

import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ts.context import Context
from ts.contracts.sagemaker.script import Script
from ts.contracts.sagemaker.toolkit import decoder, encoder
from ts.contracts.sagemaker.toolkit.errors import UnsupportedFormatError
from ts.jobs.errors import LoadError

Open = Callable[[str], Script]


@pytest.fixture
def open_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    monkeypatch.setenv("SAGEMAKER_PROGRAM", "own_script.py")
    monkeypatch.syspath_prepend(tmp_path)

    def write(text: str) -> Script:
        (tmp_path / "own_script.py").write_text(text)
        return Script(str(tmp_path))

    yield write
    sys.modules.pop("own_script", None)


def context() -> Context:
    return Context("m", "/m", {}, 1, None, "0")


def test_the_missing_script_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAGEMAKER_PROGRAM", "no_such_script.py")
    with pytest.raises(LoadError, match=rf"no script no_such_script\.py in {tmp_path} or in its folder code"):
        Script(str(tmp_path))


def test_without_a_script_the_default_functions_are_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SAGEMAKER_PROGRAM", raising=False)
    script = Script(str(tmp_path))
    with pytest.raises(LoadError, match=r"must have model\.pt, or one file \.pt, \.pth or \.pt2; it has none"):
        script.load(str(tmp_path), context())


def test_what_a_script_imports_in_vain_is_told_as_it_is(open_script: Open) -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        open_script("import no_such_package\n")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("def transform_fn(m, b, c, a): ...\ndef input_fn(b, c): ...\n", "transform_fn and input_fn"),
        ("def model_fn(): ...\n", "own_script.model_fn takes 0 arguments; it must take 1, or 2 with the context"),
        ("predict_fn = 3\n", "own_script.predict_fn is a int; it must be a function"),
    ],
)
def test_functions_that_cannot_be_called_are_refused(open_script: Open, text: str, problem: str) -> None:
    with pytest.raises(LoadError, match=problem):
        open_script(text)


def test_a_callable_object_is_a_function(open_script: Open) -> None:
    script = open_script(
        "import functools\nmodel_fn = functools.partial(lambda start, folder: start + folder, 'at ')\n"
    )
    assert script.load("/m", context()) == "at /m"


def test_the_folder_of_a_model_with_several_weights_is_refused(open_script: Open, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    for name in ("a.pt", "b.pth"):
        (tmp_path / name).touch()
    with pytest.raises(LoadError, match=r"it has a\.pt, b\.pth"):
        open_script("").load(str(tmp_path), context())


def test_weights_that_are_no_torchscript_are_refused(open_script: Open, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"a": 1}, tmp_path / "model.pt")
    with pytest.raises(LoadError, match=r"model\.pt is no TorchScript model, so the script needs a model_fn"):
        open_script("").load(str(tmp_path), context())


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("body", "content_type", "values"),
    [
        ("[[1, 2], [3, 4.5]]", "application/json", [[1, 2], [3, 4.5]]),
        ("1,2.5\n3,4", "text/csv", [[1, 2.5], [3, 4]]),
        ("1,2\n", "text/csv", [1, 2]),
        (npy(np.arange(3)), "application/x-npy", [0, 1, 2]),
    ],
)
def test_bodies_become_arrays(body: Any, content_type: str, values: Any) -> None:
    assert decoder.decode(body, content_type).tolist() == values


def test_pickled_objects_are_not_loaded() -> None:
    with pytest.raises(ValueError, match="allow_pickle"):
        decoder.decode(npy(np.array([{"a": 1}], dtype=object)), "application/x-npy")


def test_results_become_bodies() -> None:
    assert encoder.encode([np.float32(1.5), float("nan")], "application/json") == "[1.5, null]"
    assert encoder.encode(np.arange(4).reshape(2, 2), "text/csv") == "0,1\n2,3\n"
    with pytest.raises(UnsupportedFormatError) as caught:
        encoder.encode(1, "text/html")
    assert caught.value.status_code == 406
