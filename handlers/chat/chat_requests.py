"""What a client asks for: the messages or prompts, and how they are to be answered.

Three forms of requests: the server's own (a text, or a JSON object with ``message``), whose conversation is a sequence,
and OpenAI's chat completions and completions, which carry all there is. A field that would change the answer and is not
supported is refused by its name.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from chat_fields import UNSUPPORTED, BadRequest, Fields, is_number, wrong
from chat_messages import Message, Tools, read_messages, read_tools
from chat_sampling import Penalties, Sampling

_MOST_STOPS: Final = 16
_MOST_CHOICES: Final = 128
_MOST_LOGPROBS: Final = 20
_LARGEST_BIAS: Final = 100
#: More digits than any token has; Python refuses to convert very many.
_MOST_DIGITS: Final = 20
#: Of ``structured_outputs``, as vLLM has it.
_STRUCTURED: Final = ("json", "json_object", "regex", "choice")


class Constraint(NamedTuple):
    """What the text of an answer has to be.

    Attributes:
        kind: "json" for a value that fits a JSON schema, "regex", or "choice" for one of some texts.
        value: The schema, the regular expression, or the texts.
        param: The field that asks for it.
    """

    kind: str
    value: Any
    param: str


class Options(NamedTuple):
    """How an answer is made.

    Attributes:
        most_tokens: The answer ends after so many.
        seed: Of what is drawn; None to continue the conversation's random numbers, or to draw new ones.
        stops: The answer ends before one of these texts.
        stop_tokens: The answer ends before one of these tokens, besides the model's own.
        streams: Whether the answer is sent while it is made.
        counts_usage: Whether a stream ends with what it has used; only OpenAI's streams may leave it out.
        counts_always: Whether all chunks of a stream have what was used so far.
        least_tokens: The answer does not end before so many.
        ignores_end: Whether the answer continues when the model ends it.
        top_logprobs: How many of the likeliest tokens come with the log probability of each token; None for neither.
        penalties: How the likelihood of single tokens is changed.
        constraint: What the text has to be.
        choices: How many answers are made.
    """

    most_tokens: int
    sampling: Sampling
    seed: int | None = None
    stops: tuple[str, ...] = ()
    stop_tokens: frozenset[int] = frozenset()
    streams: bool = False
    counts_usage: bool = False
    counts_always: bool = False
    least_tokens: int = 0
    ignores_end: bool = False
    top_logprobs: int | None = None
    penalties: Penalties = Penalties()
    constraint: Constraint | None = None
    choices: int = 1


class Asked(NamedTuple):
    """A request.

    Attributes:
        messages: Of a chat.
        options: How it is answered.
        is_text: Whether the body was a plain text.
        model: The name under which the client asks for the model.
        tools: What the answer may call.
        template: Further values for the chat template.
        prompts: Of a completion: texts, or lists of tokens.
        shows_thoughts: Whether the answer has what the model thinks before.
    """

    messages: list[Message]
    options: Options
    is_text: bool = False
    model: str = ""
    tools: Tools | None = None
    template: dict[str, Any] = {}  # noqa: RUF012 - never changed
    prompts: tuple[str | list[int], ...] = ()
    shows_thoughts: bool = True


def read_plain(body: Any, defaults: Options) -> Asked:
    """Return what the server's own form asks for: a text, or a JSON object. Raises BadRequest."""
    if isinstance(body, bytes | bytearray):
        body = _decoded(body)
    if isinstance(body, str):
        if not body:
            raise BadRequest("The body is empty: send a message, as text or as a JSON object with 'message'.")
        return Asked([{"role": "user", "content": body}], defaults, is_text=True)
    if not isinstance(body, dict):
        wrong("The body", body, "a text (text/plain) or a JSON object with 'message' (application/json)", None)
    fields = Fields(body)
    message, messages = fields.take("message"), fields.take("messages")
    if (message is None) == (messages is None):
        raise BadRequest("Send either 'message', a text, or 'messages', a list of objects with role and content.")
    if messages is None:
        if not isinstance(message, str) or not message:
            wrong("message", message, "a text")
        messages = [{"role": "user", "content": message}]
    options = _options(fields, defaults)
    fields.refuse_the_rest()
    return Asked(read_messages(messages), options)


