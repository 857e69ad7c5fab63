"""Requests of OpenAI's clients to a function with `serve(openai=True)`: from a request's body to arguments and back.

The function has parameters with the names of OpenAI's: ``messages`` makes it answer chat completions, ``prompt``
completions, ``input`` embeddings; others, such as ``temperature``, are the request's if it has them. It returns, or
yields, texts; a dict with ``usage`` tells how many tokens the request took, and one with ``finish_reason`` why the
answer ends. Embeddings are a list of vectors. A
message's content is a text or a list of parts (text, images, audio); a function whose messages have texts by their
annotation gets the text of the parts, and others are refused.
"""

import base64
import json
import struct
import time
import uuid
from collections.abc import Mapping
from typing import Any, Final

from ts.contracts.served_functions.invalid_values import InvalidValue
from ts.handler_utils.openai_fields import changes_nothing
from ts.jobs.json_values import json_text
from ts.protocol.media_types import EVENTS, JSON

#: The parameter that holds what is asked, by the path of the request.
_ASKED: Final = {"v1/chat/completions": "messages", "v1/completions": "prompt", "v1/embeddings": "input"}
#: Values of such parameters that functions which have them accept.
LIKELY: Final = {"messages": [{"role": "user", "content": "hello"}]}
_DONE: Final = "data: [DONE]\n\n"
#: The type of messages that are texts.
_TEXTS: Final = list[dict[str, str]]
#: The tokens of a request that a function may tell.
_COUNTED: Final = ("prompt_tokens", "completion_tokens")
#: Members that are read here.
_OWN: Final = frozenset({"model", "stream", "stream_options", "encoding_format"})
#: Two names of one parameter: a function with either gets the value under the other, too.
_SAME: Final = {"max_completion_tokens": "max_tokens", "max_tokens": "max_completion_tokens"}
#: Why an answer ends, unless the function says so: its text is whole, or it wants tools to be called.
_WHOLE: Final = "stop"
_CALLS: Final = "tool_calls"


def answered_path(parameters: Mapping[str, Any]) -> str | None:
    """Return OpenAI's path that a function with these parameters answers; None if there is none."""
    return next((path for path, name in _ASKED.items() if name in parameters), None)


