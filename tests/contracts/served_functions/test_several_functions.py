"""Files with several decorated functions: which of them a model is."""

from pathlib import Path
from types import ModuleType

import pytest

from torchserve_py.core.archive.errors import InvalidArchive
from torchserve_py.core.archive.file_function import FileFunction, split_function
from torchserve_py.core.archive.locate import locate
from torchserve_py.core.archive.model_files import ModelFiles, open_model
from torchserve_py.core.plans.contracts import configuration_of
from torchserve_py.tools.quickstart.served_path import ServedPath
from ts import serve
from ts.contracts.served_functions.adapter import adapt
from ts.jobs.errors import LoadError

SEARCH = """
from ts import serve


@serve(batch_size=8)
def embed(texts: list[str]) -> list[int]: ...


@serve
async def search(query: str) -> int: ...


def handle(data, context): ...
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "search.py"
    path.write_text(SEARCH)
    return path


def chosen(file: Path, function: str) -> ModelFiles:
    return open_model(file, file.parent, url=f"{file}:{function}")


def test_one_is_chosen_behind_a_colon(file: Path) -> None:
    embed, search = chosen(file, "embed"), chosen(file, "search")
    assert (embed.name, embed.manifest.handler) == ("embed", "search.py:embed")
    assert embed.function == FileFunction(str(file), "embed")
    assert search.function == FileFunction(str(file), "search")
    configs = [configuration_of(each).config for each in (embed, search)]
    assert [each.batch_size for each in configs] == [8, None]
    assert [each.async_communication for each in configs] == [None, True]


def test_a_file_with_one_has_a_choice_too_and_its_model_calls_none(tmp_path: Path) -> None:
    file = tmp_path / "shout.py"
    file.write_text("from ts import serve\n\n@serve\ndef loud(text): ...\n")
    assert (open_model(file, tmp_path).name, chosen(file, "loud").name) == ("shout", "loud")
    assert chosen(file, "loud").function is None


def test_the_handler_of_a_folder_or_an_archive_chooses_likewise(file: Path) -> None:
    files = open_model(file.parent, file.parent, handler="search.py:search")
    assert files.function == FileFunction(str(file), "search")
    assert configuration_of(files).config.async_communication


@pytest.mark.parametrize(
    ("function", "told"),
    [("", "has 2 models: embed, search; choose one, such as search.py:search"), ("look", "are embed, search")],
)
def test_without_one_of_them_the_file_is_refused_with_the_names(file: Path, function: str, told: str) -> None:
    with pytest.raises(InvalidArchive, match=told):
        open_model(file, file.parent, url=f"{file}:{function}" if function else str(file))


def test_a_function_of_torchserves_interface_in_the_file_is_a_handler(file: Path) -> None:
    assert chosen(file, "handle").source is None


def test_a_colon_in_other_names_means_nothing(tmp_path: Path) -> None:
    assert [*map(split_function, ("a:b", "a.py:b c", "https://host:80/a.mar", "d:a.py"))] == [
        ("a:b", ""),
        ("a.py:b c", ""),
        ("https://host:80/a.mar", ""),
        ("d:a.py", ""),
    ]


def test_the_file_is_found(file: Path, tmp_path: Path) -> None:
    assert locate(f"{file}:embed", tmp_path / "store") == file
    assert locate("search.py:embed", tmp_path) == file


def test_serve_has_a_model_for_each(file: Path, tmp_path: Path) -> None:
    def locations(text: str) -> list[str]:
        return [each.location for each in ServedPath.of(text, tmp_path).specs()]

    assert locations(str(file)) == [f"{file}:embed", f"{file}:search"]
    assert locations(f"{file}:embed") == [f"{file}:embed"]
    file.write_text("from ts import serve\n\n@serve\ndef embed(text): ...\n")
    assert locations(str(file)) == [str(file)]


def test_a_worker_runs_the_one_that_its_handler_names() -> None:
    module = ModuleType("search")

    def embed(text: str) -> str:
        return text

    def search(text: str) -> str:
        return text

    for each in (embed, search):
        each.__module__ = "search"
        setattr(module, each.__name__, serve(each))
    with pytest.raises(LoadError, match=r"has 2 models: embed, search\. Choose one as the handler"):
        adapt(module)
    assert adapt(module, "handle") is None
    handler = adapt(module, "search")
    assert handler is not None
    assert handler.calls is not None
    assert module.search is search
    assert module.embed is not embed
