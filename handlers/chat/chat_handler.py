"""Serves a causal transformer of Hugging Face's as conversations that it remembers.

A conversation is a sequence: a client sends what is new, and the server has the rest. Its state is a log of tokens, one
entry for each turn, so that it survives the worker and, with a store, the server. The keys and values of these tokens
stay on the device; those that are missing, after a restart or because others needed the memory, are read again with the
next turn. All conversations that are being answered take part in each step of the model (continuous
batching). A chat completion of OpenAI's API carries its whole history instead; what of it was seen before is not read
again. Its text may contain calls of tools, or fit a JSON schema.

docs/llm.md has the requests, and the keys of ``handler`` in model-config.yaml.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from chat_answers import ChatForm, CompletionForm, Form, JsonForm, TextForm
from chat_decoder import Decoder
from chat_fields import UNSUPPORTED, BadRequest
from chat_grammar import Grammar, GrammarFailed, Grammars
from chat_reply import Reply
from chat_requests import Asked, is_token, read_chat, read_completion, read_plain
from chat_sampling import choose, uniform
from chat_settings import Settings
from chat_text import Answer, ChatText
from chat_thoughts import Thought, marks_of
from chat_tools import format_of
from chat_turn import Log, Turn
from transformers import AutoModelForCausalLM, AutoTokenizer

if TYPE_CHECKING:
    from ts.context import Context

logger = logging.getLogger(__name__)

CHAT = "v1/chat/completions"
COMPLETIONS = "v1/completions"
_NO_NUMBERS = "The model has computed no numbers for this conversation (NaN)."


class ChatHandler:
    """Answers turns of conversations, one step of the model in each call."""

    def initialize(self, context: Context) -> None:
        """Load the model and its tokenizer. Raises ValueError: a key of ``handler`` is wrong, or the model is."""
        self.settings = settings = Settings.of(context)
        folder, gpu = settings.folder, context.system_properties.get("gpu_id")
        if not (folder / "config.json").is_file():
            raise ValueError(f"handler.model_path: {folder} holds no model of Hugging Face's (no config.json)")
        is_on_gpu = gpu is not None and torch.cuda.is_available()
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=settings.dtype, local_files_only=True, use_safetensors=True
        )
        model = model.to(torch.device("cuda", int(gpu)) if is_on_gpu else "cpu").eval()
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self.text = ChatText(tokenizer)
        #: How the model writes calls of tools; None if it has none.
        self.tool_format = format_of(self.text.template(tools=True))
        #: The tokens around what it thinks; None if it has none.
        self.thought_marks = marks_of(tokenizer)
        self.decoder = Decoder(
            model,
            most_bytes=settings.bytes_on(model),
            most_host_bytes=settings.host_bytes_beside(model.device),
            most_prompt=settings.prefill_tokens,
        )
        text_config = model.config.get_text_config(decoder=True)
        positions = getattr(text_config, "max_position_embeddings", None) or self.decoder.most_tokens
        #: The most tokens that a conversation can have, its last answer included.
        self.most_tokens = min(positions, self.decoder.most_tokens)
        ends = model.generation_config.eos_token_id
        self.ends = {*(ends if isinstance(ends, list) else [ends]), tokenizer.eos_token_id} - {None}
        self.vocabulary = int(text_config.vocab_size)
        self.grammars = self._load_grammars()
        #: The requests that are being answered, by their ids, the oldest first.
        self.replies: dict[str, Reply] = {}
        #: The bodies of requests that wait for an earlier one of their conversation.
        self.waiting: dict[str, Any] = {}

    def _load_grammars(self) -> Grammars | None:
        """Return what makes grammars; None if nothing can, which only requests with a schema or tools notice."""
        try:
            return Grammars(self.text.tokenizer, self.vocabulary, self.ends)
        except ImportError:
            self.why_no_grammars = "needs the package llguidance: pip install llguidance"
        except ValueError as error:
            self.why_no_grammars = f"is not possible with this model's tokenizer, which llguidance refuses: {error}"
        return None

    def handle(self, data: list[dict[str, Any]], context: Context) -> list[Any]:
        """Run one step of the model for all requests. A request has a result once there is something to send."""
        if context.get_request_header(0, "describe") == "True":
            return [self._describe()]
        ids = [str(context.get_request_id(idx)) for idx in range(len(data))]
        self.on_cancel([name for name in (*self.replies, *self.waiting) if name not in ids])
        results: list[Any] = [None] * len(data)
        rows = dict(zip(ids, range(len(data)), strict=True))
        criteria: list[Callable[[Any], bool | None]] = [_not_yet] * len(data)
        for name, idx in rows.items():
            if name not in self.replies:
                body = self.waiting.pop(name) if name in self.waiting else context.body(idx)
                try:
                    self._begin(name, idx, body, context)
                except BadRequest as error:
                    results[idx] = self._refuse(idx, error, context)
                    criteria[idx] = _whole
                except RecursionError:
                    results[idx] = self._refuse(idx, BadRequest("The request is nested too deeply."), context)
                    criteria[idx] = _whole
                except Exception as error:  # it must not end the answers to others
                    logger.exception("Request %s cannot be answered", name)
                    self.replies.pop(name, None)
                    context.fail(idx, f"The request cannot be answered: {type(error).__name__}: {error}", 500)
                    criteria[idx] = _whole
        self._step()
        for name, reply in list(self.replies.items()):
            idx = rows[name]
            results[idx], criteria[idx] = self._result(idx, reply, context)
            if reply.is_complete:
                self._finish(name, idx, reply, context)
        context.stopping_criteria = criteria
        return results

    def on_cancel(self, request_ids: list[str]) -> None:
        """Forget requests whose clients left; what was read of their conversations is kept."""
        for name in request_ids:
            self.waiting.pop(name, None)
            reply = self.replies.pop(name, None)
            for turn in [] if reply is None else reply.turns:
                self.decoder.keep(turn.reading)

    def rebuild(self, states: list[Log | None], entries: list[list[Any]]) -> list[Log]:
        """Return the logs of conversations that are not in memory, from what their turns have appended."""
        return [[*(state or ()), *appended] for state, appended in zip(states, entries, strict=True)]

    # A request

    def _begin(self, name: str, idx: int, body: Any, context: Context) -> None:
        """Begin to answer a request, unless an earlier one of its conversation is being answered. Raises BadRequest."""
        path = context.get_request_header(idx, "url_path") or ""
        asked, sequence_id = self._read(path, body), None if path else context.get_sequence_id(idx)
        if sequence_id and any(reply.turns[0].sequence_id == sequence_id for reply in self.replies.values()):
            self.waiting[name] = body
            return
        log = context.state.get(idx, []) if sequence_id else []
        if not isinstance(log, list):
            raise BadRequest("This sequence holds responses or a conversation of OpenAI's API, not a log of turns.")
        committed = self._committed(idx, asked, context) if path == CHAT else None
        form = self._form(asked, path, context, returns_tokens=committed is not None)
        grammar, turns = self._grammar(asked), []
        for prompt in self._prompts(asked, log):
            turns.append([])
            for _ in range(asked.options.choices):
                place = sum(map(len, turns))
                turns[-1].append(self._turn(asked, log, prompt, place, sequence_id, grammar))
        self.replies[name] = reply = Reply(form, turns, streams=asked.options.streams)
        if committed:
            self._continue(reply, committed)

    def _committed(self, idx: int, asked: Asked, context: Context) -> list[int] | None:
        """Return the tokens that an earlier run of a generation in the background has committed.

        None if the request is no such generation. Raises BadRequest: they are no tokens of this model.
        """
        committed = context.row_values[idx].get("committed_tokens")
        if committed is None or asked.options.choices > 1:
            return None
        words = self.decoder.words
        if not isinstance(committed, list) or not all(is_token(each) and 0 <= each < words for each in committed):
            raise BadRequest(f"committed_tokens has to be a list of tokens of this model: numbers below {words}.")
        return committed

    def _continue(self, reply: Reply, committed: list[int]) -> None:
        """Take the committed tokens as if the model had just chosen them; the next step reads them with the prompt."""
        (turn,) = reply.turns
        try:
            for token in committed:
                if turn.outcome is None:
                    reply.add(turn, turn.take(token, self.ends, None))
        except GrammarFailed as error:
            reply.failure = str(error)

    def _read(self, path: str, body: Any) -> Asked:
        """Return what a request asks for. Raises BadRequest."""
        if path == CHAT:
            return read_chat(body, self.settings.options)
        if path == COMPLETIONS:
            return read_completion(body, self.settings.options)
        if path:
            raise BadRequest(f"This model has no path {path!r}; it has {CHAT} and {COMPLETIONS}.")
        return read_plain(body, self.settings.options)

    def _prompts(self, asked: Asked, log: Log) -> list[list[int]]:
        """Return the tokens that the model reads before its answers. Raises BadRequest."""
        messages, functions = asked.messages, asked.tools.functions if asked.tools else []
        if messages and not log and self.settings.system and messages[0]["role"] != "system":
            messages = [{"role": "system", "content": self.settings.system}, *messages]
        try:
            if not messages:
                return [
                    self.text.encode(prompt, is_start=True) if isinstance(prompt, str) else prompt
                    for prompt in asked.prompts
                ]
            return [self.text.prompt(messages, continues=bool(log), tools=functions, values=asked.template)]
        except BadRequest:
            raise
        except ValueError as error:
            raise BadRequest(str(error), "messages" if messages else "prompt") from error

    def _turn(
        self,
        asked: Asked,
        log: Log,
        prompt: list[int],
        place: int,
        sequence_id: str | None,
        grammar: Grammar | None,
    ) -> Turn:
        """Return an answer that begins. Raises BadRequest."""
        options = asked.options
        marks = self.tool_format.marks if self.tool_format is not None and asked.tools is not None else ()
        thought = None
        if self.thought_marks is not None and asked.messages:
            thought = Thought(self.text.tokenizer, self.thought_marks, prompt)
        turn = Turn(
            log,
            prompt,
            options,
            Answer(self.text.tokenizer, options.stops, marks),
            place=place,
            sequence_id=sequence_id,
            grammar=grammar and grammar.copy(),
            thought=thought,
        )
        self._limit(turn)
        self._check(turn)
        return turn

    def _grammar(self, asked: Asked) -> Grammar | None:
        """Return the grammar of the answer; None if it is free. Raises BadRequest: there can be none."""
        tools, constraint = asked.tools, asked.options.constraint
        if tools is not None and self.tool_format is None:
            raise BadRequest(
                "tools: the chat template of this model has no known format of calls.", "tools", UNSUPPORTED
            )
        if constraint is None and (tools is None or not (tools.is_required or tools.strict & tools.callable)):
            return None
        param = "tools" if constraint is None else constraint.param
        if self.grammars is None:
            raise BadRequest(f"{param} {self.why_no_grammars}", param, UNSUPPORTED)
        if tools is not None and self.tool_format is not None:
            return self.grammars.of_tools(tools, self.tool_format, constraint)
        assert constraint is not None, "else the answer is free"
        return self.grammars.of(constraint)

    def _form(self, asked: Asked, path: str, context: Context, *, returns_tokens: bool) -> Form:
        options = asked.options
        if not path:
            return TextForm() if asked.is_text else JsonForm(streams=options.streams)
        name = asked.model or context.model_name
        how = {
            "streams": options.streams,
            "counts_usage": options.counts_usage,
            "counts_always": options.counts_always,
        }
        if path == COMPLETIONS:
            return CompletionForm(name, self.text.token_text, **how)
        format_ = None if asked.tools is None else self.tool_format
        most = None if asked.tools is None else asked.tools.most
        return ChatForm(
            name,
            self.text.token_text,
            format_=format_,
            most_calls=most,
            shows_thoughts=asked.shows_thoughts,
            returns_tokens=returns_tokens,
            **how,
        )

    def _limit(self, turn: Turn) -> None:
        """Limit an answer to the tokens that the conversation can still have. Raises BadRequest: it can have none."""
        count = len(turn.reading.tokens)
        if not count:
            raise BadRequest("The messages have no tokens.", "messages")
        if count >= self.most_tokens:
            raise BadRequest(
                f"The conversation has {count} tokens with this turn; this model has room for {self.most_tokens},"
                " the answer included.",
                "messages",
                "context_length_exceeded",
            )
        turn.options = turn.options._replace(most_tokens=min(turn.options.most_tokens, self.most_tokens - count))

    def _check(self, turn: Turn) -> None:
        """Raise BadRequest if a token is none of the model's: in a step that would fail all others, too."""
        words = self.decoder.words
        outside = [
            token for token in (*turn.reading.tokens, *dict(turn.options.penalties.bias)) if not 0 <= token < words
        ]
        if outside:
            raise BadRequest(f"{outside[0]} is no token of this model: this model knows the tokens 0 to {words - 1}.")

    def _step(self) -> None:
        """Run one step, which gives a token to each answer whose prompt was read."""
        running = [(reply, turn) for reply in self.replies.values() for turn in reply.running]
        if not running:
            return
        logits = self.decoder.step([turn.reading for _, turn in running])
        read = [(reply, turn) for reply, turn in running if turn.reading in logits]
        if not read:
            return
        are_numbers = torch.stack([logits[turn.reading] for _, turn in read]).amax(-1).isfinite().tolist()
        ready: list[tuple[Reply, Turn]] = []
        shaped = []
        for (reply, turn), is_number in zip(read, are_numbers, strict=True):
            if not is_number:
                self.decoder.forget(turn.reading)
                reply.failure = _NO_NUMBERS
                continue
            try:
                shaped.append(turn.shaped(logits[turn.reading], self.ends))
                ready.append((reply, turn))
            except GrammarFailed as error:
                reply.failure = str(error)
        if not ready:
            return
        turns = [turn for _, turn in ready]
        tokens = choose(
            torch.stack(shaped)[:, : self.decoder.words],
            [turn.options.sampling for turn in turns],
            [uniform(turn.seed, turn.draws) if turn.options.sampling.temperature else 0.0 for turn in turns],
        )
        for (reply, turn), token in zip(ready, tokens, strict=True):
            try:
                reply.add(turn, turn.take(token, self.ends, logits[turn.reading]))
            except GrammarFailed as error:
                reply.failure = str(error)
            if reply.is_awaited(turn):  # the others continue from what was read
                self.decoder.keep(turn.reading)

    def _result(self, idx: int, reply: Reply, context: Context) -> tuple[Any, Callable[[Any], bool | None]]:
        """Return what is sent for a request now, and whether it is the last of it."""
        if reply.failure is not None:
            context.fail(idx, reply.failure, 500)
            return None, _whole
        result = reply.result()
        if result is not None and not reply.has_sent:
            reply.has_sent = True
            context.set_response_content_type(idx, reply.form.content_type)
        if not reply.is_complete:
            return result, _not_yet
        return result, _last if reply.streams else _whole

    def _finish(self, name: str, idx: int, reply: Reply, context: Context) -> None:
        """Write down a request that is answered."""
        del self.replies[name]
        for turn in reply.turns:
            self.decoder.keep(turn.reading)
        turn = reply.turns[0]
        if turn.sequence_id is None:
            if context.get_sequence_id(idx):  # one that the server has made up for this request
                context.end_sequence(idx)
        elif reply.failure is None:
            entry = tuple(turn.entry())
            context.state[idx] = [*turn.log, entry]
            context.state.append(idx, entry)
        used = reply.used
        for metric, count in (
            ("PromptTokens", used.prompt),
            ("CachedPromptTokens", used.cached),
            ("GeneratedTokens", used.tokens),
        ):
            context.metrics.add_counter(metric, count, idx)

    def _refuse(self, idx: int, error: BadRequest, context: Context) -> str | None:
        """Answer a request that is wrong, and that alone."""
        if context.get_request_header(idx, "url_path") not in (CHAT, COMPLETIONS):
            context.fail(idx, str(error))
            return None
        context.set_response_status(400, "Bad Request", idx)
        context.set_response_content_type(idx, "application/json")
        if context.get_sequence_id(idx):
            context.end_sequence(idx)
        about = {"type": "invalid_request_error", "param": error.param, "code": error.code}
        return json.dumps({"error": {"message": str(error)} | about})

    def _describe(self) -> dict[str, Any]:
        model = self.decoder.model
        return {
            "model_type": model.config.model_type,
            "parameters": model.num_parameters(),
            "dtype": str(model.dtype).removeprefix("torch."),
            "device": str(model.device),
            "most_tokens": self.most_tokens,
            "kv_bytes": {"used": self.decoder.used_bytes, "all": self.decoder.most_bytes},
            "kept_prefixes": len(self.decoder.prefixes),
            "state": "log of tokens",
        }


def _not_yet(_result: Any) -> bool:
    return False


def _last(_result: Any) -> bool:
    return True


def _whole(_result: Any) -> None:
    return None
