"""Serves a causal transformer of Hugging Face's as conversations that it remembers.

A conversation is a sequence: a client sends what is new, and the server has the rest. Its state is a log of tokens, one
entry for each turn, so that it survives the worker and, with a store, the server. The keys and values of these tokens
stay on the device; those that are missing, after a restart or because others needed the memory, are read again with the
next turn. All conversations that are being answered take part in each step of the model (continuous
batching). A chat completion of OpenAI's API carries its whole history instead; what of it was seen before is not read
again.

docs/llm.md has the requests, and the keys of ``handler`` in model-config.yaml.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from chat_answers import CompletionForm, Form, JsonForm, TextForm
from chat_decoder import Decoder
from chat_requests import Asked, BadRequest, read_completion, read_plain
from chat_sampling import choose, new_seed, uniform
from chat_settings import Settings
from chat_text import Answer, ChatText
from chat_turn import Log, Turn
from transformers import AutoModelForCausalLM, AutoTokenizer

if TYPE_CHECKING:
    from ts.context import Context

COMPLETIONS = "v1/chat/completions"


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
        #: The requests that are being answered, by their ids, the oldest first.
        self.turns: dict[str, Turn] = {}
        #: The bodies of requests that wait for an earlier one of their conversation.
        self.waiting: dict[str, Any] = {}

    def handle(self, data: list[dict[str, Any]], context: Context) -> list[Any]:
        """Run one step of the model for all requests. A request has a result once there is something to send."""
        if context.get_request_header(0, "describe") == "True":
            return [self._describe()]
        ids = [str(context.get_request_id(idx)) for idx in range(len(data))]
        self.on_cancel([name for name in (*self.turns, *self.waiting) if name not in ids])
        results: list[Any] = [None] * len(data)
        rows = dict(zip(ids, range(len(data)), strict=True))
        criteria: list[Callable[[Any], bool | None]] = [_not_yet] * len(data)
        for name, idx in rows.items():
            if name not in self.turns:
                body = self.waiting.pop(name) if name in self.waiting else context.body(idx)
                try:
                    self._begin(name, idx, body, context)
                except BadRequest as error:
                    results[idx] = self._refuse(idx, error, context)
                    criteria[idx] = _whole
        texts, bad = self._step()
        for name in bad:
            self.decoder.forget(self.turns.pop(name).reading)
            context.fail(rows[name], "The model has computed no numbers for this conversation (NaN).", 500)
            criteria[rows[name]] = _whole
        for name, text in texts.items():
            idx, turn = rows[name], self.turns[name]
            results[idx], criteria[idx] = self._result(idx, turn, text, context)
            if turn.outcome is not None:
                self._finish(name, idx, turn, context)
        context.stopping_criteria = criteria
        return results

    def on_cancel(self, request_ids: list[str]) -> None:
        """Forget requests whose clients left; what was read of their conversations is kept."""
        for name in request_ids:
            self.waiting.pop(name, None)
            turn = self.turns.pop(name, None)
            if turn is not None:
                self.decoder.keep(turn.reading)

    def rebuild(self, states: list[Log | None], entries: list[list[Any]]) -> list[Log]:
        """Return the logs of conversations that are not in memory, from what their turns have appended."""
        return [[*(state or ()), *appended] for state, appended in zip(states, entries, strict=True)]

    # A request

    def _begin(self, name: str, idx: int, body: Any, context: Context) -> None:
        """Begin to answer a request, unless an earlier one of its conversation is being answered. Raises BadRequest."""
        path = context.get_request_header(idx, "url_path")
        sequence_id: str | None = None
        if path == COMPLETIONS:
            asked = read_completion(body, self.settings.options)
        elif path:
            raise BadRequest(f"This model has no path {path!r}; it has {COMPLETIONS}.")
        else:
            asked, sequence_id = read_plain(body, self.settings.options), context.get_sequence_id(idx)
        if sequence_id and any(turn.sequence_id == sequence_id for turn in self.turns.values()):
            self.waiting[name] = body
            return
        log = context.state.get(idx, []) if sequence_id else []
        if not isinstance(log, list):
            raise BadRequest("This sequence holds responses or a conversation of OpenAI's API, not a log of turns.")
        messages = asked.messages
        if not log and self.settings.system and messages[0]["role"] != "system":
            messages = [{"role": "system", "content": self.settings.system}, *messages]
        try:
            prompt = self.text.prompt(messages, continues=bool(log))
        except ValueError as error:
            raise BadRequest(str(error), "messages") from error
        answer = Answer(self.text.tokenizer, asked.options.stops)
        turn = Turn(log, prompt, asked.options, self._form(asked, path, context), answer, new_seed(), sequence_id)
        self._limit(turn)
        self._check(turn)
        self.turns[name] = turn

    def _form(self, asked: Asked, path: str | None, context: Context) -> Form:
        options = asked.options
        if path == COMPLETIONS:
            model = asked.model or context.model_name
            return CompletionForm(model, streams=options.streams, counts_usage=options.counts_usage)
        return TextForm() if asked.is_text else JsonForm(streams=options.streams)

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
        """Raise BadRequest if a token of the conversation is none of the model's: that would fail all others, too."""
        largest, words = max(turn.reading.tokens), self.decoder.words
        if largest >= words:
            raise BadRequest(f"The conversation has the token {largest}; this model knows the tokens 0 to {words - 1}.")

    def _step(self) -> tuple[dict[str, str], list[str]]:
        """Run one step.

        Returns the text that it has made certain, by request, for those that got a token; and the requests for which
        the model has computed nothing that a token could be chosen from.
        """
        if not self.turns:
            return {}, []
        read = self.decoder.step([turn.reading for turn in self.turns.values()])
        if not read:
            return {}, []
        names = [name for name, turn in self.turns.items() if turn.reading in read]
        logits = torch.stack([read[self.turns[name].reading] for name in names])[:, : self.decoder.words]
        is_good = logits.amax(-1).isfinite().tolist()
        bad = [name for name, good in zip(names, is_good, strict=True) if not good]
        if bad:
            names, logits = [name for name in names if name not in bad], logits[is_good]
        turns = [self.turns[name] for name in names]
        tokens = choose(
            logits,
            [turn.options.sampling for turn in turns],
            [uniform(turn.seed, turn.draws) if turn.options.sampling.temperature else 0.0 for turn in turns],
        )
        return {name: turn.take(token, self.ends) for name, turn, token in zip(names, turns, tokens, strict=True)}, bad

    def _result(self, idx: int, turn: Turn, text: str, context: Context) -> tuple[Any, Callable[[Any], bool | None]]:
        """Return what is sent for a request now, and whether it is the last of it."""
        form, outcome = turn.form, turn.outcome
        if not turn.options.streams:
            if outcome is None:
                return None, _not_yet
            context.set_response_content_type(idx, form.content_type)
            return form.whole(outcome), _whole
        result = form.part(text) if outcome is None else form.last(text, outcome)
        if result is not None and not turn.has_sent:
            turn.has_sent = True
            context.set_response_content_type(idx, form.content_type)
        return result, _not_yet if outcome is None else _last

    def _finish(self, name: str, idx: int, turn: Turn, context: Context) -> None:
        """Write down a turn that is complete."""
        del self.turns[name]
        self.decoder.keep(turn.reading)
        if turn.sequence_id is not None:
            entry = tuple(turn.entry())
            context.state[idx] = [*turn.log, entry]
            context.state.append(idx, entry)
        elif context.get_sequence_id(idx):  # one that the server has made up for this request
            context.end_sequence(idx)
        assert turn.outcome is not None, "it is complete"
        for metric, count in (
            ("PromptTokens", turn.outcome.prompt),
            ("CachedPromptTokens", turn.outcome.cached),
            ("GeneratedTokens", turn.outcome.tokens),
        ):
            context.metrics.add_counter(metric, count, idx)

    def _refuse(self, idx: int, error: BadRequest, context: Context) -> str | None:
        """Answer a request that is wrong, and that alone."""
        if context.get_request_header(idx, "url_path") != COMPLETIONS:
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
