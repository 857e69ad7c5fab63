"""Counts and adds up what each sequence was sent; fails now and then, and can be made to have no disk left."""

from __future__ import annotations

import json
import os
import random
import resource
from pathlib import Path
from typing import Any

from ts.sequence import SequenceCache

FAILURE_RATE = 0.01
#: While this file exists, this process writes to no file beyond its first bytes, as if the disk were full.
DISK_FULL = Path(os.environ["CHAOS_DIRECTORY"]) / "disk-full"


class ChaosHandler:
    def initialize(self, context: Any) -> None:
        self.cache = SequenceCache(context)

    def handle(self, data: list[dict[str, Any]], context: Any) -> list[Any]:
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 if DISK_FULL.exists() else most, most))
        fails_after = random.randrange(len(data)) if random.random() < FAILURE_RATE else None
        answers = []
        for index, row in enumerate(data):
            answers.append(self.step(index, int(row["body"]), context))
            if index == fails_after:
                raise RuntimeError("half of the batch is done: now it fails")
        return answers

    def step(self, index: int, number: int, context: Any) -> str:
        sequence_id = context.get_sequence_id(index)
        if sequence_id not in self.cache:
            self.cache[sequence_id] = {"steps": 0, "total": 0}
        state = self.cache[sequence_id]
        state["steps"] += 1  # in place: the server has to notice
        state["total"] += number
        if number == 0:
            context.set_response_header(index, context.header_key_sequence_end, sequence_id)
        return json.dumps(state)