def read_chat(body: Any, defaults: Options) -> Asked:
    """Return what a chat completion of OpenAI's API asks for. Raises BadRequest."""
    fields = Fields(_json_object(body))
    messages = read_messages(fields.take("messages"))
    tools = read_tools(
        fields.take("tools"), fields.take("tool_choice"), parallel=fields.flag("parallel_tool_calls", default=True)
    )
    template = _reasoning(fields.take("reasoning_effort")) | fields.object("chat_template_kwargs")
    has_logprobs, top = fields.flag("logprobs"), fields.whole("top_logprobs", 0, 0, _MOST_LOGPROBS)
    if top and not has_logprobs:
        raise BadRequest("top_logprobs needs logprobs: true.", "top_logprobs")
    model, options = _openai_options(fields, defaults)
    options = options._replace(top_logprobs=top if has_logprobs else None)
    shows_thoughts = fields.flag("include_reasoning", default=True)
    fields.refuse_the_rest()
    return Asked(messages, options, model=model, tools=tools, template=template, shows_thoughts=shows_thoughts)


def _reasoning(effort: Any) -> dict[str, Any]:
    """Return what a template gets of ``reasoning_effort``, as vLLM has it: Qwen's templates only have a switch."""
    if effort is None:
        return {}
    if not isinstance(effort, str):
        wrong("reasoning_effort", effort, "a text such as 'none', 'low', 'medium' or 'high'")
    return {"reasoning_effort": effort, "enable_thinking": effort != "none"}


def read_completion(body: Any, defaults: Options) -> Asked:
    """Return what a completion of OpenAI's API asks for. Raises BadRequest."""
    fields = Fields(_json_object(body))
    prompts = _prompts(fields.take("prompt"))
    logprobs = fields.whole("logprobs", -1, 0, _MOST_LOGPROBS)
    model, options = _openai_options(fields, defaults)
    if fields.take("best_of") not in (None, options.choices):
        raise BadRequest("best_of is not supported by this model; leave it out.", "best_of", UNSUPPORTED)
    if len(prompts) * options.choices > _MOST_CHOICES:
        raise BadRequest(
            f"{len(prompts)} prompts with n = {options.choices} are too many; {_MOST_CHOICES} answers are the most.",
            "prompt",
        )
    fields.refuse_the_rest()
    return Asked([], options._replace(top_logprobs=None if logprobs < 0 else logprobs), model=model, prompts=prompts)


def _openai_options(fields: Fields, defaults: Options) -> tuple[str, Options]:
    """Return the name of the model, and the options that both forms of OpenAI's have."""
    model, streaming = fields.take("model"), fields.object("stream_options")
    options = _options(fields, defaults)._replace(
        counts_usage=bool(streaming.get("include_usage")),
        counts_always=bool(streaming.get("continuous_usage_stats")),
        choices=fields.whole("n", 1, 1, _MOST_CHOICES),
    )
    return str(model or ""), options


def _prompts(value: Any) -> tuple[str | list[int], ...]:
    """Return prompts: a text, some tokens, or a list of either."""
    is_one = isinstance(value, str) or (isinstance(value, list) and value and is_token(value[0]))
    prompts = [value] if is_one else value
    if not isinstance(prompts, list) or not prompts or not all(_is_prompt(each) for each in prompts):
        wrong("prompt", value, "a text, a list of tokens, or a list of either")
    return tuple(prompts)


def _is_prompt(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(map(is_token, value)))


def is_token(value: Any) -> bool:
    """Return whether a JSON value is a whole number, as tokens are."""
    return isinstance(value, int) and not isinstance(value, bool)


def _options(fields: Fields, defaults: Options) -> Options:
    default = defaults.sampling
    top_k = fields.whole("top_k", default.top_k, -1)
    return defaults._replace(
        most_tokens=_most_tokens(fields, defaults),
        sampling=Sampling(
            fields.number("temperature", default.temperature, lambda each: 0 <= each <= 2, "a number, 0 to 2"),
            max(top_k, 0),
            fields.number("top_p", default.top_p, lambda each: 0 < each <= 1, "a number above 0, at most 1"),
            fields.number("min_p", default.min_p, lambda each: 0 <= each <= 1, "a number, 0 to 1"),
        ),
        seed=None if (seed := fields.whole("seed", -1, 0)) < 0 else seed,
        stops=_stops(fields.take("stop")),
        stop_tokens=_stop_tokens(fields.take("stop_token_ids")),
        streams=fields.flag("stream"),
        least_tokens=fields.whole("min_tokens", 0, 0),
        ignores_end=fields.flag("ignore_eos"),
        penalties=_penalties(fields),
        constraint=_constraint(fields),
    )


