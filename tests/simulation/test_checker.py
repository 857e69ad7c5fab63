"""Each rule of the checker objects to the history that it is about, and to no history that keeps the promise."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.simulation.checker import Reading, check
from tests.simulation.history import Answer, History, Step

#: Rules about states in memory.
OF_MEMORY = ("what_was_lost_is_said", "nothing_else_is_said_to_be_lost")


class Teller:
    """Writes a history down."""

    def __init__(self) -> None:
        self.history = History()
        self._time, self._deliveries, self._runs = 0.0, 0, 0

    def ask(self, number: int, state: str = "", cause: str = "", *, status: int = 0, run: int = 0, **step: Any) -> None:
        """A step is sent, received, answered and heard of; a state is told by words or by numbers."""
        self._time += 1.0
        self._deliveries += 1
        asked = _step(number, **step)
        if status == 0:
            status = 409 if cause else 200
        self._runs += 1
        words = tuple(each if "." in each else _step(int(each), **step).word for each in state.split())
        answer = Answer(status, cause, run or self._runs, words, f"t{asked.incarnation}")
        for who, what, details in (("c", "sent", None), ("s1", "received", None), ("s1", "answered", answer)):
            self.history.add(self._time, who, what, asked, self._deliveries, details)
        self.history.add(self._time, "c", "heard", asked, 0, answer)

    def lose(self, *sequences: str) -> None:
        """A worker is lost with the states of these, or without any a server with all."""
        self.history.lost(self._time, "s1.w0" if sequences else "s1", frozenset(sequences) or None)

    def pass_time(self, seconds: float) -> None:
        self._time += seconds

    def violations(self, *, durable: bool = True, require_start: bool = False) -> list[str]:
        return [text.partition(":")[0] for text in check(Reading(self.history, durable, 1000.0, 10.0, require_start))]


def _step(number: int, **fields: Any) -> Step:
    return Step(
        **{"client": "c", "incarnation": 1, "number": number, "kind": "numbered", "starts": number == 1, **fields}
    )


def _kept(tell: Teller) -> None:
    tell.ask(1, "1", run=1)
    tell.ask(1, "1", run=1)
    tell.ask(2, "1 2")
    tell.ask(4, cause="step_gap")
    tell.ask(3, "1 2 3", ends=True)
    tell.ask(4, status=410, cause="sequence_ended")
    tell.ask(1, "1", incarnation=2)


def test_a_history_that_keeps_the_promise_has_no_violation() -> None:
    tell = Teller()
    _kept(tell)
    assert tell.violations() == []


def _twice(tell: Teller) -> None:
    tell.ask(1, "1")
    tell.ask(2, "1 2")
    tell.ask(2, "1 2 2")


def _somebody_elses(tell: Teller) -> None:
    tell.ask(1, "1")
    tell.ask(1, "c.1.1", altered=True)


def _lost(tell: Teller) -> None:
    tell.ask(1, "1", kind="ids")
    tell.ask(2, "1 2", kind="ids")
    tell.ask(3, "1 3", kind="ids")


def _ghost(tell: Teller) -> None:
    tell.ask(2, "2")


def _stranger(tell: Teller) -> None:
    tell.ask(1, "1")
    tell.ask(2, "c.1.1 c.2.2", incarnation=2)


def _again(tell: Teller) -> None:
    tell.ask(1, "1", run=1)
    tell.ask(1, "1", run=2)


def _refused(tell: Teller) -> None:
    tell.ask(1, "1")
    tell.ask(2, cause="sequence_moved")
    tell.ask(3, "1 2 3", kind="ids")


def _gone(tell: Teller) -> None:
    tell.ask(1, "1")
    tell.ask(2, status=410, cause="sequence_unknown")


def _held(tell: Teller) -> None:
    for _ in range(5):
        tell.ask(1, cause="sequence_moved")
        tell.pass_time(8.0)


def _silently(tell: Teller) -> None:
    tell.ask(1, "1", kind="ids")
    tell.lose("c")
    tell.ask(2, "2", kind="ids")


def _not_lost(tell: Teller) -> None:
    tell.ask(1, "1", kind="ids")
    tell.lose("d")
    tell.ask(2, status=410, cause="sequence_lost", kind="ids")


def _begun(tell: Teller) -> None:
    tell.ask(2, "2", kind="ids")


def _open(tell: Teller) -> None:
    tell.ask(1, cause="sequence_open")


def _gap(tell: Teller) -> None:
    tell.ask(1, "1")
    tell.ask(2, cause="step_gap")


def _denied(tell: Teller) -> None:
    tell.ask(1, "1")
    tell.ask(1, cause="not_applied", asks=True)


def _unanswered(tell: Teller) -> None:
    tell.history.add(1.0, "s1", "received", _step(1), 1)


@pytest.mark.parametrize(
    ("rule", "tell"),
    [
        ("a_step_counts_once", _twice),
        ("an_answer_is_the_answer_to_its_step", _somebody_elses),
        ("what_was_acknowledged_stays", _lost),
        ("numbers_come_in_order", _ghost),
        ("a_step_stays_in_its_incarnation", _stranger),
        ("a_step_runs_once", _again),
        ("a_refused_step_does_not_count", _refused),
        ("a_sequence_that_is_in_use_is_not_over", _gone),
        ("a_lease_ends", _held),
        ("what_was_lost_is_said", _silently),
        ("nothing_else_is_said_to_be_lost", _not_lost),
        ("only_a_start_begins_a_sequence", _begun),
        ("nothing_is_open_after_the_end", _open),
        ("nobody_skips", _gap),
        ("what_was_acknowledged_is_not_denied", _denied),
        ("every_request_is_answered_once", _unanswered),
    ],
)
def test_a_rule_finds_what_it_is_about(rule: str, tell: Callable[[Teller], None]) -> None:
    teller = Teller()
    tell(teller)
    assert rule in teller.violations(durable=rule not in OF_MEMORY, require_start=True)


def test_a_restarted_server_without_a_store_may_take_a_late_first_step_for_a_new_one() -> None:
    tell = Teller()
    tell.lose()
    tell.ask(1, cause="sequence_open")
    assert tell.violations(durable=False) == []


def test_only_the_loss_of_its_own_state_excuses_what_a_sequence_has_lost() -> None:
    for lost in ("c", "d"):
        tell = Teller()
        tell.ask(1, "1")
        tell.lose(lost)
        tell.ask(2, status=410, cause="sequence_lost")
        assert ("a_sequence_that_is_in_use_is_not_over" in tell.violations(durable=False)) is (lost == "d")


def test_a_first_step_that_was_given_up_may_begin_its_sequence_late() -> None:
    for is_known in (False, True):
        tell = Teller()
        if is_known:
            tell.ask(1, "1", incarnation=1)
        tell.ask(1, "1", incarnation=2)
        tell.ask(1, "1", incarnation=1)
        tell.ask(1, cause="sequence_open", incarnation=3)
        assert ("nothing_is_open_after_the_end" in tell.violations()) is is_known
