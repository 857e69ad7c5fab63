"""The functions of a script: which are found, what they get, and what is refused."""

import io
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ts.context import Context, RequestProcessor
from ts.contracts.sagemaker import default_functions
from ts.contracts.sagemaker.script import Script
from ts.contracts.sagemaker.script_handler import ScriptHandler
from ts.contracts.sagemaker.toolkit import decoder, encoder, stand_in
from ts.contracts.sagemaker.toolkit.errors import UnsupportedFormatError
from ts.jobs import device_loss
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


@pytest.mark.torch
@pytest.mark.parametrize(("kind", "body"), [("application/json", "2"), ("text/csv", "2"), ("text/csv", "2.0\n")])
def test_a_body_of_one_number_is_that_number(kind: str, body: str) -> None:
    torch = pytest.importorskip("torch")
    tensor = default_functions.input_fn(body, kind, context())
    assert (tensor.dtype, tensor.shape, tensor.item()) == (torch.float32, (), 2.0)


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


def npy_head(descr: str, shape: str) -> bytes:
    head = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head


def sparse_file(shape: tuple[int, int], index: int = 0) -> bytes:
    sparse = pytest.importorskip("scipy.sparse")
    matrix = sparse.csr_matrix(([1.0], ([0], [0])), shape=shape)
    matrix.indices[:] = index
    buffer = io.BytesIO()
    sparse.save_npz(buffer, matrix)
    return buffer.getvalue()


def zeros_in_zip(size: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file, file.open("data.npy", "w") as member:
        for _ in range(size >> 20):
            member.write(bytes(1 << 20))
    return buffer.getvalue()


def endless_in_zip() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, format=np.array("csr"), shape=(1, 1), indices=[0], indptr=[0, 1])
    with zipfile.ZipFile(buffer, "a") as file:
        file.writestr("data.npy", npy_head("<f4", "(1000000000000,)"))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        ("[" * 100_000, "application/json"),
        (b"", "application/x-npy"),
        (b"PK\x03\x04", "application/x-npy"),
        (npy(np.ones(10))[:-3], "application/x-npy"),
        (b"\x93NUMPY\x01\x00" + (9000).to_bytes(2, "little") + b"(" * 9000, "application/x-npy"),
        (npy_head("<f4", "(1000000000000,)"), "application/x-npy"),
        (npy_head("<f4", "(1000000000, 0)"), "application/x-npy"),
        (npy_head("|V0", "(1000000000,)"), "application/x-npy"),
        (npy_head("<U1", "(1,)") + b"\xff\xff\xff\xff", "application/x-npy"),
        (b"", "application/x-npz"),
        (b"abc", "application/x-npz"),
        (endless_in_zip(), "application/x-npz"),
    ],
)
def test_a_malformed_body_is_the_clients_mistake(body: Any, content_type: str) -> None:
    if content_type == "application/x-npz":
        pytest.importorskip("scipy.sparse")
    with pytest.raises(ValueError) as refused:
        decoder.decode(body, content_type)
    assert not device_loss.memory_ran_out(refused.value)


def test_a_sparse_matrix_is_no_larger_than_memory_allows_and_points_only_into_itself() -> None:
    assert decoder.decode(sparse_file((2, 3)), "application/x-npz").toarray().tolist() == [[1, 0, 0], [0, 0, 0]]
    with pytest.raises(ValueError, match=r"the shape \(40000, 40000\) needs 12800000000 bytes"):
        decoder.decode(sparse_file((40_000, 40_000)), "application/x-npz")
    with pytest.raises(ValueError, match="the file needs 314572800 bytes"):
        decoder.decode(zeros_in_zip(300 << 20), "application/x-npz")
    with pytest.raises(ValueError, match="indices must be < 3"):
        decoder.decode(sparse_file((2, 3), index=5_000), "application/x-npz")


