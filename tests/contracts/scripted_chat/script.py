"""handlers/chat with the answers of a script: the model's logits are replaced by those of what it is to say."""

import json
from typing import Any

import torch
from chat_base import ChatHandler as Base

_ASSISTANT = "<|im_start|>assistant\n"
_THOUGHT = "<think>\nLet me see.\n</think>"
_BLANK = "\n\n"
_NO_THOUGHT = "<think>\n\n</think>\n\n"
_ADA = {"name": "Ada", "age": 36}
#: What is said if the last message has a text and, where one is named, the prompt has a tool.
_SCRIPT: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("weather", "get_weather", "", {"city": "Paris"}),
    ("help", "transfer_to_expert", "", {}),
    ("help", "handoff", "", {"to_agent": "expert", "reason": "The transfer is asked for."}),
    ("Extract", "Person", "", _ADA),
    ("Extract", "PartialPerson", "", _ADA),
    ("Extract", "final_result", "", _ADA),
    ("Extract", "", json.dumps(_ADA), {}),
    ("21 degrees", "", "It is 21 degrees in Paris.", {}),
    ("transfer", "", "The expert is here.", {}),
    ("assistant", "", "The expert is here.", {}),
)


def answer_to(prompt: str) -> str:
    """Return what the model says to a prompt."""
    last = prompt.rpartition("<|im_start|>user\n")[2]
    for text, tool, said, arguments in _SCRIPT:
        if text in last and (not tool or f'"name": "{tool}"' in prompt):
            call = f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"
            return call if tool else said
    return "Hello there."


def script_for(prompt: str) -> str:
    """Return all that the model generates: it thinks if the question has "think", and says when it has before."""
    answer = answer_to(prompt)
    if _THOUGHT in prompt:
        return f"{answer} As I thought."
    thinks = "think" in prompt.rpartition("<|im_start|>user\n")[2]
    return f"{_THOUGHT}{'' if answer.startswith('{') else _BLANK}{answer}" if thinks else answer


class ChatHandler(Base):
    """Says what the script has."""

    def initialize(self, context: Any) -> None:
        super().initialize(context)
        step, encode, decode = self.decoder.step, self.text.encode, self.text.tokenizer.decode
        end = self.text.tokenizer.eos_token_id

        def scripted(readings: Any) -> Any:
            logits = step(readings)
            for reading in logits:
                prompt, _, said = decode(reading.tokens).rpartition(_ASSISTANT)
                tokens = encode(script_for(prompt)) if prompt else []
                if said.startswith(_NO_THOUGHT):
                    said, tokens = said.removeprefix(_NO_THOUGHT), encode(answer_to(prompt))
                count = len(encode(said))
                scores = torch.zeros_like(logits[reading])
                scores[tokens[count] if count < len(tokens) else end] = 30.0
                logits[reading] = scores
            return logits

        self.decoder.step = scripted
