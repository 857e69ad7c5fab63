"""Addresses, limits of a connection, and what is no request."""

import asyncio
import json
import re
import socket
import stat
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
import uvloop
from tests.endpoints.conftest import open_endpoints
from tests.endpoints.fake_serving import FakeModel, FakeServing
from tests.endpoints.fakes import ANY_PORT, FakeMetrics, make_settings

from torchserve_py.base.logs import access_log
from torchserve_py.base.settings.addresses import Address, parse_address
from torchserve_py.endpoints import http_listeners
from torchserve_py.endpoints.binding import HTTP_ADDRESSES, ListenError


async def free_port() -> int:
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return port


async def test_three_endpoints_on_three_addresses(serving):
    addresses = serving.endpoints.addresses
    assert set(addresses) == {"inference_address", "management_address", "metrics_address"}
    assert len({address.port for address in addresses.values()}) == 3
    assert (await serving.request("GET", "/models", endpoint="management")).status == 200
    assert (await serving.request("GET", "/predictions/noop", endpoint="management")).status == 404
    assert (await serving.request("GET", "/metrics", endpoint="metrics")).status == 200
    assert (await serving.request("GET", "/metrics", endpoint="inference")).status == 404


async def test_endpoints_with_one_address_share_a_listener(start):
    address = replace(ANY_PORT, port=await free_port())
    models = FakeServing([FakeModel("noop", "1.0"), FakeModel("noop", "2.0")])
    serving = await start(models, inference_address=address, management_address=address, metrics_address=address)
    assert (await serving.request("POST", "/predictions/noop/2.0", data=b"x")).body == b"x"
    assert (await serving.request("GET", "/models/noop/2.0")).json()[0]["modelVersion"] == "2.0"
    assert (await serving.request("PUT", "/models/noop/2.0/set-default")).status == 200
    assert (await serving.request("GET", "/metrics")).status == 200


async def test_metrics_can_be_off(start):
    serving = await start(enable_metrics_api=False)
    assert "metrics_address" not in serving.endpoints.addresses


async def test_a_port_in_use_is_named_and_nothing_stays_open(serving, tmp_path):
    taken = serving.address()
    management = replace(ANY_PORT, port=await free_port())
    settings = make_settings(tmp_path, inference_address=management, management_address=taken)
    with pytest.raises(ListenError) as error:
        await open_endpoints(settings, FakeServing(), serving.metrics)
    assert "management_address" in str(error.value)
    assert str(taken) in str(error.value)
    assert "in use" in str(error.value)
    with pytest.raises(ConnectionError):
        await asyncio.open_connection(management.host, management.port)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        (Address("https", "203.0.113.7", 0), "https://203.0.113.7:0"),
        (Address("http", "203.0.113.7", 0), "http://203.0.113.7:0"),
        (Address("unix", path="/nonexistent/folder/socket"), "unix:/nonexistent/folder/socket"),
    ],
)
async def test_addresses_that_cannot_be_used(tmp_path, serving, address, message):
    with pytest.raises(ListenError, match="inference_address") as error:
        await open_endpoints(make_settings(tmp_path, inference_address=address), FakeServing(), serving.metrics)
    assert message in str(error.value)


async def test_unix_sockets(start, tmp_path):
    path = tmp_path / "inference.sock"
    serving = await start(inference_address=Address("unix", path=str(path)))
    assert stat.S_ISSOCK(path.stat().st_mode)
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as client,
        client.post("http://localhost/predictions/noop", data=b"x") as response,
    ):
        assert await response.read() == b"x"
    await serving.endpoints.close()
    assert not path.exists()


async def test_a_socket_file_left_behind_is_replaced(start, tmp_path):
    path = tmp_path / "inference.sock"
    left_behind = await asyncio.start_unix_server(lambda reader, writer: None, path)
    left_behind.close()
    await start(inference_address=Address("unix", path=str(path)))
    _, writer = await asyncio.open_unix_connection(path)
    writer.close()


async def test_the_socket_of_a_running_server_is_not_taken_away(start, tmp_path):
    address = Address("unix", path=str(tmp_path / "inference.sock"))
    serving = await start(inference_address=address)
    with pytest.raises(ListenError, match="in use"):
        await open_endpoints(make_settings(tmp_path, management_address=address), FakeServing(), serving.metrics)
    _, writer = await asyncio.open_unix_connection(address.path)
    writer.close()


async def test_any_other_file_is_not(tmp_path, serving):
    path = Path(tmp_path / "notes.txt")
    path.write_text("precious")
    with pytest.raises(ListenError, match="inference_address"):
        settings = make_settings(tmp_path, inference_address=Address("unix", path=str(path)))
        await open_endpoints(settings, FakeServing(), serving.metrics)
    assert path.read_text() == "precious"


