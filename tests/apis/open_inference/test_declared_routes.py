"""Paths that models declare: how they match, and which declarations are usable."""

import re
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchserve_py.apis.open_inference.custom_routes import decoded_path, read_routes
from torchserve_py.endpoints.path_templates import read_template


def matches(template: str, path: str) -> bool:
    return read_template(template).match(decoded_path(path)) is not None


@pytest.mark.parametrize(
    ("template", "path", "expected"),
    [
        ("/", "/", True),
        ("/a", "/a?x=1", True),
        ("/a", "/a/", False),
        ("/a", "/A", False),
        ("/{x}", "/", False),
        ("/{x}", "/y", True),
        ("/{x}", "/y/z", False),
        ("/{x:int}", "/12", True),
        ("/my route", "/my%20route", True),
        ("/{x}/z", "/a%2Fb/z", True),
        ("/f/{a}-{b}.json", "/f/1-2.json", True),
        ("/f/{a}-{b}.json", "/f/-1-2-.json", True),
        ("/f/{a}-{b}.json", "/f/1-.json", False),
        ("/f/{a}-{b}.json", "/f/1-2.jso", False),
        ("/{a}{b}", "/1", False),
        ("/{a}{b}", "/12", True),
        ("/x{a}x", "/xx", False),
        ("/x{a}x", "/xax", True),
        ("/files/{p:path}", "/files/a/b/c", True),
        ("/files/{p:path}", "/files/", False),
        ("/files/{p:path}", "/files/a/", True),
        ("/files/{p:path}/meta/{x}", "/files/a/b/meta/1", True),
        ("/files/{p:path}/meta/{x}", "/files/meta/1", False),
    ],
)
def test_a_path_matches(template: str, path: str, expected: bool) -> None:
    assert matches(template, path) is expected


TEMPLATES = ["/" + "".join(pieces) for pieces in product(["{a}", "x", "xy", "-"], ["{b}", "-", ""], ["{c}", "x", ".j"])]


@given(st.sampled_from(TEMPLATES), st.text("x-y.j", max_size=8))
def test_a_path_matches_as_by_a_regular_expression(template: str, text: str) -> None:
    pattern = re.sub(r"\\{\w\\}", "[^/]+", re.escape(template))
    assert matches(template, f"/{text}") is (re.fullmatch(pattern, f"/{text}") is not None)


@pytest.mark.parametrize(
    "template", ["a", "", "/{}", "/{a:re}", "/{a b}", "/{a:path}/{b:path}", "/x-{a:path}", "/" * 2000]
)
def test_an_unusable_template_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match="the path"):
        read_template(template)


@pytest.mark.parametrize(
    "declared",
    [
        5,
        "/a",
        {"/a": ["GET"]},
        [5],
        [["/a"]],
        [["/a", "GET", "f"]],
        [["/a", [], "f"]],
        [["/a", ["get it"], "f"]],
        [["/a", [5], "f"]],
        [[5, ["GET"], "f"]],
        [["/a", ["GET"], None]],
        [["/a", ["GET"], "f"]] * 2000,
    ],
)
def test_unusable_routes_are_refused(declared: object) -> None:
    with pytest.raises(ValueError, match="route"):
        read_routes(declared)


def test_usable_routes() -> None:
    assert read_routes(None) == ()
    [route] = read_routes([["/a/{b}", ["GET", "POST"], "f"]])
    assert (route.methods, route.endpoint) == (("GET", "POST"), "f")
