"""Fields of OpenAI requests that cannot change an answer. They are ignored, and each is logged once.

A handler refuses every other field that it does not support, by name, so that no request gets another answer than the
one it asked for.
"""

import logging
from collections.abc import Mapping
from typing import Any, Final

logger = logging.getLogger(__name__)

#: They are about accounts, caches, logs and speed.
_NEVER: Final = frozenset(
    {
        "cache_salt",
        "metadata",
        "prediction",
        "priority",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "request_id",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
#: Fields by the values with which they leave an answer as it is; null always does.
_PLAIN: Final[Mapping[str, tuple[Any, ...]]] = {
    "add_generation_prompt": (True,),
    "add_special_tokens": (False,),
    "best_of": (1,),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "ignore_eos": (False,),
    "include_reasoning": (True,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "min_p": (0,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "n": (1,),
    "parallel_tool_calls": (True, False),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "stop": ([],),
    "stop_token_ids": ([],),
    "suffix": ("",),
    "temperature": (1,),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_k": (-1, 0),
    "top_logprobs": (0,),
    "top_p": (1,),
    "use_beam_search": (False,),
}
_logged: set[str] = set()


def changes_nothing(name: str, value: Any) -> bool:
    """Return whether an unsupported field leaves the answer as it is; the first request with the field is logged."""
    if value is None:
        return True
    is_plain = name in _NEVER or any(_equal(value, each) for each in _PLAIN.get(name, ()))
    if is_plain:
        log_ignored(name)
    return is_plain


def log_ignored(name: str) -> None:
    """Log that a field is ignored, the first time."""
    if name not in _logged:
        _logged.add(name)
        logger.info("Requests have the field %s, which is ignored: it cannot change an answer here.", name)


def _equal(value: Any, other: Any) -> bool:
    """Return whether two JSON values are equal; true is not 1."""
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)
