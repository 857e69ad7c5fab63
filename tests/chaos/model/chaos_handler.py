"""Lists the steps of each sequence. Is slow, fails, streams, dies around commits, and can have no disk left."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ts.handler_utils.utils import send_intermediate_predict_response
from ts.sequence import SequenceCache
from ts.sequence.stores.file import FileStore
from ts.sequence.stores.redis import RedisStore

FAILURE_RATE = 0.01
#: Seconds that loading takes, at most.
LOADING = 1.5
#: Of the commits: how many are not survived, which is where a step is lost or applied twice if anywhere, and how many
#: wait until the response timeout is over or another server may have taken the sequences over.
DEATH_RATE = 0.01
HANG_RATE = 0.004
HANG_SECONDS = 4.0
#: While this file exists, this process writes to no file beyond its first bytes, as if the disk were full.
DISK_FULL = Path(os.environ["CHAOS_DIRECTORY"]) / "disk-full"
LOOK_INTERVAL = 0.05
#: Gets a line for each death.
EVENTS = Path(os.environ["CHAOS_DIRECTORY"]) / "events"


class ChaosHandler:
    """Keeps the tokens of a sequence's steps.

    A step is a JSON text: its ``token``, how long to ``sleep`` (seconds), the probability to ``fail``, how many parts
    to ``stream``, and whether the handler is to ``end`` the sequence.
    """

    def initialize(self, context: Any) -> None:
        time.sleep(LOADING * random.random())
        self.cache = SequenceCache(context)
        for store in (FileStore, RedisStore):
            store.commit = dangerous(store.commit)  # type: ignore[method-assign]
        threading.Thread(target=keep_disk_full, daemon=True).start()

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
            time.sleep(max(step["sleep"] for step in steps))
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
            self.cache[sequence_id] = []
        tokens = self.cache[sequence_id]
        tokens.append(step["token"])  # in place: the server has to notice
        return json.dumps(tokens)


def keep_disk_full() -> None:
    """Let the disk be full while it is to be, whether the handler is called meanwhile or not."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    while True:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 if DISK_FULL.exists() else most, most))
        time.sleep(LOOK_INTERVAL)


def dangerous(commit: Callable[..., Any]) -> Callable[..., Any]:
    """A commit that the process does not always survive: killed or stopped just before it, or just after."""

    def wrapped(*arguments: Any) -> Any:
        if random.random() < HANG_RATE:
            note("worker hung before a commit")
            time.sleep(HANG_SECONDS)
        dies = random.random() < DEATH_RATE
        if dies and random.random() < 0.3:
            die("before")
        result = commit(*arguments)
        if dies:
            die("after")
        return result

    return wrapped


def die(when: str) -> None:
    how = random.choice([signal.SIGKILL, signal.SIGSTOP])
    note(f"worker {'killed' if how is signal.SIGKILL else 'stopped'} {when} a commit")
    os.kill(os.getpid(), how)


def note(event: str) -> None:
    if resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1:
        with EVENTS.open("a") as events:
            events.write(f"{event}\n")
