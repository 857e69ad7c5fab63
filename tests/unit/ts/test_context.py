"""The context: request headers as handlers look them up, and the response's head."""

import pytest

from ts.context import Context, RequestProcessor

HEADERS: list[tuple[bytes | str, bytes | str]] = [
    (b"Host", b"localhost"),
    (b"X-Name", "Zoë".encode()),
    (b"X-Name", b"later"),
    (b"X-Raw", b"caf\xe9"),
    ("url_path", "v1/chat"),
]


def make_context(*processors: RequestProcessor) -> Context:
    context = Context("model", "/models/model", {"model": {}}, 2, None, "0.1.0")
    context.request_ids = {index: f"id-{index}" for index in range(len(processors))}
    context.request_processor = list(processors)
    return context


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Host", "localhost"),
        ("host", "localhost"),
        ("HOST", "localhost"),
        ("X-Name", "later"),
        ("X-Raw", "caf\xe9"),
        ("url_path", "v1/chat"),
        ("absent", None),
    ],
)
def test_a_header_is_found_by_its_name_or_by_its_name_in_another_case(name: str, value: str | None) -> None:
    context = make_context(RequestProcessor(None, HEADERS))

    assert context.get_request_header(0, name) == value


def test_the_name_as_sent_wins_over_the_same_name_in_another_case() -> None:
    context = make_context(RequestProcessor(None, [(b"Key", b"upper"), (b"key", b"lower")]))

    assert context.get_request_header(0, "Key") == "upper"
    assert context.get_request_header(0, "key") == "lower"


def test_all_headers_keep_their_names_as_sent_and_hold_a_pseudo_header_for_each_value() -> None:
    processor = RequestProcessor(None, [(b"X-A", b"1"), (b"name", b"real")], [("body", "text/plain"), ("name", "")])
    context = make_context(processor)

    assert context.get_all_request_header(0) == {"body": {"content-type": "text/plain"}, "name": "real", "X-A": "1"}
    assert context.get_request_header(0, "body") == {"content-type": "text/plain"}


def test_the_sequence_id_is_the_configured_header() -> None:
    context = make_context(RequestProcessor(None, [(b"Ts_Request_Sequence_Id", b"s-1")]), RequestProcessor({}))

    assert context.get_sequence_id(0) == "s-1"
    assert context.get_sequence_id(1) is None
    context.header_key_sequence_id = "x-session"
    assert context.get_sequence_id(0) is None


def test_status_and_headers_are_set_for_one_row_or_for_all() -> None:
    context = make_context(RequestProcessor({}), RequestProcessor({}))

    context.set_response_status(418, "teapot", 1)
    context.set_response_content_type(1, "text/plain")
    context.set_response_header(1, "x-a", "1")

    assert context.get_response_status(0) == (200, None)
    assert context.get_response_status(1) == (418, "teapot")
    assert context.get_response_headers(1) == {"content-type": "text/plain", "x-a": "1"}
    assert context.get_response_content_type(1) == "text/plain"
    context.set_all_response_status(503, "busy")
    assert [context.get_response_status(index) for index in (0, 1)] == [(503, "busy"), (503, "busy")]


def test_a_response_header_replaces_one_whose_name_differs_in_case() -> None:
    context = make_context(RequestProcessor({}))

    context.set_response_content_type(0, "text/plain")
    context.set_response_header(0, "Content-Type", "text/html")

    assert context.get_response_headers(0) == {"Content-Type": "text/html"}


def test_a_context_without_requests_has_no_request_id() -> None:
    context = Context("model", "/models/model", None, 1, 0, "0.1.0")

    assert context.get_request_id() is None
    assert context.model_yaml_config == {}
    assert context.system_properties == {
        "model_dir": "/models/model",
        "gpu_id": 0,
        "batch_size": 1,
        "server_name": "MMS",
        "server_version": "0.1.0",
        "limit_max_image_pixels": True,
    }


@pytest.mark.parametrize("status", [99, 600, "200"])
def test_a_status_that_http_cannot_carry_is_refused(status: int) -> None:
    processor = RequestProcessor({})
    processor.report_status(status)

    with pytest.raises(ValueError, match=r"response status .* must be an integer from 200 to 599"):
        processor.response_head()


def test_a_line_break_in_a_response_header_is_refused() -> None:
    processor = RequestProcessor({})
    processor.add_response_property("x-a", "1\r\nSet-Cookie: stolen")

    with pytest.raises(ValueError, match="line break"):
        processor.response_head()


def test_what_the_server_sets_wins_over_what_the_client_sent() -> None:
    context = make_context(RequestProcessor(None, [(b"explain", b"True"), ("explain", "False")]))

    assert context.get_request_header(0, "explain") == "False"
    assert context.get_request_header(0, "Explain") == "False"
    assert context.get_all_request_header(0) == {"explain": "False"}


def test_a_header_is_found_in_another_case_after_all_were_asked_for() -> None:
    context = make_context(RequestProcessor(None, HEADERS))
    context.get_all_request_header(0)["x-new"] = "set by the handler"

    assert context.get_request_header(0, "hOST") == "localhost"
    assert context.get_request_header(0, "X-New") == "set by the handler"


def test_torchserves_own_names_of_attributes_work_too() -> None:
    context = make_context(RequestProcessor({}))

    context._request_processor = [RequestProcessor({"name": "value"})]

    assert context.get_request_header(0, "name") == "value"
    assert context._request_processor is context.request_processor
    assert context._system_properties is context.system_properties
    assert context._metrics is context.metrics
