"""Heads of responses, whatever a handler puts into them."""

import asyncio
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.endpoints.fakes import FakeMetrics, make_settings
from tests.net.http1.engine import Talk

from torchserve_py.endpoints.failures import failure_of
from torchserve_py.endpoints.responses import Responses, to_json
from torchserve_py.net.http1.errors import BadResponse

RESPONSES = Responses(make_settings(Path()), FakeMetrics())
TOKEN = st.text("abcXYZ019-_", min_size=1, max_size=10)
HEAD = b"POST /wait HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
TEXTS = st.one_of(TOKEN, st.text(max_size=20), st.sampled_from(["a\r\nb: c", "\r\n\r\nbody", "a\nb", "\0", "x:y", " "]))


def head_of(status, headers, reason):
    """What is sent before a body."""

    async def answer():
        talk = Talk()
        await talk.send(HEAD)
        request = talk.application.requests[0]
        request.respond(status, RESPONSES.lines(request, headers, "id"), b"x", reason)
        return bytes(talk.transport.written)

    head, _, body = asyncio.run(answer()).decode("utf-8", "surrogateescape").partition("\r\n\r\n")
    assert body in ("x", "")
    return head + "\r\n\r\n"


@settings(deadline=None)
@given(
    headers=st.lists(st.tuples(TEXTS, TEXTS), max_size=5),
    status=st.one_of(st.integers(), st.integers(200, 599)),
    reason=st.one_of(st.just(""), TEXTS),
)
def test_a_handler_adds_whole_header_lines_or_nothing(headers, status, reason):
    plain = head_of(200, (), "").split("\r\n")
    try:
        head = head_of(status, headers, reason)
    except BadResponse as error:
        assert failure_of(error).status == 500
        return
    lines = head.split("\r\n")
    assert lines[0].startswith(f"HTTP/1.1 {status} ")
    assert lines[-2:] == ["", ""]
    varying = ("date: ", "content-length: ")  # some statuses allow no body
    own = [line for line in plain[1:-2] if not line.startswith(varying)]
    rest = [line for line in lines[1:-2] if not line.startswith(varying)]
    assert rest[: len(own)] == own
    added = rest[len(own) :]
    sent = [f"{name}: {value}" for name, value in headers]
    assert [line for line in sent if line in added] == added
    assert "\r" not in "".join(lines)
    assert "\n" not in "".join(lines)


def test_the_servers_json_is_indented_and_ends_with_a_newline():
    assert to_json({"a": "é", "b": []}).decode() == '{\n  "a": "é",\n  "b": []\n}\n'
