"""The context that a handler gets with every call: its model, and each row's request headers and response head.

A worker process has one `Context`, so attributes that a handler sets on it while loading persist; asynchronous handlers
get a copy per call. This is a hot path: request headers stay as they came over the socket until a handler asks for one,
and a row whose response the handler leaves unchanged costs no dictionary.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, methodcaller
from typing import Any, Final, NamedTuple

from ts.protocol.response_head import headers_problem, reason_problem, status_problem
from ts.row_states import RowStates

#: A header's name or value: ``bytes`` as it came over HTTP, ``str`` where the server set it.
WireText = bytes | str


#: The status, the reason phrase (empty for that of the status) and the headers of a response.
ResponseHead = tuple[int, str, Sequence[tuple[str, str]]]
_USUAL: Final[ResponseHead] = (200, "", ())

_lower: Final = methodcaller("lower")

#: Sends one part of a streamed response for rows of the batch that is running: results, rows, error message, status.
PartSender = Callable[..., None]


class RowError(NamedTuple):
    """The error with which a handler answers one row; the row's step does not count."""

    status: int
    message: str
    is_defect: bool = False  # the handler has failed, with no words for the client


class RequestProcessor:
    """The headers of one request and the head of its response.

    Args:
        request_header: The request's headers by name, or None to build them from the next two when first asked for.
        wire_headers: (name, value) pairs as they came over the socket; of two with the same name the later counts.
        value_types: (row key, content type) pairs, from which the pseudo headers are made that TorchServe adds: under
            the key of each value of the row a dict ``{"content-type": type}``, unless a real header has that name.
    """

    # What few requests have: an instance gets it when it is set.
    #: Name to value as they came over the socket; made when the first header is asked for.
    _by_name: dict[WireText, WireText] | None = None
    #: Whether a status or a reason phrase was set.
    _has_status = False
    _status_code: int | None = 200
    _reason_phrase: str | None = None
    _response_header: dict[str, str] | None = None
    #: The headers that HTTP was found to allow: those of the parts of a stream are nearly always the same.
    _allowed_pairs: Sequence[tuple[str, str]] = ()
    #: A `ts.apis.open_inference.types.InferenceRequest` if the request came by the Open Inference Protocol.
    open_inference: Any = None
    #: The sequence of the request, once its step has begun.
    sequence_id: str | None = None
    #: Whether the request is the first step of its sequence.
    begins_sequence = False
    #: The error with which the handler answers the request; its step does not count.
    error: RowError | None = None

    def __init__(
        self,
        request_header: dict[str, Any] | None,
        wire_headers: Sequence[tuple[WireText, WireText]] = (),
        value_types: Sequence[tuple[str, str]] = (),
    ) -> None:
        self._request_header = request_header
        self._wire_headers = wire_headers
        self._value_types = value_types

    def get_request_property(self, key: str) -> Any:
        """Return the request header ``key``, or None; a name that differs only in case counts where none is exact."""
        # Decoding only the requested value costs much less than decoding all headers.
        headers: Mapping[Any, Any] = self._request_header or self._by_name or self.get_headers_by_name()
        value = headers.get(key)
        if value is None:
            value = headers.get(key.encode())
            if value is None:
                value = self._less_usual_header(key, headers)
        return _text(value) if type(value) is bytes else value

    def get_headers_by_name(self) -> Mapping[Any, Any]:
        """Return the request headers by exact name, undecoded: ``bytes`` from the client, ``str`` from the server."""
        headers: Mapping[Any, Any] | None = self._request_header or self._by_name
        if headers is None:
            headers = self._by_name = dict(self._wire_headers)
        return headers

    def get_request_properties(self) -> dict[str, Any]:
        """Return all request headers by name as the client sent it, pseudo headers included."""
        headers = self._request_header
        return self._build_request_header() if headers is None else headers

    def report_status(self, code: int | None, reason_phrase: str | None = None) -> None:
        """Set the status code and reason phrase of the response."""
        self._has_status = True
        self._status_code = code
        self._reason_phrase = reason_phrase

    def get_response_status_code(self) -> int | None:
        """Return the status code of the response, 200 unless set."""
        return self._status_code

    def get_response_status_phrase(self) -> str | None:
        """Return the reason phrase of the response, None unless set."""
        return self._reason_phrase

    def add_response_property(self, key: str, value: str) -> None:
        """Set the response header ``key``, replacing an earlier value, also one under the name in another case."""
        headers = self._response_header
        if headers is None:
            self._response_header = {key: value}
            return
        if key not in headers:
            for other in [each for each in headers if each.lower() == key.lower()]:
                del headers[other]
        headers[key] = value

    def get_response_headers(self) -> dict[str, str]:
        """Return the response headers; changes to the dict change the response."""
        headers = self._response_header
        if headers is None:
            headers = self._response_header = {}
        return headers

    def get_response_header(self, key: str) -> str | None:
        """Return the response header ``key``, or None."""
        return None if self._response_header is None else self._response_header.get(key)

    def response_head(self) -> ResponseHead:
        """Return status, reason and headers of the response. Raises ValueError: HTTP cannot carry one of them."""
        headers = self._response_header
        if headers is None and not self._has_status:
            return _USUAL
        status, reason = self._checked_status() if self._has_status else (200, "")
        pairs = [] if headers is None else list(headers.items())
        if pairs != self._allowed_pairs:
            if headers_problem(pairs) is not None:  # some may only be no text
                pairs = [(str(name), str(value)) for name, value in pairs]
                if (problem := headers_problem(pairs)) is not None:
                    raise ValueError(f"the handler set {problem}")
            self._allowed_pairs = pairs
        return status, reason, pairs

    def _checked_status(self) -> tuple[int, str]:
        status, reason = self._status_code, str(self._reason_phrase or "")
        if status is None:
            status = 200
        elif isinstance(status, int):
            status = int(status)  # the handler may have set a member of an enumeration
        problem = status_problem(status) or reason_problem(reason)
        if problem is not None:
            raise ValueError(f"the handler set {problem}")
        return status, reason

    def reset_response(self) -> None:
        """Reset the response's status and headers, because the next step of a continuous batch sets its own."""
        self._has_status = False
        self._status_code = 200
        self._reason_phrase = None
        self._response_header = None

    def _less_usual_header(self, key: str, names: Mapping[Any, Any]) -> Any:
        """Return a pseudo header, or the last header whose name, one of ``names``, differs only in case."""
        if self._request_header is None:
            for name, _ in self._value_types:
                if name == key:
                    return self._build_request_header()[key]
        if len(key) not in map(len, names):  # as nearly always where a header is not there
            return None
        folded = key.lower(), key.lower().encode()
        if set(map(_lower, names)).isdisjoint(folded):
            return None
        known = self._request_header
        headers = self._wire_headers if known is None else list(known.items())
        return next(value for name, value in reversed(headers) if name.lower() in folded)

    def _build_request_header(self) -> dict[str, Any]:
        headers: dict[str, Any] = {key: {"content-type": type_} for key, type_ in self._value_types}
        for name, value in self._wire_headers:
            headers[name if isinstance(name, str) else _text(name)] = value if isinstance(value, str) else _text(value)
        self._request_header = headers
        return headers


