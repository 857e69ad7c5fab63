"""The departures that a worker has yet to write: only if there are any does it write."""

from unittest.mock import Mock, call

import pytest

from ts.sequences.steps.holdings import Departures
from ts.sequences.steps.stores.store import StoreError


def test_no_departures_are_not_due() -> None:
    """A worker that had nothing to write would have tried to for ever."""
    departures = Departures(Mock())
    departures.add_released([], idle_at=0.0)
    assert not departures.are_due


def test_departures_are_due_until_they_are_written() -> None:
    store, lease = Mock(), Mock()
    departures = Departures(lambda: store)
    departures.add_released([lease], idle_at=5.0)
    departures.add_released([], idle_at=0.0)
    assert departures.are_due
    departures.write()
    assert not departures.are_due
    store.release.assert_called_once()


def test_departures_that_a_commit_adds_while_the_store_is_awaited_are_written_too() -> None:
    """They were forgotten, and the worker never rested again."""
    store, leases = Mock(), [Mock(), Mock()]

    def store_after_commit() -> Mock:
        departures.add_released([leases[1]], 6.0)
        return store

    departures = Departures(store_after_commit)
    departures.add_released([leases[0]], 5.0)
    departures.write()
    assert not departures.are_due
    store.release.assert_called_once_with([(leases[0], 5.0), (leases[1], 6.0)])


def test_departures_that_could_not_be_written_are_kept() -> None:
    store, lease = Mock(), Mock()
    departures = Departures(lambda: store)
    departures.add_released([lease], 5.0)
    store.release.side_effect = StoreError("the disk is full")
    with pytest.raises(StoreError):
        departures.write()
    assert not departures.are_due
    store.release.side_effect = None
    departures.write()
    assert store.release.call_args_list == [call([(lease, 5.0)])] * 2