async def test_closing_ends_idle_connections(serving):
    connection = await serving.raw(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await connection.head()
    async with asyncio.timeout(60):
        await serving.endpoints.close()
    assert (await connection.rest()).endswith(b"}\n")


async def test_closing_lets_an_answer_finish(serving):
    model = serving.registry.model
    model.behave = lambda call: None
    connection = await serving.raw(b"GET /predictions/noop HTTP/1.1\r\nHost: localhost\r\n\r\n")
    async with asyncio.timeout(60):
        await model.submitted.wait()
        closing = asyncio.ensure_future(serving.endpoints.close())
        await asyncio.sleep(0)
        model.calls[0].part(b"done")
        await closing
    assert (await connection.rest()).endswith(b"\r\n\r\ndone")


@pytest.mark.parametrize(
    ("request_bytes", "named"),
    [
        (b"NONSENSE\r\n\r\n", "Invalid HTTP message."),
        (b"G(T / HTTP/1.1\r\nHost: localhost\r\n\r\n", "ethod"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "HTTPS traffic on an HTTP port"),
        (b"GET /live HTTP/1.1\r\n\r\n", "Invalid HTTP message."),  # no Host
        (b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", "4096"),
        (b"GET /live HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"a" * 9000 + b"\r\n\r\n", "8192"),
        (b"POST /live HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", "Invalid HTTP message."),
        (
            b"POST /live HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            "Invalid HTTP message.",
        ),
    ],
)
async def test_what_is_no_request_gets_400_and_the_connection_is_closed(serving, request_bytes, named):
    connection = await serving.raw(request_bytes)
    head = await connection.head()
    assert head.startswith("http/1.1 400 bad request\r\n")
    assert "connection: close" in head
    body = json.loads(await connection.rest())
    assert (body["code"], body["type"]) == (400, "BadRequestException")
    assert body["message"].startswith("Invalid HTTP message.")
    assert named in body["message"]
    assert serving.metrics.counts == (0, 1, 0)


@pytest.mark.parametrize("earlier", [b"", b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n"], ids=["first", "second"])
async def test_half_a_head_does_not_hold_a_connection_for_long(start, earlier):
    serving = await start(request_head_timeout=0.05)
    connection = await serving.raw(earlier)
    if earlier:
        await connection.head()
        await connection.reader.readuntil(b"}\n")
    for piece in (b"GET /live HTTP/1.1\r\n", b"Host: localhost\r\nX-Sl"):
        connection.writer.write(piece)
        await connection.writer.drain()
    async with asyncio.timeout(60):
        head = await connection.head()
        body = json.loads(await connection.rest())
    assert head.startswith("http/1.1 408 request timeout\r\n")
    assert "connection: close" in head
    assert (body["type"], "head of the request" in body["message"]) == ("RequestTimeoutException", True)


async def test_the_limit_for_heads_is_not_one_for_idle_connections_or_long_answers(start):
    serving = await start(request_head_timeout=1e-9)
    model = serving.registry.model
    model.behave = lambda call: None
    connection = await serving.raw(b"GET /predictions/noop HTTP/1.1\r\nHost: localhost\r\n\r\n")
    async with asyncio.timeout(60):
        await model.submitted.wait()
        await asyncio.sleep(0)
        model.calls[0].part(b"done")
        assert (await connection.head()).startswith("http/1.1 200 ")
        assert await connection.reader.readexactly(4) == b"done"
        connection.writer.write(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await connection.head()).startswith("http/1.1 200 ")
    await connection.close()


@pytest.mark.parametrize(("rate", "stall"), [(1e9, 0.05), (1.0, 0.05)], ids=["slow", "silent"])
async def test_a_body_that_does_not_come_to_an_end_is_given_up(start, monkeypatch, rate, stall):
    monkeypatch.setattr("torchserve_py.net.http1.http_connection.MIN_RATE", rate)
    serving = await start(default_response_timeout=stall)
    connection = await serving.raw(
        b"POST /predictions/noop HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
    )

    async def drip() -> None:
        while rate > 1:
            connection.writer.write(b"x")
            await asyncio.sleep(0.001)

    dripping = asyncio.create_task(drip())
    async with asyncio.timeout(60):
        head = await connection.head()
    dripping.cancel()
    assert head.startswith("http/1.1 408 ")
    assert "connection: close" in head
    assert serving.registry.model.calls == []


async def test_bodies_up_to_the_limit_pass(start):
    serving = await start(max_request_size=1000)
    assert (await serving.request("POST", "/predictions/noop", data=b"x" * 1000)).status == 200


@pytest.mark.parametrize("framing", [b"Content-Length: 1001", b"Transfer-Encoding: chunked"])
@pytest.mark.parametrize("at_once", [True, False])
async def test_larger_bodies_get_413_with_no_body_and_the_connection_is_closed(start, framing, at_once):
    serving = await start(max_request_size=1000)
    body = b"x" * 1001
    if b"chunked" in framing:
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    connection = await serving.raw(b"POST /predictions/noop HTTP/1.1\r\nHost: localhost\r\n" + framing + b"\r\n\r\n")
    if not at_once:
        await connection.writer.drain()
        await asyncio.sleep(0)
    connection.writer.write(body)
    head = await connection.head()
    assert head.startswith("http/1.1 413 ")
    assert "content-length: 0" in head
    assert "connection: close" in head
    assert await connection.rest() == b""
    assert serving.registry.model.calls == []


async def test_a_body_announced_as_too_large_is_refused_unread(serving):
    connection = await serving.raw(
        b"PUT /predictions/noop HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Length: 1000000000\r\nExpect: 100-continue\r\n\r\n"
    )
    assert (await connection.head()).startswith("http/1.1 413 ")
    await connection.close()


async def test_expect_100_continue(serving):
    connection = await serving.raw(
        b"PUT /predictions/noop HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"
    )
    assert await connection.head() == "http/1.1 100 continue\r\n\r\n"
    connection.writer.write(b"body")
    assert "200 ok" in await connection.head()
    assert await connection.reader.readexactly(4) == b"body"
    await connection.close()


async def test_a_body_that_does_not_arrive_ends_the_wait(start):
    serving = await start(default_response_timeout=0.2)
    connection = await serving.raw(b"PUT /predictions/noop HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nbo")
    head = await connection.head()
    assert head.startswith("http/1.1 408 ")
    assert "connection: close" in head
    assert json.loads(await connection.rest())["type"] == "RequestTimeoutException"


async def test_a_malformed_chunk_is_a_bad_request(serving):
    connection = await serving.raw(
        b"PUT /predictions/noop HTTP/1.1\r\nHost: localhost\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\nnonsense\r\n"
    )
    assert (await connection.head()).startswith("http/1.1 400 ")
    assert serving.registry.model.calls == []
    await connection.close()


async def test_a_malformed_chunk_that_comes_late_is_a_bad_request_at_once(serving):
    connection = await serving.raw(
        b"PUT /predictions/noop HTTP/1.1\r\nHost: localhost\r\n"
        b"Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    assert (await connection.head()).startswith("http/1.1 100 ")  # the body is being read
    connection.writer.write(b"4\r\nbody\r\nnonsense\r\n")
    assert (await connection.head()).startswith("http/1.1 400 ")
    assert serving.registry.model.calls == []
    await connection.close()


async def test_compressed_bodies_are_not_touched(serving):
    headers = {"Content-Encoding": "gzip"}
    answer = await serving.request("POST", "/predictions/noop", data=b"not gzip at all", headers=headers)
    assert (answer.status, answer.body) == (200, b"not gzip at all")


async def test_cross_origin_headers_are_sent_when_an_origin_is_configured(start):
    headers = {"cors_allowed_origin": "https://example.org", "cors_allowed_methods": "GET, POST"}
    serving = await start(**headers, cors_allowed_headers="X-One")
    answer = await serving.request("GET", "/ping")
    assert answer.headers["access-control-allow-origin"] == "https://example.org"
    assert answer.headers["access-control-allow-methods"] == "GET, POST"
    assert answer.headers["access-control-allow-headers"] == "X-One"
    serving = await start(cors_allowed_methods="GET", cors_allowed_headers="X-One")
    assert "access-control-allow-origin" not in (await serving.request("GET", "/ping")).headers
    serving = await start(cors_allowed_origin="*")
    answer = await serving.request("GET", "/ping")
    assert answer.headers["access-control-allow-origin"] == "*"
    assert answer.headers["access-control-allow-methods"] == "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
    assert answer.headers["access-control-allow-headers"] == "*, Authorization"


async def test_browsers_may_ask_without_a_token_before_they_call(start):
    cross_origin = {"cors_allowed_origin": "*", "cors_allowed_methods": "POST", "cors_allowed_headers": "authorization"}
    serving = await start(**cross_origin, disable_token_authorization=False)
    asking = {"Origin": "https://example.org", "Access-Control-Request-Method": "POST"}
    for path, endpoint in (("/predictions/noop", "inference"), ("/models", "management"), ("/metrics", "metrics")):
        answer = await serving.request("OPTIONS", path, endpoint=endpoint, headers=asking)
        assert (answer.status, answer.body) == (200, b"")
        assert answer.headers["access-control-allow-methods"] == "POST"
    assert (await serving.request("OPTIONS", "/predictions/noop")).status == 400  # that is no such question
    assert (await serving.request("OPTIONS", "/nothing", headers=asking)).status == 404
    serving = await start(disable_token_authorization=False)
    assert (await serving.request("OPTIONS", "/predictions/noop", headers=asking)).status == 400


async def test_the_access_log_has_one_line_for_each_request(start, caplog):
    caplog.set_level("INFO", logger="ACCESS_LOG")
    serving = await start(access_log=True)
    await serving.request("POST", "/predictions/noop?a=b", data=b"x")
    await serving.request("GET", "/nothing")
    access_log.flush()
    lines = [record.getMessage() for record in caplog.records if record.name == "ACCESS_LOG"]
    assert len(lines) == 2
    pattern = r'/127\.0\.0\.1:\d+ "POST /predictions/noop\?a=b HTTP/1\.1" 200 \d+'
    assert re.fullmatch(pattern, lines[0])
    assert '"GET /nothing HTTP/1.1" 404 ' in lines[1]


async def test_requests_are_logged_and_counted_under_the_pattern_of_their_path(start, caplog):
    caplog.set_level("INFO", logger="ACCESS_LOG")
    serving = await start(access_log=True)
    await serving.request("POST", "/predictions/noop/1.0/v1/chat", data=b"x")
    await serving.request("PUT", "/live/")
    await serving.request("TRACE", "/live")
    await serving.request("GET", "/nothing")
    access_log.flush()
    routes = [getattr(record, "route", "") for record in caplog.records if record.name == "ACCESS_LOG"]
    deep = "/predictions/{model_name}/{model_version}/{rest:path}"
    assert routes == [deep, "/live", "/live", ""]
    assert serving.metrics.http_requests == {
        ("POST", deep, 200): 1,
        ("PUT", "/live", 200): 1,
        ("other", "/live", 405): 1,
        ("GET", "", 404): 1,
    }


async def test_without_the_setting_there_is_no_access_log(start, caplog):
    caplog.set_level("INFO")
    serving = await start(access_log=False)
    await serving.request("GET", "/live")
    access_log.flush()
    assert "ACCESS_LOG" not in {record.name for record in caplog.records}


async def test_a_record_of_the_access_log_names_the_job_and_its_sequence(start, caplog):
    registry = FakeServing()
    registry.model.is_stateful = True
    serving = await start(registry, access_log=True)
    with caplog.at_level("INFO", "ACCESS_LOG"):
        answer = await serving.request(
            "POST", "/predictions/noop", data=b"x", headers={"ts_request_sequence_id": "seq_0"}
        )
        access_log.flush()
    (record,) = [each for each in caplog.records if each.name == "ACCESS_LOG"]
    assert record.request_id == answer.headers["x-request-id"]
    assert (record.sequence_id, record.status) == ("seq_0", 200)


def test_closing_does_not_wait_for_a_client_that_reads_nothing(tmp_path, monkeypatch):
    """The event loop of a server waits for connections that still have something to send."""
    monkeypatch.setattr(http_listeners, "_CLOSE_SECONDS", 0.05)

    async def close_while_it_reads_nothing() -> None:
        registry = FakeServing()
        registry.model.behave = lambda call: call.part(b"x" * 50_000_000)
        endpoints = await open_endpoints(make_settings(tmp_path), registry, FakeMetrics(), tmp_path / "key_file.json")
        address = endpoints.addresses["inference_address"]
        reader, writer = await asyncio.open_connection(address.host, address.port, limit=1000)
        writer.write(b"GET /predictions/noop HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readuntil(b"\r\n")
        async with asyncio.timeout(60):
            await endpoints.close()
        writer.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(close_while_it_reads_nothing())


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
async def test_every_address_of_http_may_be_that_of_ipv6_and_clients_keep_theirs(start, caplog):
    caplog.set_level("INFO", access_log.LOGGER_NAME)
    everywhere = parse_address("http://[::]:0", http_port=0, https_port=0)
    serving = await start(**dict.fromkeys(HTTP_ADDRESSES, everywhere), access_log=True)
    for name in HTTP_ADDRESSES:
        for host in ("127.0.0.1", "[::1]"):
            url = f"http://{host}:{serving.endpoints.addresses[name].port}/ping"
            async with serving.client.get(url) as answer:
                assert answer.status in (200, 404)
    access_log.flush()
    clients = {record.client.rpartition(":")[0] for record in caplog.records if record.name == access_log.LOGGER_NAME}
    assert clients == {"127.0.0.1", "[::1]"}


async def test_every_ipv6_address_is_every_ipv4_one_where_there_is_no_ipv6(start, monkeypatch):
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    serving = await start(inference_address=Address("http", "::", 0))
    async with serving.client.get(f"http://127.0.0.1:{serving.address().port}/ping") as answer:
        assert answer.status == 200
