"""``ts.utils.util``: what handlers import from there."""

import json
import types
from pathlib import Path
from typing import Any

import pytest

from ts.utils.util import (
    CLEANUP_REGEX,
    PredictionException,
    check_valid_pt2_backend,
    deprecated,
    get_yaml_config,
    list_classes_from_module,
    load_label_mapping,
    map_class_to_label,
)


@pytest.mark.parametrize(
    "content",
    [{"0": "cat", "1": "dog"}, {"0": ["n1", "cat"], "1": ["n2", "dog"]}, {"object_type_names": ["cat", "dog"]}],
)
def test_label_mappings_come_in_three_forms(tmp_path: Path, content: dict[str, Any]) -> None:
    path = tmp_path / "index_to_name.json"
    path.write_text(json.dumps(content))

    assert load_label_mapping(str(path)) == {"0": "cat", "1": "dog"}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\xef\xbb\xbf" + b'{"0": "cat"}', None),
        (b'{"0": "K\xe4tzchen"}', "not in UTF-8: the byte 0xe4 in line 1"),
        (b'{"0": "cat"', "delimiter"),
        (b" " * (65 << 20), "larger than"),
    ],
    ids=["byte order mark", "encoding", "cut", "large"],
)
def test_what_is_wrong_with_the_file_of_a_label_mapping_is_named(
    tmp_path: Path, content: bytes, problem: str | None
) -> None:
    path = tmp_path / "index_to_name.json"
    path.write_bytes(content)
    if problem is None:
        assert load_label_mapping(str(path)) == {"0": "cat"}
    else:
        with pytest.raises(ValueError, match=rf"index_to_name\.json: .*{problem}"):
            load_label_mapping(str(path))


def test_a_missing_label_mapping_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load_label_mapping(str(tmp_path / "absent.json")) is None
    assert "absent.json" in caplog.text


@pytest.mark.parametrize("content", [["cat"], {"0": 1}, {"0": []}])
def test_any_other_label_mapping_is_refused(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "index_to_name.json"
    path.write_text(json.dumps(content))

    with pytest.raises(ValueError, match=r"index_to_name\.json"):
        load_label_mapping(str(path))


def test_probabilities_are_mapped_to_names() -> None:
    probabilities = [[0.7, 0.3], [0.6, 0.4]]

    assert map_class_to_label(probabilities) == [{"0": 0.7, "1": 0.3}, {"0": 0.6, "1": 0.4}]
    assert map_class_to_label(probabilities, {"0": "cat", "1": "dog"}, [[1, 0], [0, 1]]) == [
        {"dog": 0.7, "cat": 0.3},
        {"cat": 0.6, "dog": 0.4},
    ]
    assert map_class_to_label([]) == []


def test_only_classes_of_the_module_itself_are_listed() -> None:
    module = types.ModuleType("own_module")
    module.Imported = Path  # type: ignore[attr-defined]
    module.B = type("B", (), {"__module__": "own_module"})  # type: ignore[attr-defined]
    module.A = type("A", (module.B,), {"__module__": "own_module"})  # type: ignore[attr-defined]

    assert [cls.__name__ for cls in list_classes_from_module(module)] == ["A", "B"]
    assert list_classes_from_module(module, parent_class=module.A) == [module.A]


def test_yaml_is_read_safely(tmp_path: Path) -> None:
    path = tmp_path / "model-config.yaml"
    path.write_text("")
    assert get_yaml_config(str(path)) == {}
    path.write_text("a: [1, 2]")
    assert get_yaml_config(str(path)) == {"a": [1, 2]}
    for wrong, message in (
        ("- 1", "expected a mapping"),
        ("a: [", "not valid YAML"),
        ("!!python/name:os.system", "YAML"),
    ):
        path.write_text(wrong)
        with pytest.raises(ValueError, match=message):
            get_yaml_config(str(path))


def test_compile_backends_are_checked(caplog: pytest.LogCaptureFixture) -> None:
    assert check_valid_pt2_backend("inductor")
    assert not check_valid_pt2_backend("magic")
    assert "magic is not a supported backend" in caplog.text


def test_a_prediction_exception_has_message_and_code() -> None:
    error = PredictionException("no", 404)

    assert (error.message, error.error_code, str(error)) == ("no", 404, "no : 404")
    assert PredictionException("no").error_code == 500


def test_a_deprecated_function_warns_and_works() -> None:
    @deprecated("2.0", "other.place")
    def old(value: int) -> int:
        return value + 1

    with pytest.warns(PendingDeprecationWarning, match=r"old is deprecated in 2\.0 and moved to other\.place"):
        assert old(1) == 2


def test_markup_is_found() -> None:
    assert CLEANUP_REGEX.sub("", "<b>a&amp;b</b>&#38;") == "ab"
