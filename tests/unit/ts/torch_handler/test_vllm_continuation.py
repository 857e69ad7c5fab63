"""A generation in vLLM's engine that continues behind committed tokens, with a stand-in of the engine and its client.

`tests/contracts/test_real_vllm.py` has the same with vLLM itself.
"""

from __future__ import annotations

import asyncio
import enum
import sys
import types
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from ts.torch_handler.vllm_continuation import continuing, let_continue

PROMPT = [3, 1, 4]
END = 99


class Reason(enum.Enum):
    STOP = "stop"
    LENGTH = "length"


class Params(SimpleNamespace):
    """What `SamplingParams` has of a request; ``eos_token_id`` of the class is a property there."""

    eos_token_id = END


class State:
    """A request in the client: its text so far, and outputs as vLLM makes them."""

    parent_req = None

    def __init__(self, request: Any) -> None:
        self.request = request
        self.text = ""
        self.detokenizer = self
        self.logprobs_processor = SimpleNamespace(logprobs=[])

    def update(self, tokens: list[int], is_stopped: bool) -> str | None:
        self.text += "".join(chr(97 + token % 26) for token in tokens if not is_stopped)
        stop: str | None = self.request.sampling_params.stop
        return stop if stop and self.text.endswith(stop) else None

    def make_request_output(self, tokens: list[int], pooled: None, reason: Reason | None, cause: Any) -> Any:
        completion = SimpleNamespace(token_ids=tokens, text=self.text, finish_reason=reason, stop_reason=cause)
        return SimpleNamespace(
            prompt_token_ids=self.request.prompt_token_ids,
            outputs=[completion],
            finished=reason is not None,
            num_cached_tokens=0,
        )


class Engine:
    """A client of an engine whose next token is how many it has read; `read` are the requests that it has got."""

    def __init__(self) -> None:
        self.model_config = SimpleNamespace(max_model_len=40)
        self.output_processor = SimpleNamespace(request_states={})
        self.engine_core = SimpleNamespace(add_request_async=self._read)
        self.read: list[Any] = []
        self.closed = 0

    async def _read(self, request: Any) -> None:
        self.read.append(request)

    async def generate(self, params: Params, name: str) -> AsyncGenerator[Any, None]:
        request = SimpleNamespace(request_id=name, prompt_token_ids=PROMPT, prompt_embeds=None, sampling_params=params)
        self.output_processor.request_states[name] = state = State(request)
        try:
            await self.engine_core.add_request_async(request)
            asked = self.read[-1]
            for count in range(1, asked.sampling_params.max_tokens + 1):
                await asyncio.sleep(0)
                token = len(asked.prompt_token_ids) + count - 1
                reason = Reason.LENGTH if count == asked.sampling_params.max_tokens else None
                if stop := state.update([token], False):
                    reason = Reason.STOP
                output = state.make_request_output([token], None, reason, stop)
                output.num_cached_tokens = 5
                yield output
                if reason:
                    break
        finally:
            self.closed += 1


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    contents = {
        "vllm": {"SamplingParams": Params},
        "vllm.logprobs": {"Logprob": lambda value: value},
        "vllm.v1": {},
        "vllm.v1.engine": {"FinishReason": Reason},
    }
    for name, values in contents.items():
        module = types.ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)
    made = Engine()
    let_continue(made)
    return made


def asked(**changes: Any) -> Params:
    kind = SimpleNamespace(name="DELTA")
    values = {"max_tokens": 12, "min_tokens": 5, "seed": 7, "stop": None, "stop_token_ids": None, "output_kind": kind}
    return Params(**values | changes)


async def run(engine: Engine, params: Params, tokens: list[int]) -> list[Any]:
    with continuing(tokens):
        return [output async for output in engine.generate(params, "a")]


def told(outputs: list[Any]) -> Any:
    """What the parts of an answer say together, and how it has ended."""
    last = outputs[-1].outputs[0]
    tokens = [token for output in outputs for token in output.outputs[0].token_ids]
    return tokens, last.text, last.finish_reason, last.stop_reason, outputs[-1].prompt_token_ids


@pytest.mark.parametrize("stop", [None, "jkl"])
async def test_it_is_that_of_one_run(engine: Engine, stop: str | None) -> None:
    whole = told(await run(engine, asked(stop=stop), []))
    assert whole[2] is (Reason.STOP if stop else Reason.LENGTH)
    for place in range(1, len(whole[0])):
        outputs = await run(engine, asked(stop=stop), whole[0][:place])
        assert told(outputs) == whole
        assert [len(output.outputs[0].token_ids) for output in outputs] == [1] * len(whole[0]), "as at first"
        request = engine.read[-1]
        left = request.sampling_params
        assert request.prompt_token_ids == PROMPT + whole[0][:place]
        assert (left.max_tokens, left.min_tokens, left.seed) == (12 - place, max(0, 5 - place), 7 + place)
        assert outputs[0].num_cached_tokens == 3, "not those of the answer"


@pytest.mark.parametrize(
    ("tokens", "changes", "end"),
    [
        ([3, 4, END], {}, (Reason.STOP, None)),
        ([3, 4, 5], {"stop_token_ids": [5]}, (Reason.STOP, 5)),
        ([3, 4, 5], {"stop": "ef"}, (Reason.STOP, "ef")),
        ([3, 4, 5], {"max_tokens": 3, "min_tokens": 0}, (Reason.LENGTH, None)),
        ([3] * 37, {"max_tokens": 1000}, (Reason.LENGTH, None)),
    ],
)
async def test_one_that_has_lost_only_its_end_ends(
    engine: Engine, tokens: list[int], changes: dict[str, Any], end: tuple[Reason, Any]
) -> None:
    outputs = await run(engine, asked(**changes), tokens)
    assert told(outputs)[0] == tokens
    assert told(outputs)[2:4] == end
    assert engine.read[-1].sampling_params.max_tokens == 1, "the engine does no more than it must"
    assert engine.closed == 1, "and its client ends the request"


@pytest.mark.parametrize(
    "changes",
    [
        {"presence_penalty": 0.5},
        {"frequency_penalty": -0.5},
        {"structured_outputs": object()},
        {"bad_words": ["a"]},
        {"output_kind": SimpleNamespace(name="CUMULATIVE")},
    ],
)
async def test_what_depends_on_tokens_that_were_generated_begins_again(engine: Engine, changes: dict[str, Any]) -> None:
    params = asked(**changes)
    outputs = await run(engine, params, [3, 4])
    assert engine.read[-1].sampling_params is params
    assert engine.read[-1].prompt_token_ids is PROMPT
    assert len(outputs) == 12


async def test_others_run_beside_it_as_they_are(engine: Engine) -> None:
    async def other() -> list[Any]:
        return [output async for output in engine.generate(asked(), "b")]

    beside = asyncio.create_task(other())
    await run(engine, asked(), [3, 4])
    assert told(await beside)[0] == list(range(3, 15))
