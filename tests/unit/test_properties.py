"""Java properties files: what `java.util.Properties` reads from the same text, and the lines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchserve_py.base.settings.properties import PropertiesError, parse_properties, read_properties


def pairs(text):
    return [(entry.key, entry.value) for entry in parse_properties(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("key=value", [("key", "value")]),
        ("  key  =  value  ", [("key", "value  ")]),
        ("key:value", [("key", "value")]),
        ("key value", [("key", "value")]),
        ("key = = value", [("key", "= value")]),
        ("key", [("key", "")]),
        ("key=", [("key", "")]),
        ("inference_address=http://0.0.0.0:8080", [("inference_address", "http://0.0.0.0:8080")]),
        ("# comment\n! comment\n\n  # comment\na=1", [("a", "1")]),
        ("a=1 # no comment", [("a", "1 # no comment")]),
        ("a=one \\\n    two \\\n\tthree\nb=2", [("a", "one two three"), ("b", "2")]),
        ("a=ends with a backslash\\\\\nb=2", [("a", "ends with a backslash\\"), ("b", "2")]),
        ("a=1 \\\n# part of the value", [("a", "1 # part of the value")]),
        ("a=last line \\", [("a", "last line ")]),
        ("a=1\r\nb=2\rc=3", [("a", "1"), ("b", "2"), ("c", "3")]),
        (r"a\ b\=c=d", [("a b=c", "d")]),
        (r"a=tab\tquote\"dot\.", [("a", 'tab\tquote"dot.')]),
        (r"a=\u00e9\u20AC", [("a", "é€")]),
        ("a=1\na=2", [("a", "1"), ("a", "2")]),
        ("", []),
    ],
)
def test_text_is_read_as_java_reads_it(text, expected):
    assert pairs(text) == expected


def test_an_entry_has_the_number_of_its_first_line():
    entries = parse_properties("# one\na=1 \\\n  2\n\nb=3\r\nc=4")
    assert [(entry.key, entry.line) for entry in entries] == [("a", 2), ("b", 5), ("c", 6)]


def test_a_malformed_escape_names_its_line():
    with pytest.raises(PropertiesError, match="four hexadecimal digits") as caught:
        parse_properties("a=1\nb=\\u12x4")
    assert caught.value.line == 2


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1"])
def test_a_file_is_utf8_or_latin1(tmp_path, encoding):
    path = tmp_path / "config.properties"
    path.write_bytes("model_store=/modèles\n".encode(encoding))
    assert [(entry.key, entry.value) for entry in read_properties(path)] == [("model_store", "/modèles")]


@given(
    st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.text(st.characters(codec="utf-8"), max_size=20))
)
def test_what_is_escaped_comes_back(entries):
    def escape(value):
        return "".join(f"\\u{unit:04x}" if unit < 0x10000 else chr(unit) for unit in map(ord, value))

    text = "\n".join(f"{key}={escape(value)}" for key, value in entries.items())
    assert dict(pairs(text)) == entries