@pytest.mark.parametrize(
    "text",
    [
        "1",
        "1\n2",
        "1,2",
        " 1 , 2\n3,4\n\n",
        "1,2.5\n3,4",
        "1e3,nan\n-inf,+4",
        "# a\n1,2",
        "1,,3",
        "1,2\n3,",
        "a,b",
        "1,b\n2,c",
    ],
)
def test_numbers_in_csv_are_read_as_numpy_reads_any_text(text: str) -> None:
    expected: Any = np.genfromtxt(io.StringIO(text), dtype=None, delimiter=",", encoding="utf-8")
    given = decoder.decode(text, "text/csv")
    np.testing.assert_array_equal(given.tolist(), expected.tolist())


def test_rows_of_csv_that_differ_in_length_are_refused_in_one_line() -> None:
    with pytest.raises(ValueError) as caught:
        decoder.decode("# two\n1,2\n\n" + "1\n" * 100_000, "text/csv")
    assert str(caught.value) == "line 4 of the CSV text has 1 fields; the first row has 2"


def test_a_long_row_of_csv_is_read_quickly_or_refused() -> None:
    assert decoder.decode("1," * 500_000 + "2.5", "text/csv").shape == (500_001,)
    with pytest.raises(ValueError, match="a CSV text with 500001 columns must have a number in each field"):
        decoder.decode("a," * 500_000 + "b", "text/csv")


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("text/csv", "text/csv"),
        ("application/*", "application/json"),
        ("text/*", "text/csv"),
        ("text/html, */*;q=0.8", "application/json"),
        ("application/json;q=0.5, text/csv", "text/csv"),
        ("application/json; q=0, application/x-npy", "application/x-npy"),
        ("APPLICATION/JSON; charset=utf-8", "application/json"),
    ],
)
def test_the_default_answer_has_the_type_that_the_client_prefers(accept: str, kind: str) -> None:
    assert default_functions.output_fn([1.5], accept, context())[1] == kind


def test_a_client_that_accepts_nothing_of_it_is_refused() -> None:
    with pytest.raises(UnsupportedFormatError) as caught:
        default_functions.output_fn([1.5], "text/html, */*;q=0", context())
    assert caught.value.status_code == 406


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("text/x-own; charset=utf-8", "text/x-own; charset=utf-8"),
        ("text/html, */*;q=0.8", "text/html"),
        ("image/*", "application/json"),
        ("text/csv;q=0.5, text/x-own;q=0.6", "text/x-own"),
    ],
)
def test_an_answer_without_a_type_has_one_that_the_client_accepts(accept: str, kind: str) -> None:
    assert default_functions.answer_type(accept) == kind


def started(folder: Path) -> tuple[ScriptHandler, Context]:
    """Return a handler that has loaded the script in a folder, and the context of a request without headers."""
    handler, own = ScriptHandler(), context()
    own.system_properties["model_dir"] = str(folder)
    stand_in()
    handler.initialize(own)
    own.request_processor = [RequestProcessor({})]
    return handler, own


@pytest.mark.parametrize("kind", ["None", "5", "b'text/plain'"])
def test_a_content_type_that_is_no_text_is_the_scripts_mistake(open_script: Open, tmp_path: Path, kind: str) -> None:
    open_script(f"model_fn = lambda path: 1\ntransform_fn = lambda model, body, kind, accept: ('x', {kind})")
    handler, own = started(tmp_path)
    [answer] = handler.handle([{"body": b""}], own)
    assert own.get_response_status(0)[0] == 500
    assert answer.startswith(f"The script answers with the content type {kind}; it must be text".encode())


def test_the_answer_to_a_failed_request_is_short(open_script: Open, tmp_path: Path) -> None:
    open_script("def model_fn(path): return 1\ndef input_fn(body, kind): raise ValueError('x' * 10_000_000)")
    handler, own = started(tmp_path)
    [answer] = handler.handle([{"body": b""}], own)
    assert own.get_response_status(0)[0] == 500
    assert len(answer) < 200_000


def test_results_become_bodies() -> None:
    assert encoder.encode([np.float32(1.5), float("nan")], "application/json") == "[1.5, null]"
    assert encoder.encode(np.arange(4).reshape(2, 2), "text/csv") == "0,1\n2,3\n"
    with pytest.raises(UnsupportedFormatError) as caught:
        encoder.encode(1, "text/html")
    assert caught.value.status_code == 406
