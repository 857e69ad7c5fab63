"""Reading, checking and writing MANIFEST.json."""

import json
from pathlib import Path

import pytest

from torchserve_py.core.archive.errors import InvalidArchive
from torchserve_py.core.archive.manifest import MAX_MANIFEST_BYTES, describe, parse, read

MODEL = {
    "modelName": "noop",
    "serializedFile": "model.pt",
    "handler": "custom:entry",
    "modelFile": "model.py",
    "modelVersion": "2.1",
    "requirementsFile": "requirements.txt",
    "configFile": "model-config.yaml",
    "envelope": "json",
}
FULL = {
    "createdOn": "30/05/2024 21:41:47",
    "runtime": "python3",
    "model": MODEL,
    "archiverVersion": "0.12.0",
}


def test_every_key_is_read() -> None:
    manifest = parse(json.dumps(FULL))
    assert manifest.model_name == "noop"
    assert manifest.serialized_file == "model.pt"
    assert manifest.handler == "custom:entry"
    assert manifest.model_file == "model.py"
    assert manifest.model_version == "2.1"
    assert manifest.requirements_file == "requirements.txt"
    assert manifest.config_file == "model-config.yaml"
    assert manifest.envelope == "json"
    assert manifest.runtime == "python3"


def test_unknown_keys_are_kept_for_the_handler() -> None:
    model: dict[str, object] = {**MODEL, "labels": {"a": 1}}
    raw = {**FULL, "mine": [1, 2], "model": model}
    assert parse(json.dumps(raw)).raw == raw


def test_what_is_missing_has_torchserves_defaults() -> None:
    manifest = parse("{}")
    assert (manifest.model_name, manifest.handler, manifest.config_file) == (None, None, None)
    assert manifest.model_version == "1.0"
    assert manifest.runtime == "python"


def test_a_number_as_version_is_read_as_text() -> None:
    assert parse('{"model": {"modelVersion": 3}}').model_version == "3"


def test_null_and_empty_values_count_as_missing() -> None:
    manifest = parse('{"model": {"modelName": "", "handler": null}}')
    assert manifest.model_name is None
    assert manifest.handler is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Failed to parse signature.json."),
        ("", "Failed to parse signature.json."),
        (b"\xff\xfe\xfa", "Failed to parse signature.json."),
        ("[" * 100_000, "Failed to parse signature.json."),
        ("[]", "Failed to parse signature.json."),
        ("null", "Failed to parse signature.json."),
        ('{"model": []}', "Failed to parse signature.json."),
        ('{"model": {"modelName": {}}}', "Failed to parse signature.json."),
        ('{"model": {"modelName": true}}', "Failed to parse signature.json."),
        ('{"model": {"configFile": "../../secret.yaml"}}', "Failed to parse signature.json."),
        ('{"model": {"serializedFile": "/etc/passwd"}}', "Failed to parse signature.json."),
        ('{"model": null}', "Missing Model entry in manifest file."),
        ('{"runtime": "cobol"}', "Runtime is not defined or invalid."),
        ('{"runtime": "PYTHON"}', "Runtime is not defined or invalid."),
        ('{"runtime": null}', "Runtime is not defined or invalid."),
        ('{"runtime": ["python"]}', "Runtime is not defined or invalid."),
    ],
)
def test_a_bad_manifest_gets_torchserves_message(text: str | bytes, message: str) -> None:
    with pytest.raises(InvalidArchive) as caught:
        parse(text)
    assert caught.value.message == message
    assert (caught.value.status, caught.value.error_type) == (400, "InvalidModelException")


def test_the_message_names_the_key_and_the_value() -> None:
    with pytest.raises(InvalidArchive, match=r"model.configFile is '../x.yaml' \(str\), it must be the path of a"):
        parse('{"model": {"configFile": "../x.yaml"}}')


def test_a_manifest_of_unreasonable_size_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "MANIFEST.json"
    path.write_text(json.dumps({"filler": "x" * MAX_MANIFEST_BYTES}))
    with pytest.raises(InvalidArchive, match="larger than"):
        read(path)


@pytest.mark.parametrize(
    ("encoding", "message"),
    [("utf-16", "the text is in UTF-16; save it in UTF-8"), ("latin-1", "the byte 0xf6 in line 3; save it in UTF-8")],
)
def test_a_manifest_in_another_encoding_says_how_to_save_it(tmp_path: Path, encoding: str, message: str) -> None:
    path = tmp_path / "MANIFEST.json"
    path.write_bytes(json.dumps({"model": {"modelName": "größe"}}, indent=1, ensure_ascii=False).encode(encoding))
    with pytest.raises(InvalidArchive, match=message):
        read(path)


def test_a_byte_order_mark_is_no_part_of_a_manifest(tmp_path: Path) -> None:
    path = tmp_path / "MANIFEST.json"
    path.write_text(json.dumps(FULL), encoding="utf-8-sig")
    assert read(path).model_name == "noop"


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    manifest = describe(model_name="größe", model_version="1.0", handler="h:f", config_file="c.yaml")
    path = tmp_path / "MANIFEST.json"
    path.write_text(manifest.to_json(), encoding="utf-8")
    assert read(path) == manifest
    assert list(manifest.raw) == ["runtime", "model"]
    assert "serializedFile" not in manifest.raw["model"]


def test_details_follow_a_message_that_is_a_sentence_as_one() -> None:
    with pytest.raises(InvalidArchive) as error:
        parse('{"runtime": "cobol"}')
    assert str(error.value).startswith('Runtime is not defined or invalid. Found "cobol", must be one of ')
