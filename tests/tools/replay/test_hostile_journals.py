"""Journals that clients, damage or strangers have written into: a replay counts such lines and goes on.

Ten thousand lines in each run; TS_HOSTILE_LINES has another number.
"""

import json
import os
import random
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pytest
from aiohttp import web
from tests.tools.replay.conftest import Serve, address
from tests.tools.replay.recorded import recorded, replayed, step

from torchserve_py.tools.journal.read_journal import JournalReader, JournalUnreadable
from torchserve_py.tools.replay.answer_documents import NotComparable, recorded_documents
from torchserve_py.tools.replay.recorded_outcomes import as_answered, broke_off
from torchserve_py.tools.replay.recorded_paths import OWN_SEGMENTS, NotReplayable
from torchserve_py.tools.replay.replay_requests import ReplayRequest, request_of

LINES: Final = int(os.environ.get("TS_HOSTILE_LINES", "10000"))
PROTOCOLS: Final = (None, "open_inference_rest", "open_inference_grpc", "truss", "custom", "openai_responses", "openpi")
PATHS: Final = (
    *("/predictions/m/1.0/..%2f..%2f..%2fmodels%2fother", "@127.0.0.1:1/x", ".evil.example/", "//evil.example/x"),
    *("http://evil.example/", "/models/other", "/%6dodels/other", "/a/%252e%252e/models", "/v1/responses/../../models"),
    *("/v1/models/m:predict", "/v1/models/other:predict", "/mine/a", "/drain", "/\x1b]0;x\x07", "/v1/completions", ""),
    *("/m/predict?x=1 HTTP/1.1\r\nHost: evil", "\\\\evil\\x", "/a/..;/models", "*", "/..", "/v2/repository/models/x"),
)
VALUES: Final = (
    *(None, True, False, 0, -1, 1.5, 1e308, 2**63, 10**400, "", "x", "\x1b[2J\u202e", "a\r\nb", "..", "../models"),
    *(
        [],
        [1],
        [None],
        {},
        {"a": 1},
        {"": ""},
        {"name": 1},
        "x" * 5000,
        "\x00",
        "🙂" * 100,
        [[[[]]]],
        "@evil/",
        "9" * 5000,
    ),
    *(
        [{"name": None, "content_type": None, "value": "x", "form": "text"}],
        [{"name": "a\r\nb", "value": "!", "form": "base64"}],
    ),
    *(
        {"url_path": "../../models"},
        {"host": "evil"},
        {"x": "1\r\n2"},
        {"explain": "True"},
        {":endpoint": "infer_stream"},
    ),
    *('{"model": "other"}', '{"parameters": {"sequence_id": "theirs"}}', "infer", "base64", "parameters", "grpc"),
)


def hostile(chance: random.Random) -> bytes:
    """Return a line in which some fields are something else."""
    record: dict[str, Any] = {**(step(1, "s") if chance.random() < 0.3 else recorded())}
    record["protocol"], record["path"] = chance.choice(PROTOCOLS), chance.choice(PATHS)
    record["method"] = chance.choice(("GET", "POST", "DELETE", "PUT", "CONNECT", "X\r\nY", ""))
    for _ in range(chance.randrange(4)):
        record[chance.choice([*record, "unknown"])] = chance.choice(VALUES)
    if chance.random() < 0.05:
        record.pop(chance.choice([*record]))
    line = bytearray(json.dumps(record).encode())
    if chance.random() < 0.1:
        place = chance.randrange(len(line))
        line[place : place + chance.randrange(3)] = chance.randbytes(3).replace(b"\n", b"")
    return bytes(line) + b"\n"


def check_stays(request: ReplayRequest, model: str) -> None:
    """Check that a request leads to nothing but its model, whatever is between here and there."""
    path, query = request.path.partition("?")[::2]
    for _ in range(4):
        assert path.startswith("/")
        assert not {".", ".."} & set(path.replace("\\", "/").split("/"))
        path = unquote(path)
    assert request.path.isascii()
    assert request.path.isprintable()
    assert "#" not in query
    first, *rest = request.path.split("?")[0][1:].split("/")
    if first in OWN_SEGMENTS and request.endpoint == "http":
        named = unquote(rest[0]) if rest else ""
        if first in ("predictions", "explanations"):
            assert named == model
        elif first == "v2":
            assert unquote(rest[1]) == model
        elif rest[:1] == ["models"]:
            assert unquote(rest[1]).split(":")[0] == model
        else:
            assert first in ("v1", "models", "invocations", "production", "development", "deployment", "environments")
            assert request.method in ("GET", "POST", "DELETE") if rest[:1] == ["responses"] else "POST"
            assert first != "models" or (named, *rest[1:]) == (model, "invoke")
    for name, value in request.headers.items():
        assert name.lower() not in ("host", "authorization", "transfer-encoding", "content-length")
        assert not {"\r", "\n", "\0"} & set(name + value)


