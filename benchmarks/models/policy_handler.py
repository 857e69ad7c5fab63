"""A policy that takes 150 ms for a batch of any size, as one on a GPU would, and returns a chunk of actions."""

import time
from typing import Any

import numpy as np

SECONDS = 0.15
ACTIONS, JOINTS = 50, 6


class PolicyHandler:
    """Counts the chunks of each episode."""

    def initialize(self, context: Any) -> None:
        """There is nothing to load."""

    def handle(self, data: list[dict[str, Any]], context: Any) -> list[dict[str, Any]]:
        """Answer one batch."""
        time.sleep(SECONDS)
        answers = []
        for idx in range(len(data)):
            number = context.state.get(idx, 0) + 1
            context.state[idx] = number
            answers.append({"actions": np.full((ACTIONS, JOINTS), number, np.float32)})
        return answers
