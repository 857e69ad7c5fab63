"""Answers each step with all steps of its sequence that count; streams, is slow, and dies around commits."""

import json
import time
from typing import Any

from hazards import live_dangerously
from versions import migrated, tokens_of

from ts.handler_utils.utils import send_intermediate_predict_response
from ts.sequence import SequenceCache

#: Of the commits: how many are not survived, and how many hang.
DEATH_RATE = 0.001
HANG_RATE = 0.0003


class SessionsHandler:
    """Keeps the tokens of a sequence's steps.

    A step is a JSON text: its ``token``, how long to ``sleep`` (seconds), and how many parts to ``stream``.
    """

    def initialize(self, context: Any) -> None:
        self.version = str(context.system_properties["model_version"])
        self.cache = SequenceCache(context)
        live_dangerously(deaths=DEATH_RATE, hangs=HANG_RATE)

    def handle(self, data: list[dict[str, Any]], context: Any) -> list[str]:
        steps = [json.loads(row["body"]) for row in data]
        answers = [self.apply(context.get_sequence_id(index), step["token"]) for index, step in enumerate(steps)]
        for part in range(max(step["stream"] for step in steps)):
            rows = [index for index, step in enumerate(steps) if part < step["stream"]]
            parts = [f"{steps[index]['token']} {part}\n" for index in range(len(steps))]
            ids = {index: context.request_ids[index] for index in rows}
            send_intermediate_predict_response(parts, ids, "OK", 200, context)
            time.sleep(0.02)
        time.sleep(max(step["sleep"] for step in steps))
        return answers

    def apply(self, sequence_id: str, token: str) -> str:
        state = [*self.cache.get(sequence_id, [self.version]), token]
        self.cache[sequence_id] = state
        tokens = tokens_of(state, self.version)
        return f"{len(tokens)}: {' '.join(tokens)}"

    def migrate(self, state: list[str], from_version: str) -> list[str]:
        """Continue a sequence of another version."""
        return migrated(state, from_version, self.version)