def test_ten_thousand_hostile_lines_crash_nothing_and_reach_nothing(tmp_path: Path) -> None:
    chance = random.Random(os.environ.get("TS_HOSTILE_SEED", "40"))
    (tmp_path / "j.jsonl").write_bytes(
        b"".join([json.dumps(recorded()).encode() + b"\n", *(hostile(chance) for _ in range(LINES))])
    )
    reader = JournalReader([tmp_path], None)
    sent = 0
    for place in reader.places:
        record = reader.read(place)
        for version in (None, "2.0"):
            try:
                request = request_of(record, version, None if record["sequence"] is None else "replay-1")
            except NotReplayable:
                continue
            check_stays(request, record["model"])
            sent += 1
        try:
            recorded_documents(as_answered(record))
        except NotComparable:
            pass
        broke_off(record)
    assert len(reader.places) + reader.damaged + reader.incomplete == LINES + 1
    assert sent > LINES // 20
    assert reader.damaged > LINES // 20
    reader.close()


@pytest.mark.parametrize("key", [None, bytes(32)])
def test_arbitrary_files_are_no_journals(tmp_path: Path, key: bytes | None) -> None:
    chance = random.Random(40)
    for number in range(300):
        content = chance.randbytes(chance.randrange(200))
        if chance.random() < 0.5:
            content = b'{"salt": "%s"}\n{"n": %d, "sealed": "AAAA"}\n' % (b"A" * chance.randrange(30), number) + content
        (tmp_path / "j.jsonl").write_bytes(content)
        try:
            JournalReader([tmp_path], key).close()
        except JournalUnreadable as error:
            assert str(error)


async def test_a_replay_goes_on_behind_hostile_lines_and_its_key_goes_nowhere_else(
    tmp_path: Path, serve: Serve
) -> None:
    chance, seen = random.Random(7), []

    async def answer(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer secret"
        assert request.headers["Host"] == f"127.0.0.1:{server.port}"
        seen.append((request.method, request.raw_path))
        answers = ["", "[" * 900 + "]" * 900, "\x1b]0;x\x07", '{"a": "\\u202e"}', "1e999"]
        return web.Response(text=chance.choice(answers))

    server = await serve(answer)
    lines = [json.loads(each) for each in (hostile(chance) for _ in range(300)) if _is_json(each)]
    lines = [each for each in lines if each.get("protocol") not in ("open_inference_grpc", "openpi")]  # other ports
    good = [recorded(number, body=f"good {number}", path="/predictions/m") for number in range(3)]
    report = await replayed(tmp_path, [*lines, *good], address(server), key="secret")
    assert report.damaged + report.not_replayed.total() + report.replayed >= len(good)
    assert len(seen) >= len(good)
    mine = ("/predictions/m", "/explanations/m", "/v2/models/m", "/mine", "/v1/", "/m/", "/\x1b")
    assert [path for _, path in seen if not unquote(path).startswith(mine)] == []
    assert "\x1b" not in report.as_text()
    assert "\u202e" not in report.as_text()


def _is_json(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


async def test_a_model_that_only_a_hostile_line_names_keeps_the_others_from_nothing(
    tmp_path: Path, serve: Serve
) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=200 if request.raw_path in ("/v2/models/m", "/predictions/m") else 404)

    records = [recorded(1), recorded(2, model=".."), recorded(3, model="\x1b/other"), recorded(4)]
    report = await replayed(tmp_path, records, address(await serve(answer)), models={})
    assert report.equal == 2
    assert dict(report.not_replayed) == {"the server has no such model, or refuses it to this key": 2}


async def test_a_response_that_the_replay_has_not_made_is_left_alone(tmp_path: Path, serve: Serve) -> None:
    seen: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.raw_path)
        return web.Response()

    theirs = f"resp_{'a' * 64}"
    kept = {"protocol": "openai_responses"}
    records = [
        step(1, "s", **kept, method="DELETE", path=f"/v1/responses/{theirs}"),
        step(1, "t", **kept, path="/v1/responses", body=json.dumps({"previous_response_id": theirs})),
        step(1, "u", **kept, path="/v1/responses", body='{"conversation": {"id": "conv\\u005f%s"}}' % ("b" * 64)),
    ]
    report = await replayed(tmp_path, records, address(await serve(answer)))
    assert [each for each in seen if "responses" in each] == []
    assert dict(report.not_replayed) == {"it names a response or a conversation that the replay has not made": 3}
