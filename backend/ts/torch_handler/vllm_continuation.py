"""Continues a generation that broke off behind the tokens which an earlier run of it has committed, in vLLM's engine.

The engine reads these tokens with the prompt, and generates the rest. All that comes after the engine takes them for
generated: they go through the request's state in the engine's client as if the engine had just chosen them. So texts,
strings that end the answer, log probabilities, usage, and vLLM's parsers of calls and reasoning are those of one run.

Some requests are made again from the beginning: their next token depends on what the engine has counted or parsed of
the answer, which a prompt does not tell it.
"""

import contextlib
import logging
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextvars import ContextVar
from copy import copy
from typing import Any, Final

logger = logging.getLogger(__name__)

#: What the engine applies to the tokens that it has generated itself.
_OF_GENERATED: Final = (
    "presence_penalty",
    "frequency_penalty",
    "structured_outputs",
    "bad_words",
    "thinking_token_budget",
    "repetition_detection",
    "extra_args",  # for code that vLLM does not know
)
_SEEDS: Final = 2**63


class _Continuation:
    """A generation that continues behind ``tokens``; ``outputs``: what the engine's client would have got for them."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tokens
        self.outputs: list[Any] = []


_current: ContextVar[_Continuation | None] = ContextVar("continuation", default=None)


@contextlib.contextmanager
def continuing(tokens: Sequence[int]) -> Iterator[None]:
    """Have the generation that begins inside continue behind these tokens, unless there are none."""
    before = _current.set(_Continuation(tokens) if tokens else None)
    try:
        yield
    finally:
        _current.reset(before)


def let_continue(engine: Any) -> None:
    """Have an engine heed `continuing`, if this version of vLLM has what that needs."""
    try:
        from vllm import SamplingParams
        from vllm.logprobs import Logprob
        from vllm.v1.engine import FinishReason
    except ImportError:
        SamplingParams = None
    if not hasattr(SamplingParams, "eos_token_id"):
        logger.info("With this version of vLLM, a background response that broke off is made again from its beginning.")
        return
    client = _EngineClient(engine, FinishReason, Logprob)
    engine.engine_core.add_request_async, engine.generate = client.add_request_async, client.generate


class _EngineClient:
    """Stands between vLLM's client of the engine, which knows the state of each request, and the engine."""

    def __init__(self, engine: Any, reasons: Any, logprob: Any) -> None:
        self._add_request, self._generate = engine.engine_core.add_request_async, engine.generate
        self._states = engine.output_processor.request_states
        self._most_tokens = engine.model_config.max_model_len
        self._reasons, self._logprob = reasons, logprob

    async def add_request_async(self, request: Any) -> None:
        """Give the engine a request, of which its client has just made the state."""
        continuation, state = _current.get(), self._states.get(request.request_id)
        if continuation is not None and _can_continue(request, state):
            request = self._continued(request, state, continuation)
        await self._add_request(request)

    def generate(self, *args: Any, **options: Any) -> AsyncGenerator[Any, None]:
        """Return the outputs of a generation."""
        outputs, continuation = self._generate(*args, **options), _current.get()
        return outputs if continuation is None else _joined(continuation, outputs)

    def _continued(self, request: Any, state: Any, continuation: _Continuation) -> Any:
        """Return the request for what is left of a generation."""
        params, tokens, prompt = request.sampling_params, continuation.tokens, request.prompt_token_ids
        rest = copy(request)
        rest.sampling_params = left = copy(params)
        continuation.outputs = self._outputs(state, params, len(prompt), tokens)
        if continuation.outputs and continuation.outputs[-1].finished:  # only its end was lost: nothing is left
            left.max_tokens, left.min_tokens = 1, 0
            return rest
        rest.prompt_token_ids = [*prompt, *tokens]
        left.max_tokens, left.min_tokens = params.max_tokens - len(tokens), max(0, params.min_tokens - len(tokens))
        if params.seed is not None:  # with the same one, the random numbers of the first tokens would come again
            left.seed = (params.seed + len(tokens)) % _SEEDS
        return rest

    def _outputs(self, state: Any, params: Any, prompt_size: int, tokens: Sequence[int]) -> list[Any]:
        """Return the outputs for tokens, one for each: vLLM's parsers get what they got in the first run."""
        stop, outputs = self._reasons.STOP, []
        room = min(params.max_tokens, self._most_tokens - prompt_size)
        for count, token in enumerate(tokens, 1):
            reason = cause = None
            if token == params.eos_token_id:
                reason = stop
            elif token in (params.stop_token_ids or ()):
                reason, cause = stop, token
            elif count >= room:
                reason = self._reasons.LENGTH
            text = state.detokenizer.update([token], reason == stop)
            if text is not None:
                reason, cause = stop, text
            if (logprobs := state.logprobs_processor.logprobs) is not None:
                logprobs.append({token: self._logprob(0.0)})  # was sent before, so this one is left out
            output = state.make_request_output([token], None, reason, cause)
            if output is not None:
                outputs.append(output)
            if reason is not None:
                break
        return outputs


def _can_continue(request: Any, state: Any) -> bool:
    params = request.sampling_params
    return (
        params is not None
        and params.output_kind.name == "DELTA"  # a stream; what beam search asks for is none
        and state.parent_req is None  # else one of several answers
        and request.prompt_token_ids is not None
        and request.prompt_embeds is None
        and not any(getattr(params, name, None) for name in _OF_GENERATED)
    )


async def _joined(continuation: _Continuation, outputs: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    """Yield the outputs for the tokens of a continuation, and then what the engine generates."""
    async with contextlib.aclosing(outputs):
        async for output in outputs:
            earlier, continuation.outputs = continuation.outputs, []
            for each in earlier:
                each.num_cached_tokens = min(output.num_cached_tokens or 0, len(each.prompt_token_ids))
                yield each
                if each.finished:
                    return
            yield output