class Context:
    """A handler's view of its model and of the requests of the current call.

    Attributes:
        manifest: The archive's MANIFEST.json, or None.
        model_yaml_config: The model's configuration file, ``{}`` without one.
        request_ids: Row index to request id; None while the model is initialized.
        request_processor: One `RequestProcessor` per row; None while the model is initialized.
        stopping_criteria: Continuous batching: callables by row index, see `ts.contracts.continuous_batching`.
        header_key_sequence_id, header_key_sequence_start, header_key_sequence_end: The configured header names.
    """

    def __init__(
        self,
        model_name: str,
        model_dir: str,
        manifest: dict[str, Any] | None,
        batch_size: int,
        gpu: int | None,
        mms_version: str,
        limit_max_image_pixels: bool = True,
        metrics: Any = None,
        model_yaml_config: dict[str, Any] | None = None,
    ) -> None:
        self.model_name = model_name
        self.manifest = manifest
        self.model_yaml_config: dict[str, Any] = {} if model_yaml_config is None else model_yaml_config
        self.system_properties: dict[str, Any] = {
            "model_dir": model_dir,
            "gpu_id": gpu,
            "batch_size": batch_size,
            "server_name": "MMS",
            "server_version": mms_version,
            "limit_max_image_pixels": limit_max_image_pixels,
        }
        #: What takes the handler's own metrics, None until there are some; and what makes it.
        self.metrics_in_use = metrics
        self.make_metrics: Callable[[], Any] | None = None
        self.request_ids: dict[int, str] | None = None
        self.request_processor: Any = None
        self.stopping_criteria: Sequence[Callable[[Any], bool | None]] | Mapping[Any, Any] | None = None
        self.cl_socket: Any = None
        #: The server's settings for a `ts.sequence.SequenceCache`.
        self.cache_settings: Mapping[str, Any] | None = None
        #: The states of the model's sequences, a `ts.sequence.SequenceCache`; `state` has those of the current rows.
        self.sequence_cache: Any = None
        #: How classes in states are written and read, by class, besides those that a `ts.sequence.SequenceCache` knows.
        self.state_encoders: dict[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {}
        #: The handler's method that makes states of the entries in logs, if it has one; see `RowStates.append`.
        self.rebuild: Callable[[list[Any], list[list[Any]]], list[Any]] | None = None
        #: The handler's method that makes its own states of those of other versions, if it has one.
        self.migrate: Callable[..., Any] | None = None
        #: The handler's `ts.sequence.arena.Arena`, if it makes one.
        self.arena: Any = None
        #: The values of each row of the current call, as the handler gets them.
        self.row_values: Sequence[Mapping[str, Any]] = ()
        #: `send_intermediate_predict_response` sends parts through this; set while a batch runs.
        self.send_part: PartSender | None = None
        #: Whether the current call has sent a part, so that it cannot run again.
        self.parts_sent = False
        self.header_key_sequence_id = os.environ.get("TS_REQUEST_SEQUENCE_ID", "ts_request_sequence_id")
        self.header_key_sequence_start = os.environ.get("TS_REQUEST_SEQUENCE_START", "ts_request_sequence_start")
        self.header_key_sequence_end = os.environ.get("TS_REQUEST_SEQUENCE_END", "ts_request_sequence_end")

    @property
    def metrics(self) -> Any:
        """What takes the handler's own metrics, a `ts.metrics.metrics_cache.MetricsCache`."""
        if self.metrics_in_use is None and self.make_metrics is not None:
            self.metrics_in_use = self.make_metrics()
            self.metrics_in_use.request_ids = self.request_ids
        return self.metrics_in_use

    @metrics.setter
    def metrics(self, metrics: Any) -> None:
        self.metrics_in_use = metrics

    def get_request_id(self, idx: int = 0) -> str | None:
        """Return the id of row ``idx``'s request, or None."""
        return None if self.request_ids is None else self.request_ids.get(idx)

    def get_request_header(self, idx: int, key: str) -> Any:
        """Return the request header ``key`` of row ``idx``, or None; see `RequestProcessor.get_request_property`."""
        return self.request_processor[idx].get_request_property(key)

    def get_all_request_header(self, idx: int) -> dict[str, Any]:
        """Return row ``idx``'s request headers by name as sent, with a pseudo header for each value of the row."""
        headers: dict[str, Any] = self.request_processor[idx].get_request_properties()
        return headers

    def get_sequence_id(self, idx: int) -> str | None:
        """Return the id of the sequence that row ``idx`` belongs to, or None."""
        request: RequestProcessor = self.request_processor[idx]
        return request.sequence_id or request.get_request_property(self.header_key_sequence_id)

    @property
    def state(self) -> RowStates:
        """The states of the rows' sequences: ``context.state[idx]`` is that of row ``idx``'s."""
        return RowStates(self)

    def is_start(self, idx: int) -> bool:
        """Whether row ``idx`` is the first step of its sequence, so that there is no state yet."""
        begins: bool = self.request_processor[idx].begins_sequence
        return begins

    def is_end(self, idx: int) -> bool:
        """Whether the client says that row ``idx`` is the last step of its sequence."""
        return str(self.get_request_header(idx, self.header_key_sequence_end)).strip().lower() == "true"

    def end_sequence(self, idx: int) -> None:
        """End the sequence of row ``idx`` with this step: its state is dropped."""
        self.set_response_header(idx, self.header_key_sequence_end, self.get_sequence_id(idx) or "")

    def body(self, idx: int) -> Any:
        """Return the body of row ``idx``: its value ``data`` if it has one, else ``body``; None without either.

        JSON is decoded and text is `str` as far as the request's content type says so; other bodies are bytes.
        """
        values = self.row_values[idx]
        return values.get("data", values.get("body"))

    def fail(self, idx: int, message: str, status: int = 400) -> None:
        """Answer row ``idx`` with an error, whatever the handler returns for it; the other rows are not affected.

        If the row is a step of a sequence, the step does not count, and the sequence keeps the state that it had
        before. Raises ValueError: ``status`` is not that of an error, 400 to 599.
        """
        if not 400 <= status <= 599:
            raise ValueError(f"the status of an error is 400 to 599, not {status}")
        self.request_processor[idx].error = RowError(status, message)

    def get_open_inference_request(self, idx: int = 0) -> Any:
        """Return row ``idx``'s Open Inference request, a `ts.apis.open_inference.types.InferenceRequest`.

        None if the request came by another protocol.
        """
        return self.request_processor[idx].open_inference

    def set_response_content_type(self, idx: int, value: str) -> None:
        """Set the ``content-type`` header of row ``idx``'s response."""
        self.set_response_header(idx, "content-type", value)

    def get_response_content_type(self, idx: int) -> str | None:
        """Return the ``content-type`` header of row ``idx``'s response, or None."""
        return self.get_response_headers(idx).get("content-type")

    def set_response_status(self, code: int = 200, phrase: str = "", idx: int = 0) -> None:
        """Set the status of row ``idx``'s response; the body is still the handler's result."""
        if self.request_processor is not None and self.request_processor[idx] is not None:
            self.request_processor[idx].report_status(code, reason_phrase=phrase)

    def set_all_response_status(self, code: int = 200, phrase: str = "") -> None:
        """Set the status of every row's response."""
        processors = self.request_processor
        for processor in processors.values() if isinstance(processors, Mapping) else processors:
            processor.report_status(code, reason_phrase=phrase)

    def get_response_status(self, idx: int) -> tuple[int | None, str | None]:
        """Return status code and reason phrase of row ``idx``'s response."""
        processor = self.request_processor[idx]
        return processor.get_response_status_code(), processor.get_response_status_phrase()

    def set_response_header(self, idx: int, key: str, value: str) -> None:
        """Set one header of row ``idx``'s response."""
        self.request_processor[idx].add_response_property(key, value)

    def get_response_headers(self, idx: int) -> dict[str, str]:
        """Return the headers of row ``idx``'s response."""
        headers: dict[str, str] = self.request_processor[idx].get_response_headers()
        return headers

    # TorchServe's own names for three of the attributes: existing handlers, and their tests, use them.

    _system_properties = property(attrgetter("system_properties"))
    _metrics = property(attrgetter("metrics"))
    _request_processor = property(
        attrgetter("request_processor"), lambda self, value: setattr(self, "request_processor", value)
    )


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")
