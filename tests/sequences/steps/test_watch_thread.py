"""The thread that hears which sequences other servers ask for."""

import threading
from collections.abc import Sequence

import pytest

from ts.sequences.steps import watch_thread
from ts.sequences.steps.stores.store import StoreError
from ts.sequences.steps.watch_thread import WatchThread


class Asked:
    """A watch that fails first, and is asked for one sequence then."""

    def __init__(self, failure: Exception) -> None:
        self._outcomes: list[Exception | list[str]] = [failure, ["s"]]
        self._closed = threading.Event()

    def wait(self) -> Sequence[str]:
        if not self._outcomes:
            self._closed.wait(30)
            return ()
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def close(self) -> None:
        self._closed.set()


@pytest.mark.parametrize("failure", [StoreError("it is away"), ValueError("a reply that nobody expects")])
def test_whatever_fails_the_store_is_listened_to_again(failure: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_thread, "_PAUSE", 0.0)
    told, heard = list[str](), threading.Event()

    def tell(wanted: Sequence[str]) -> None:
        told.extend(wanted)
        heard.set()

    thread = WatchThread(Asked(failure), tell)
    assert heard.wait(30)
    thread.close()
    assert told == ["s"]
