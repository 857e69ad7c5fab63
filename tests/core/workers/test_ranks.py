"""The connections of a worker's processes: who is let in, and who gets what."""

from typing import cast

import pytest

from torchserve_py.core.workers.connection import WorkerConnection
from torchserve_py.core.workers.worker import Ranks
from ts.protocol.frames import Buffer
from ts.protocol.messages import HEARTBEAT_CHANNEL, JOBS_CHANNEL, Hello


class FakeConnection:
    """Notes what is sent."""

    def __init__(self, peer_pid: int) -> None:
        self.peer_pid = peer_pid
        self.sent: list[Buffer] = []
        self.closed = False

    def send(self, buffers: list[Buffer]) -> None:
        self.sent += buffers

    def close(self) -> None:
        self.closed = True


def attach(ranks: Ranks, rank: int, channel: str = JOBS_CHANNEL) -> FakeConnection:
    connection = FakeConnection(100 + rank)
    ranks.attach(cast("WorkerConnection", connection), Hello(token="", channel=channel, rank=rank))
    return connection


def connect(ranks: Ranks) -> list[FakeConnection]:
    """Connect all processes, the last first; return their connections for jobs by rank."""
    jobs = []
    for rank in reversed(range(ranks.count)):
        assert not ranks.complete
        jobs.insert(0, attach(ranks, rank))
        attach(ranks, rank, HEARTBEAT_CHANNEL)
    assert ranks.complete
    return jobs


@pytest.mark.parametrize(("every_rank", "second"), [(True, [b"request", b"all"]), (False, [b"all"])])
def test_who_gets_what(every_rank: bool, second: list[bytes]) -> None:
    ranks = Ranks(2, every_rank=every_rank)
    first, follower = connect(ranks)
    ranks.send_request([b"request"])
    ranks.send_all([b"all"])
    assert (first.sent, follower.sent) == ([b"request", b"all"], second)
    assert ranks.pids == {0: 100, 1: 101}
    ranks.close()
    assert first.closed
    assert follower.closed


def test_a_request_that_several_processes_run_is_not_cancelled_in_one_of_them() -> None:
    ranks = Ranks(2, every_rank=True)
    connections = connect(ranks)
    ranks.cancel([b"cancel"])
    assert [connection.sent for connection in connections] == [[], []]
    ranks = Ranks(2, every_rank=False)
    connections = connect(ranks)
    ranks.cancel([b"cancel"])
    assert [connection.sent for connection in connections] == [[b"cancel"], []]


@pytest.mark.parametrize(("rank", "channel"), [(2, JOBS_CHANNEL), (-1, JOBS_CHANNEL), (0, "other"), (1, JOBS_CHANNEL)])
def test_strangers_and_doubles_are_refused(rank: int, channel: str) -> None:
    ranks = Ranks(2, every_rank=True)
    attach(ranks, 1)
    with pytest.raises(ValueError, match=f"channel '{channel}' of rank {rank} is unknown or connected already"):
        attach(ranks, rank, channel)


def test_the_process_that_has_not_answered_a_ping_for_longest_counts() -> None:
    ranks = Ranks(2, every_rank=True)
    heartbeats = [attach(ranks, rank, HEARTBEAT_CHANNEL) for rank in range(2)]
    assert ranks.silence(10.0) == 0.0, "nobody was pinged"
    ranks.ping([b"ping"], 10.0)
    assert [heartbeat.sent for heartbeat in heartbeats] == [[b"ping"], [b"ping"]]
    ranks.heard(cast("WorkerConnection", heartbeats[0]))
    assert ranks.silence(15.0) == 5.0
    ranks.ping([b"ping"], 16.0)
    assert ranks.silence(18.0) == 8.0
    ranks.heard(cast("WorkerConnection", heartbeats[1]))
    assert ranks.silence(18.0) == 2.0
    ranks.heard(cast("WorkerConnection", heartbeats[0]))
    assert ranks.silence(100.0) == 0.0, "nobody was pinged since"
