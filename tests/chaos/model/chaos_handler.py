"""Lists the steps of each sequence. Is slow, fails, streams, dies around commits, and can have no disk left."""

import json
import random
import time
from typing import Any

from hazards import live_dangerously
from versions import migrated, tokens_of

from ts.handler_utils.utils import send_intermediate_predict_response
from ts.sequence import SequenceCache

FAILURE_RATE = 0.01
#: Seconds that loading takes, at most.
LOADING = 1.5
#: Seconds that a batch takes at least, so that the next one waits meanwhile, and commits are left to a thread.
SHORTEST_STEP = 0.02
#: Of the commits: how many are not survived, and how many hang.
DEATH_RATE = 0.01
HANG_RATE = 0.004


class ChaosHandler:
    """Keeps the tokens of a sequence's steps.

    A step is a JSON text: its ``token``, how long to ``sleep`` (seconds), the probability to ``fail``, how many parts
    to ``stream``, and whether the handler is to ``end`` the sequence.
    """

    def initialize(self, context: Any) -> None:
        time.sleep(LOADING * random.random())
        self.version = str(context.system_properties["model_version"])
        self.cache = SequenceCache(context)
        self.has_logs = context.model_yaml_config["handler"].get("logs", False)
        live_dangerously(deaths=DEATH_RATE, hangs=HANG_RATE)

    def handle(self, data: list[dict[str, Any]], context: Any) -> list[str]:
        steps = [json.loads(row["body"]) for row in data]
        answers = []
        for index, step in enumerate(steps):
            answers.append(self.apply(index, step, context))
            if random.random() < step["fail"]:
                raise RuntimeError("half of the batch is done: now it fails")
        if random.random() < 0.5:
            self.end(steps, context)
        parts = max(step["stream"] for step in steps)
        for _ in range(parts):
            send_intermediate_predict_response(["part\n"] * len(steps), context.request_ids, "OK", 200, context)
            time.sleep(max(step["sleep"] for step in steps) / parts)
        if not parts:
            time.sleep(max(SHORTEST_STEP, *(step["sleep"] for step in steps)))
        if random.random() < FAILURE_RATE:
            raise RuntimeError("all is done, and some parts have left: now it fails")
        self.end(steps, context)
        return answers

    def end(self, steps: list[dict[str, Any]], context: Any) -> None:
        for index, step in enumerate(steps):
            if step["end"]:
                context.set_response_header(index, context.header_key_sequence_end, context.get_sequence_id(index))

    def apply(self, index: int, step: dict[str, Any], context: Any) -> str:
        sequence_id = context.get_sequence_id(index)
        if sequence_id not in self.cache:
            self.cache[sequence_id] = [self.version]
        state = self.cache[sequence_id]
        state.append(step["token"])  # in place: the server has to notice
        if self.has_logs:
            self.cache.append(sequence_id, step["token"])
        return json.dumps(tokens_of(state, self.version))

    def rebuild(self, states: list[Any], entries: list[list[str]]) -> list[list[str]]:
        """With ``handler: logs: true`` the steps append to logs."""
        return [[*(state or [self.version]), *tokens] for state, tokens in zip(states, entries, strict=True)]

    def migrate(self, state: list[str], from_version: str) -> list[str]:
        """Continue a sequence of another version."""
        return migrated(state, from_version, self.version)