def _most_tokens(fields: Fields, defaults: Options) -> int:
    completion = fields.whole("max_completion_tokens", 0, 1)
    return completion or fields.whole("max_tokens", defaults.most_tokens, 1)


def _penalties(fields: Fields) -> Penalties:
    right = "a number, -2 to 2"
    bias = fields.object("logit_bias")
    for token, value in bias.items():
        if not token.isdecimal() or len(token) > _MOST_DIGITS or not is_number(value) or abs(value) > _LARGEST_BIAS:
            wrong("logit_bias", bias, f"an object with numbers, -{_LARGEST_BIAS} to {_LARGEST_BIAS}, by token")
    return Penalties(
        fields.number("frequency_penalty", 0, lambda each: -2 <= each <= 2, right),
        fields.number("presence_penalty", 0, lambda each: -2 <= each <= 2, right),
        fields.number("repetition_penalty", 1, lambda each: 0 < each <= 2, "a number above 0, at most 2"),
        tuple((int(token), float(value)) for token, value in bias.items()),
    )


def _constraint(fields: Fields) -> Constraint | None:
    """Return what ``response_format``, or vLLM's ``structured_outputs``, ask for."""
    form, structured = fields.object("response_format"), fields.object("structured_outputs")
    kind = form.get("type")
    if structured:
        if kind not in (None, "text"):
            raise BadRequest("Send either response_format or structured_outputs.", "structured_outputs")
        return _structured(structured)
    if not form or kind == "text":
        return None
    if kind == "json_object":
        return Constraint("json", {"type": "object"}, "response_format")
    schema = form.get("json_schema")
    if kind != "json_schema" or not isinstance(schema, dict) or not isinstance(schema.get("schema"), dict):
        wrong("response_format", form, "an object of the type 'text', 'json_object' or 'json_schema'")
    return Constraint("json", schema["schema"], "response_format")


def _structured(structured: dict[str, Any]) -> Constraint:
    param = "structured_outputs"
    given = {name: value for name, value in structured.items() if value is not None}
    ((name, value),) = given.items() if len(given) == 1 else [("", None)]
    if name == "json" and isinstance(value, str):
        value = _json_object(value)
    if name == "json_object" and value is True:
        return Constraint("json", {"type": "object"}, param)
    is_right = {
        "json": isinstance(value, dict),
        "regex": isinstance(value, str) and bool(value),
        "choice": isinstance(value, list) and bool(value) and all(isinstance(each, str) and each for each in value),
    }
    if not is_right.get(name):
        wrong(param, structured, f"an object with one of {', '.join(_STRUCTURED)}")
    return Constraint(name, value, param)


def _stops(value: Any) -> tuple[str, ...]:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    are_texts = isinstance(stops, list) and all(isinstance(each, str) and each for each in stops)
    if not are_texts or len(stops) > _MOST_STOPS:
        wrong("stop", value, f"a text, or a list of at most {_MOST_STOPS} texts, none of them empty")
    return tuple(stops)


def _stop_tokens(value: Any) -> frozenset[int]:
    if value is None:
        return frozenset()
    if not isinstance(value, list) or not all(map(is_token, value)):
        wrong("stop_token_ids", value, "a list of numbers of tokens")
    return frozenset(value)


def _json_object(body: Any) -> dict[str, Any]:
    if isinstance(body, bytes | bytearray | str):
        try:
            body = json.loads(body)
        except ValueError as error:
            raise BadRequest(f"The body is not JSON: {error}.") from error
    if not isinstance(body, dict):
        wrong("The body", body, "a JSON object", None)
    found: dict[str, Any] = body
    return found


def _decoded(body: bytes | bytearray) -> Any:
    """Return the value of a body without a content type: JSON if it is an object, else text."""
    try:
        text = bytes(body).decode()
    except UnicodeDecodeError as error:
        raise BadRequest(f"The body is not a text in UTF-8: {error}.") from error
    return _json_object(text) if text.lstrip().startswith("{") else text
