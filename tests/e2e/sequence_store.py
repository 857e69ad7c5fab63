"""Both stores of sequences for tests, and a handler that adds up and can be brought to fail around its commits."""

import contextlib
import textwrap
from collections.abc import Iterator
from pathlib import Path

from tests.e2e.gate import WAITING
from tests.e2e.running_server import model_folder
from tests.programs import need_program
from tests.redis_server import RedisServer

# A number is added. Before that a word may say what happens: "wait" waits for the gate; "freeze before" and "freeze
# after" stop the worker then, and "kill after" kills it, around the commit that has the step, but only once; "slow die"
# takes a second and kills the worker, but only once. While the file "slow" exists, loading takes longer than sequences
# may be idle; while "held" exists, it does not end.
HANDLER = (
    WAITING
    + """
import signal
from pathlib import Path

from ts.sequence import SequenceCache
from ts.sequences.sqlite.file_store import FileStore
from ts.sequences.redis.redis_store import RedisStore

MARKS = Path(os.environ["MARKS"])
planned = []


def once(name):
    try:
        (MARKS / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def around(commit):
    def wrapped(*arguments):
        if "freeze before" in planned:
            os.kill(os.getpid(), signal.SIGSTOP)
        result = commit(*arguments)
        if "freeze after" in planned:
            os.kill(os.getpid(), signal.SIGSTOP)
        if "kill after" in planned:
            os.kill(os.getpid(), signal.SIGKILL)
        planned.clear()
        return result

    return wrapped


class Handler:
    def initialize(self, context):
        self.totals = SequenceCache(context)
        for store in (FileStore, RedisStore):
            store.commit = around(store.commit)
        if (MARKS / "slow").exists():
            time.sleep(3)
        while (MARKS / "held").exists():
            time.sleep(0.05)

    def handle(self, data, context):
        return [self.step(context.get_sequence_id(index), row["body"]) for index, row in enumerate(data)]

    def step(self, sequence_id, text):
        *words, number = text.split()
        word = " ".join(words)
        if word == "wait":
            wait_for(os.environ["GATE"])
        elif word == "slow die" and once(f"{sequence_id} died"):
            time.sleep(1)
            os.kill(os.getpid(), signal.SIGKILL)
        elif word in ("freeze before", "freeze after", "kill after") and once(f"{sequence_id} {word}"):
            planned.append(word)
        self.totals[sequence_id] = self.totals.get(sequence_id, 0) + int(number)
        return str(self.totals[sequence_id])
"""
)

CONFIG = """
    minWorkers: 1
    maxWorkers: 1
    responseTimeout: {response_timeout}
    sequenceBatching: true
    sequenceMaxIdleMSec: {idle}
    maxNumSequence: 100
    handler:
      cache: {{store: {store}, {place}, lease: {lease}, checkpointEvery: {checkpoint_every}}}
"""


class SharedStore:
    """A store that several servers may share.

    Args:
        kind: ``file`` or ``redis``.
        directory: Where files are put.
        redis: The running Redis, if it is that.
    """

    def __init__(self, kind: str, directory: Path, redis: RedisServer | None) -> None:
        self.kind = kind
        self.redis = redis
        self._directory = directory
        self._place = f"path: {directory / 'sequences.db'}" if redis is None else f"url: '{redis.url}'"

    def model(
        self,
        handler: str = HANDLER,
        *,
        idle: int = 60_000,
        lease: float = 600,
        response_timeout: int = 2,
        checkpoint_every: int = 100,
    ) -> Path:
        """Write a model, that which adds up unless another one is given, and return its folder."""
        config = CONFIG.format(
            store=self.kind,
            place=self._place,
            idle=idle,
            lease=lease,
            response_timeout=response_timeout,
            checkpoint_every=checkpoint_every,
        )
        return model_folder(self._directory, "tally", handler, textwrap.dedent(config))


@contextlib.contextmanager
def shared_store(kind: str, directory: Path) -> Iterator[SharedStore]:
    """Run what the store needs."""
    if kind == "file":
        yield SharedStore(kind, directory, None)
        return
    need_program("redis-server")
    data = directory / "redis"
    data.mkdir()
    with RedisServer(data) as redis:
        yield SharedStore(kind, directory, redis)
