"""Tokens: a frame that was sent ahead belongs to the worker or to the server, never to both."""

import errno
import os
from collections.abc import Iterator

import pytest

from torchserve_py.core.workers.batch_tokens import BatchTokens
from ts.connection.batch_claims import BatchClaims


@pytest.fixture
def tokens() -> Iterator[BatchTokens]:
    made = BatchTokens()
    yield made
    made.close()


def claims(tokens: BatchTokens) -> BatchClaims:
    return BatchClaims(",".join(map(str, tokens.worker_ends)))


def send(tokens: BatchTokens, *, joins: bool = False) -> int:
    pipe = tokens.pipe_of(joins=joins)
    tokens.add(pipe)
    return pipe


def test_the_worker_begins_a_frame_once(tokens: BatchTokens) -> None:
    worker = claims(tokens)
    pipe = send(tokens)
    assert worker.claim(pipe)
    assert not worker.claim(pipe)
    assert tokens.take_back() == 0


def test_a_frame_that_was_taken_back_is_not_begun(tokens: BatchTokens) -> None:
    pipe = send(tokens)
    assert tokens.take_back() == 1
    assert not claims(tokens).claim(pipe)


def test_of_a_batch_the_frames_that_were_not_begun_are_taken_back(tokens: BatchTokens) -> None:
    pipe = send(tokens)
    assert [send(tokens, joins=True), send(tokens, joins=True)] == [pipe, pipe]
    assert claims(tokens).claim(pipe)
    assert tokens.take_back() == 2


def test_the_batch_before_stays_the_workers(tokens: BatchTokens) -> None:
    before, following = send(tokens), send(tokens)
    assert tokens.take_back() == 1
    worker = claims(tokens)
    assert worker.claim(before)
    assert not worker.claim(following)


def test_tokens_outlive_their_worker(tokens: BatchTokens) -> None:
    send(tokens)
    tokens.close()
    assert (tokens.take_back(), tokens.take_back()) == (1, 0)


def test_what_is_sent_ahead_to_a_worker_that_is_gone_is_not_begun(tokens: BatchTokens) -> None:
    send(tokens)
    tokens.close()
    send(tokens)
    send(tokens, joins=True)
    assert (tokens.take_back(), tokens.take_back()) == (2, 0)


def test_a_process_with_too_many_open_files_keeps_no_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    first = os.pipe()
    pipes = iter([first])

    def pipe() -> tuple[int, int]:
        for ends in pipes:
            return ends
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "pipe", pipe)
    with pytest.raises(OSError, match="Too many open files"):
        BatchTokens()
    for end in first:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(end)


def test_the_worker_finds_its_ends_in_the_environment(tokens: BatchTokens) -> None:
    assert claims(tokens).claim(send(tokens))
    assert not any(os.get_inheritable(end) for end in tokens.worker_ends)
    BatchClaims("")  # of a worker that is sent nothing ahead
