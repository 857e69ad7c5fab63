"""What a client asks for: the messages, and how they are to be answered.

Two forms of requests: the server's own (a text, or a JSON object with ``message``), whose conversation is a sequence,
and OpenAI's chat completions, which carry the whole conversation. What a form does not have is refused by its name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, NoReturn

from chat_sampling import Sampling

_MOST_STOPS: Final = 16
_LARGEST_SEED: Final = 2**63 - 1


class BadRequest(ValueError):
    """A request that cannot be answered; ``param`` is the field that is wrong, if it is one."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class Options(NamedTuple):
    """How an answer is made.

    Attributes:
        most_tokens: The answer ends after so many.
        seed: Of what is drawn; None to continue the conversation's random numbers.
        stops: The answer ends before one of these texts.
        stop_tokens: The answer ends before one of these tokens, besides the model's own.
        streams: Whether the answer is sent while it is made.
        counts_usage: Whether a stream ends with what it has used; only OpenAI's streams may leave it out.
    """

    most_tokens: int
    sampling: Sampling
    seed: int | None = None
    stops: tuple[str, ...] = ()
    stop_tokens: frozenset[int] = frozenset()
    streams: bool = False
    counts_usage: bool = False


class Asked(NamedTuple):
    """A request: messages with ``role`` and ``content``, the options, and whether it was a plain text."""

    messages: list[dict[str, str]]
    options: Options
    is_text: bool = False
    model: str = ""


def read_plain(body: Any, defaults: Options) -> Asked:
    """Return what the server's own form asks for: a text, or a JSON object. Raises BadRequest."""
    if isinstance(body, bytes | bytearray):
        body = _decoded(body)
    if isinstance(body, str):
        if not body:
            raise BadRequest("The body is empty: send a message, as text or as a JSON object with 'message'.")
        return Asked([{"role": "user", "content": body}], defaults, is_text=True)
    if not isinstance(body, dict):
        _wrong("The body", body, "a text, or a JSON object with 'message'", None)
    fields = _Fields(body)
    message, messages = fields.take("message"), fields.take("messages")
    if (message is None) == (messages is None):
        raise BadRequest("Send either 'message', a text, or 'messages', a list of objects with role and content.")
    if messages is None:
        if not isinstance(message, str) or not message:
            _wrong("message", message, "a text")
        messages = [{"role": "user", "content": message}]
    options = _options(fields, defaults, "max_tokens")
    fields.refuse_the_rest()
    return Asked(read_messages(messages), options)


def read_completion(body: Any, defaults: Options) -> Asked:
    """Return what a chat completion of OpenAI's API asks for. Raises BadRequest."""
    fields = _Fields(_json_object(body))
    messages = read_messages(fields.take("messages"))
    for name, plain in _ONLY_PLAIN.items():
        value = fields.take(name)
        if value is not None and value not in plain:
            raise BadRequest(f"{name} is not supported by this model; leave it out.", name, "unsupported_parameter")
    for name in ("user", "metadata", "store", "safety_identifier", "prompt_cache_key", "service_tier"):
        fields.take(name)  # nothing that would change the answer
    most = fields.take("max_completion_tokens")
    if most is not None:
        fields.put("max_tokens", most)
    streaming = fields.take("stream_options")
    if streaming is not None and not isinstance(streaming, dict):
        _wrong("stream_options", streaming, "an object")
    model = fields.take("model")
    options = _options(fields, defaults, "max_tokens")
    fields.refuse_the_rest()
    counts = bool((streaming or {}).get("include_usage"))
    return Asked(messages, options._replace(counts_usage=counts), model=str(model or ""))


#: Fields of OpenAI's that are accepted with the value that leaves everything as it is.
_ONLY_PLAIN: Final[Mapping[str, tuple[Any, ...]]] = {
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none",),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
}


def read_messages(value: Any, param: str = "messages") -> list[dict[str, str]]:
    """Return messages of text. Raises BadRequest."""
    if not isinstance(value, list) or not value:
        _wrong(param, value, "a list of at least one message")
    messages = []
    for place, message in enumerate(value):
        name = f"{param}[{place}]"
        if not isinstance(message, dict):
            _wrong(name, message, "an object with role and content", param)
        role = message.get("role")
        if role not in ("system", "developer", "user", "assistant"):
            _wrong(f"{name}.role", role, "'system', 'user' or 'assistant'", param)
        messages.append(
            {
                "role": "system" if role == "developer" else role,
                "content": _content(message.get("content"), f"{name}.content", param),
            }
        )
    return messages


