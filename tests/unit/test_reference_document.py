"""docs/reference-python.md has every argument of `serve`, what `Client` and its sessions can do, and `context`."""

import inspect
import re
from pathlib import Path

import pytest

from torchserve_py.client import Answer, AsyncClient, AsyncSession, AsyncStoredSequence, Client, async_client
from ts import serve_decorator
from ts.context import Context

TEXT = (Path(__file__).parents[2] / "docs" / "reference-python.md").read_text()


def section(heading: str) -> str:
    return TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def names_of_the_client() -> set[str]:
    return {name for code in re.findall(r"`([^`]+)`", section("`Client`")) for name in re.findall(r"\w+", code)}


def test_it_has_the_arguments_of_serve() -> None:
    arguments = section("`ts.serve`").partition("| a class has |")[0]
    documented = re.findall(r"^\| `(\w+)` \|", arguments, re.MULTILINE)
    assert sorted(documented) == sorted(serve_decorator.ServeOptions._fields)


@pytest.mark.parametrize("kind", [Client, AsyncSession, AsyncStoredSequence, Answer])
def test_it_has_what_a_client_can_do(kind: type) -> None:
    names = {name for name in vars(kind) if not name.startswith("_")} - {"close"}
    names -= {"count", "index"} if kind is Answer else set()
    assert names - names_of_the_client() == set()


def test_it_has_the_arguments_of_the_client() -> None:
    arguments = {*inspect.signature(Client).parameters, *inspect.signature(AsyncClient.session).parameters} - {"self"}
    assert {*arguments, *async_client.Options.__annotations__} - names_of_the_client() == set()


def test_it_has_an_entry_for_everything_that_a_context_has() -> None:
    context = Context("model", "folder", None, 1, None, "1.0")
    first_cells = re.findall(r"^\| (`[^|]+) \|", section("`context`"), re.MULTILINE)
    codes = [code.removeprefix("context.") for cell in first_cells for code in re.findall(r"`([^`]+)`", cell)]
    documented = [found[0] for code in codes if (found := re.match(r"\w+", code))]
    assert sorted(documented) == sorted(name for name in dir(context) if not name.startswith("_"))
