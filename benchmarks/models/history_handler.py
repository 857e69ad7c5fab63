"""Goes on with a text that has the whole conversation: what a server without a memory has to do in each turn."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


class HistoryHandler:
    """Runs on TorchServe and on this server, from the folder ``handler: model_path``."""

    def initialize(self, context: Any) -> None:
        config = context.model_yaml_config["handler"]
        self.most_tokens = config["max_tokens"]
        self.tokenizer = AutoTokenizer.from_pretrained(config["model_path"])
        self.model = AutoModelForCausalLM.from_pretrained(config["model_path"]).eval()

    def handle(self, data: list[dict[str, Any]], context: Any) -> list[str]:
        return [self._continued(row.get("body") or row.get("data")) for row in data]

    def _continued(self, body: Any) -> str:
        text = body if isinstance(body, str) else bytes(body).decode()
        tokens = self.tokenizer(text, return_tensors="pt").input_ids
        with torch.inference_mode():
            longer = self.model.generate(
                tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=self.most_tokens, do_sample=False
            )
        answer: str = self.tokenizer.decode(longer[0, tokens.shape[1] :])
        return answer