def _content(value: Any, name: str, param: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        _wrong(name, value, "a text", param)
    texts = []
    for part in value:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", "input_text", "output_text") or not isinstance(part.get("text"), str):
            raise BadRequest(f"{name} has a part of the type {kind!r}; this model takes text only.", param)
        texts.append(part["text"])
    return "".join(texts)


class _Fields:
    """The fields of a JSON object, each taken once; those that are left are not known."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = dict(values)

    def take(self, name: str) -> Any:
        return self._values.pop(name, None)

    def put(self, name: str, value: Any) -> None:
        self._values[name] = value

    def number(self, name: str, default: float, accepts: Callable[[float], bool], right: str) -> float:
        value = self.take(name)
        if value is None:
            return default
        if not _is_number(value) or not accepts(value):
            _wrong(name, value, right)
        return float(value)

    def whole(self, name: str, default: int, least: int, most: int = _LARGEST_SEED) -> int:
        value = self.take(name)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            limit = f" to {most}" if most != _LARGEST_SEED else " or more"
            _wrong(name, value, f"a whole number, {least}{limit}")
        return value

    def flag(self, name: str) -> bool:
        value = self.take(name)
        if not isinstance(value, bool | None):
            _wrong(name, value, "true or false")
        return bool(value)

    def refuse_the_rest(self) -> None:
        for name in self._values:
            raise BadRequest(f"The field {name!r} is not supported.", name, "unsupported_parameter")


def _options(fields: _Fields, defaults: Options, most_tokens: str) -> Options:
    default = defaults.sampling
    return defaults._replace(
        most_tokens=fields.whole(most_tokens, defaults.most_tokens, 1),
        sampling=Sampling(
            fields.number("temperature", default.temperature, lambda each: 0 <= each <= 2, "a number, 0 to 2"),
            fields.whole("top_k", default.top_k, 0),
            fields.number("top_p", default.top_p, lambda each: 0 < each <= 1, "a number above 0, at most 1"),
        ),
        seed=None if (seed := fields.whole("seed", -1, 0)) < 0 else seed,
        stops=_stops(fields.take("stop")),
        stop_tokens=_stop_tokens(fields.take("stop_token_ids")),
        streams=fields.flag("stream"),
    )


def _stops(value: Any) -> tuple[str, ...]:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    are_texts = isinstance(stops, list) and all(isinstance(each, str) and each for each in stops)
    if not are_texts or len(stops) > _MOST_STOPS:
        _wrong("stop", value, f"a text, or a list of at most {_MOST_STOPS} texts, none of them empty")
    return tuple(stops)


def _stop_tokens(value: Any) -> frozenset[int]:
    if value is None:
        return frozenset()
    if not isinstance(value, list) or not all(isinstance(each, int) and not isinstance(each, bool) for each in value):
        _wrong("stop_token_ids", value, "a list of numbers of tokens")
    return frozenset(value)


def _json_object(body: Any) -> dict[str, Any]:
    if isinstance(body, bytes | bytearray | str):
        try:
            body = json.loads(body)
        except ValueError as error:
            raise BadRequest(f"The body is not JSON: {error}.") from error
    if not isinstance(body, dict):
        _wrong("The body", body, "a JSON object", None)
    found: dict[str, Any] = body
    return found


def _decoded(body: bytes | bytearray) -> Any:
    """Return the value of a body without a content type: JSON if it is an object, else text."""
    try:
        text = bytes(body).decode()
    except UnicodeDecodeError as error:
        raise BadRequest(f"The body is not a text in UTF-8: {error}.") from error
    return _json_object(text) if text.lstrip().startswith("{") else text


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _wrong(name: str, value: Any, right: str, param: str | None = "") -> NoReturn:
    shown = repr(value)
    shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
    raise BadRequest(f"{name} is {shown}; {right} is right.", name if param == "" else param)
