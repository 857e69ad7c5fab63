"""What `--models` and `load_models` may say."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchserve_py.base.settings.model_spec import (
    ModelSpec,
    expand_model_specs,
    fallback_name,
    is_url,
    parse_model_specs,
)

PLAIN = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,12}", fullmatch=True)
NAMES = st.none() | PLAIN
FILES = PLAIN.map(lambda name: f"{name}.mar")
QUERIES = st.from_regex(r"\?[a-z]=[A-Za-z0-9=%&:]{0,8}(,[A-Za-z0-9=%&:]{1,8}){0,3}", fullmatch=True)
URLS = st.builds("https://h.example/{}{}".format, FILES, st.just("") | QUERIES)
SPECS = st.builds(ModelSpec, NAMES, FILES | URLS)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", []),
        (" , ,", []),
        ([], []),
        ("all", [(None, "all")]),
        ("x.mar", [(None, "x.mar")]),
        ("a=x.mar", [("a", "x.mar")]),
        (" a = x.mar , y.mar ", [("a", "x.mar"), (None, "y.mar")]),
        ("a=models/dir,/abs/dir", [("a", "models/dir"), (None, "/abs/dir")]),
        ("models/lr=0.1/x.mar", [(None, "models/lr=0.1/x.mar")]),
        (["a=x.mar", "b=y.mar,c=z.mar", "dir"], [("a", "x.mar"), ("b", "y.mar"), ("c", "z.mar"), (None, "dir")]),
        ("https://h/x.mar", [(None, "https://h/x.mar")]),
        ("https://h/x.mar?v=1", [(None, "https://h/x.mar?v=1")]),
        ("a=https://h/x.mar?v=1&w=2", [("a", "https://h/x.mar?v=1&w=2")]),
        ("a=HTTPS://h/x.mar?ids=1,2,3", [("a", "HTTPS://h/x.mar?ids=1,2,3")]),
        ("https://h/x.mar?ids=1,2,b=y.mar", [(None, "https://h/x.mar?ids=1,2"), ("b", "y.mar")]),
        ("https://h/x.mar,dir", [(None, "https://h/x.mar"), (None, "dir")]),
        ("https://h/x.mar?s=1,b=https://h/y.mar?s=2", [(None, "https://h/x.mar?s=1"), ("b", "https://h/y.mar?s=2")]),
        ("https://h/x,1/y.tar.gz,z.mar", [(None, "https://h/x,1/y.tar.gz"), (None, "z.mar")]),
        ("file:///m/x.mar,y.mar", [(None, "file:///m/x.mar"), (None, "y.mar")]),
    ],
)
def test_values(value: str | list[str], expected: list[tuple[str | None, str]]) -> None:
    assert parse_model_specs(value) == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("=x.mar", '"=x.mar" has no name before its "="'),
        ("a=", '"a=" has no location behind its "="'),
        ("a= ,x.mar", '"a=" has no location behind its "="'),
        (" = ", '"=" has no name before its "="'),
    ],
)
def test_a_value_without_name_or_location_is_an_error_that_shows_it(value: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        parse_model_specs(value)


@given(st.lists(SPECS, max_size=5))
def test_urls_and_files_survive_being_joined_by_commas(specs: list[ModelSpec]) -> None:
    assert parse_model_specs(",".join(map(str, specs))) == specs


@given(st.lists(SPECS, max_size=5))
def test_values_of_the_command_line_are_read_one_by_one(specs: list[ModelSpec]) -> None:
    assert parse_model_specs([str(spec) for spec in specs]) == specs


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        specs = parse_model_specs(text)
    except ValueError:
        return
    assert all(spec.location and spec.name != "" for spec in specs)


@pytest.fixture
def full_store(model_store: Path) -> Path:
    for name in ("b.mar", "a.tar.gz", "c.model", "notes.txt", "d.tgz", "e.zip", "F.TGZ", "flow.war", ".hidden.mar"):
        (model_store / name).touch()
    for name in ("folder", "lost+found", ".git"):
        (model_store / name).mkdir()
    for name in ("folder", ".git"):
        (model_store / name / "file").touch()
    return model_store


@pytest.mark.parametrize("value", ["all", "ALL", "All"])
def test_all_is_every_model_of_the_store(value: str, full_store: Path) -> None:
    names = [spec.location for spec in expand_model_specs(parse_model_specs(value), full_store)]
    assert names == ["F.TGZ", "a.tar.gz", "b.mar", "c.model", "d.tgz", "e.zip", "folder"]


def test_all_finds_the_models_of_mlserver_in_folders_of_folders(model_store: Path) -> None:
    for name in ("sums/v1", "sums/v2", "deep/er/iris", "plain", "empty/of/models"):
        (model_store / name).mkdir(parents=True)
    for name in ("sums/v1", "sums/v2", "deep/er/iris", "plain"):
        (model_store / name / "model-settings.json").touch()
    (model_store / "settings.json").touch()
    (model_store / "gone.mar").symlink_to("nowhere")
    names = [spec.location for spec in expand_model_specs(parse_model_specs("all"), model_store)]
    assert names == ["deep/er/iris", "empty", "gone.mar", "plain", "sums/v1", "sums/v2"]
    named = expand_model_specs(parse_model_specs("all,x=sums/v1"), model_store)
    assert [spec.location for spec in named] == ["deep/er/iris", "empty", "gone.mar", "plain", "sums/v2", "sums/v1"]


def test_nothing_hidden_counts_in_folders_of_folders(model_store: Path) -> None:
    for name in ("sums/v1", "sums/.old", "deep/er/iris", "deep/er/.old", "deep/.old/iris"):
        (model_store / name).mkdir(parents=True)
        (model_store / name / "model-settings.json").touch()
    (model_store / "sums" / ".DS_Store").touch()
    names = [spec.location for spec in expand_model_specs(parse_model_specs("all"), model_store)]
    assert names == ["deep/er/iris", "sums/v1"]


@pytest.mark.parametrize("value", [["all", "/srv/mine", "x=b.mar"], "/srv/mine,ALL,x=b.mar"])
def test_all_goes_together_with_other_models(value: str | list[str], full_store: Path) -> None:
    specs = expand_model_specs(parse_model_specs(value), full_store)
    stored = [(None, name) for name in ("F.TGZ", "a.tar.gz", "c.model", "d.tgz", "e.zip", "folder")]
    assert specs == [*stored, (None, "/srv/mine"), ("x", "b.mar")]


@pytest.mark.parametrize("value", ["a=all", "b.mar", ""])
def test_without_all_the_store_is_left_alone(value: str, full_store: Path) -> None:
    specs = parse_model_specs(value)
    assert expand_model_specs(specs, full_store) == specs


@pytest.mark.parametrize(
    ("location", "name"),
    [
        ("noop.mar", "noop"),
        ("resnet-18.mar", "resnet_18"),
        ("a.tar.gz", "a_tar_gz"),
        ("my.model", "my"),
        ("v1.marvel.mar", "v1_marvel"),
        ("https://h/x/noop.mar", "noop"),
        ("https://h/noop.mar?sig=a/b", "noop"),
        ("/abs/folder/", "folder"),
        ("größe.mar", "gr__e"),
    ],
)
def test_the_name_of_a_model_that_has_none(location: str, name: str) -> None:
    assert fallback_name(location) == name


def test_what_a_url_is() -> None:
    assert all(is_url(text) for text in ("http://x", "HTTPS://x", "file:///x"))
    assert not any(is_url(text) for text in ("x.mar", "ftp://x", "s3://x", "/http://x", "file:/x"))