class OpenAICall:
    """One request; ``arguments`` are the members of its body that the function takes."""

    def __init__(self, path: str, body: Mapping[str, Any], parameters: Mapping[str, Any]) -> None:
        self._path = path
        self._model = str(body.get("model") or "")
        self._id = f"{'chatcmpl' if self._is_chat else 'cmpl'}-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._in_base64 = body.get("encoding_format") == "base64"
        self._parts: list[Any] = []
        self._usage: dict[str, Any] | None = None
        self._finish_reason = ""
        options = body.get("stream_options")
        self._tells_usage = isinstance(options, dict) and options.get("include_usage") is True
        self.arguments = {name: body[name] for name in parameters if name in body}
        if self._is_chat and parameters["messages"] == _TEXTS and isinstance(body["messages"], list):
            self.arguments["messages"] = [_in_text(*each) for each in enumerate(body["messages"])]
        if self._is_embedding and isinstance(body["input"], str) and parameters["input"] == list[str]:
            self.arguments["input"] = [body["input"]]
        #: Whether the client wants the answer as it comes.
        self.streams = bool(body.get("stream")) and not self._is_embedding

    @classmethod
    def of(cls, path: str | None, body: Any, parameters: Mapping[str, Any]) -> "OpenAICall | None":
        """Return the call that a request to a path is; None if the path is not OpenAI's.

        ``parameters`` are the function's, with their types.

        Raises InvalidValue: the body is not a JSON object, the function does not answer this path, does not take
            a part of a message, has nothing to embed, or has no parameter for a member that could change the answer,
            such as ``tools``.
        """
        asked = _ASKED.get(path or "")
        if asked is None or path is None:
            return None
        if isinstance(body, bytes | bytearray | str):
            try:
                body = json.loads(body)
            except (ValueError, RecursionError) as error:
                raise InvalidValue(f"the body is not JSON: {error}") from None
        if not isinstance(body, dict):
            raise InvalidValue("the body is to be a JSON object")
        if asked not in parameters:
            known = [each.removeprefix("v1/") for each, name in _ASKED.items() if name in parameters]
            answered = f"it answers {', '.join(known)}" if known else "its function has none of OpenAI's parameters"
            raise InvalidValue(f"the model does not answer {path.removeprefix('v1/')}: {answered}")
        if asked not in body:
            raise InvalidValue(f"{asked}: Field required")
        if asked == "input" and body["input"] == []:
            raise InvalidValue("input: the list is empty; send a text, or a list of at least one")
        for name, other in _SAME.items():
            if name in body and name not in parameters and other in parameters and other not in body:
                body = {**{key: each for key, each in body.items() if key != name}, other: body[name]}
        for name, value in body.items():
            if name not in parameters and name not in _OWN and not changes_nothing(name, value):
                raise InvalidValue(
                    f"{name} has no effect, since the model's function has no parameter {name}; leave it out"
                )
        return cls(path, body, parameters)

    @property
    def media_type(self) -> str:
        """The media type of the answer."""
        return EVENTS if self.streams else JSON

    def part(self, value: Any) -> str | None:
        """Return a yielded part as it is sent; None if there is nothing to send now.

        Raises ValueError: it has a ``usage`` or a ``finish_reason`` that is none.
        """
        if (value := self._without_end(value)) is None:
            return None
        if not self.streams:
            self._parts.append(value)
            return None
        delta = self._piece(value, begins=not self._parts)
        self._parts.append(None)
        return self._event([{"index": 0, **delta, "finish_reason": None}])

    def whole(self, value: Any) -> Any:
        """Return the answer to a request, given what the function has returned."""
        if self._is_embedding:
            return self._embeddings(value)
        if self.streams:
            return f"{self.part(value) or ''}{self.end()}"
        self.part(value)
        return self.end()

    def end(self) -> Any:
        """Return what ends the answer once all parts have come: the last events, or the whole answer."""
        if self.streams:
            last: dict[str, Any] = {"delta": {}} if self._is_chat else {"text": ""}
            said = self._event([{"index": 0, **last, "finish_reason": self._finish_reason or _WHOLE}])
            used = self._event([], usage=self._usage) if self._usage is not None and self._tells_usage else ""
            return f"{said}{used}{_DONE}"
        if self._is_chat:
            message = self._parts[0] if len(self._parts) == 1 and isinstance(self._parts[0], dict) else None
            content = message or {"content": "".join(map(str, self._parts))}
            choice: dict[str, Any] = {"message": {"role": "assistant", **content}}
        else:
            choice = {"text": "".join(map(str, self._parts))}
        choices = [{"index": 0, **choice, "finish_reason": self._finish_reason or _WHOLE, "logprobs": None}]
        return {**self._head(""), "choices": choices, **({} if self._usage is None else {"usage": self._usage})}

    @property
    def _is_chat(self) -> bool:
        return self._path == "v1/chat/completions"

    @property
    def _is_embedding(self) -> bool:
        return self._path == "v1/embeddings"

    def _piece(self, value: Any, *, begins: bool) -> dict[str, Any]:
        if not self._is_chat:
            return {"text": str(value)}
        role = {"role": "assistant"} if begins else {}
        return {"delta": {**role, **(value if isinstance(value, dict) else {"content": str(value)})}}

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> str:
        return f"data: {json_text({**self._head('.chunk'), 'choices': choices, **more})}\n\n"

    def _without_end(self, value: Any) -> Any:
        """Keep the ``usage`` and the ``finish_reason`` of a part; return what else it has, None if that is nothing."""
        if not isinstance(value, dict):
            return value
        if value.get("tool_calls") and not self._finish_reason:
            self._finish_reason = _CALLS
        if (reason := value.get("finish_reason")) is not None:
            if not isinstance(reason, str):
                raise ValueError(f"finish_reason is to be a text such as 'length', not {reason!r}")
            self._finish_reason = reason
        if "finish_reason" in value:
            value = {name: each for name, each in value.items() if name != "finish_reason"}
        return self._without_usage(value) or None

    def _without_usage(self, value: dict[str, Any]) -> dict[str, Any]:
        if "usage" not in value:
            return value
        usage = value["usage"]
        counts = [usage.get(name, 0) for name in _COUNTED] if isinstance(usage, dict) else [None]
        if not all(isinstance(count, int) and count >= 0 for count in counts):
            raise ValueError(f"usage is to be a dict with the integers {' and '.join(_COUNTED)}, not {usage!r}")
        self._usage = {**dict(zip(_COUNTED, counts, strict=True)), "total_tokens": sum(counts), **usage}
        return {name: each for name, each in value.items() if name != "usage"}

    def _head(self, suffix: str) -> dict[str, Any]:
        kind = f"chat.completion{suffix}" if self._is_chat else "text_completion"
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def _embeddings(self, value: Any) -> dict[str, Any]:
        vectors = value.tolist() if hasattr(value, "tolist") else value
        if not isinstance(vectors, list | tuple) or not vectors:
            raise ValueError(f"embeddings are a list of vectors; a {type(value).__name__} was returned")
        plain = [each.tolist() if hasattr(each, "tolist") else list(each) for each in _vectors(vectors)]
        data = [
            {"object": "embedding", "index": number, "embedding": self._encoded(vector)}
            for number, vector in enumerate(plain)
        ]
        usage = {"prompt_tokens": 0, "total_tokens": 0}
        return {"object": "list", "data": data, "model": self._model, "usage": usage}

    def _encoded(self, vector: list[float]) -> list[float] | str:
        if not self._in_base64:
            return vector
        return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _vectors(value: Any) -> Any:
    """Return a list of vectors; a single vector is one of them."""
    return [value] if isinstance(value[0], int | float) else value


def _in_text(place: int, message: Any) -> Any:
    """Return a message with its content as a text. Raises InvalidValue: a part of it is none."""
    parts = message.get("content") if isinstance(message, dict) else None
    if not isinstance(parts, list):
        return message
    for number, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            name = f"messages[{place}].content[{number}]"
            raise InvalidValue(f"{name} is of the type {kind!r}; this model takes parts of the type 'text' only")
    return {**message, "content": "".join(part["text"] for part in parts)}
