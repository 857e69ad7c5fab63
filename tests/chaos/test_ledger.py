"""A ledger finds what contradicts that which a client was told, and nothing else."""

import pytest
from tests.chaos.ledger import Contradiction, Ledger, Status


@pytest.fixture
def ledger() -> Ledger:
    begun = Ledger("s")
    begun.answered("a", ["a"], starts=True, ends=False)
    begun.answered("b", ["a", "b"], starts=False, ends=False)
    return begun


@pytest.mark.parametrize(
    "tokens", [["b", "c"], ["a", "c"], ["a", "b", "b", "c"], ["a", "b"], ["b", "a", "c"], ["a", "b", "x", "c"], ["c"]]
)
def test_what_was_acknowledged_counts_once_and_in_order(ledger: Ledger, tokens: list[str]) -> None:
    with pytest.raises(Contradiction):
        ledger.answered("c", tokens, starts=False, ends=False)


def test_what_was_told_not_to_count_does_not(ledger: Ledger) -> None:
    ledger.refute("c")
    with pytest.raises(Contradiction):
        ledger.answered("d", ["a", "b", "c", "d"], starts=False, ends=False)
    with pytest.raises(Contradiction):
        ledger.refute("b")


@pytest.mark.parametrize("tokens", [["a", "b", "d"], ["a", "b", "c", "d"]])
def test_what_nobody_was_told_of_may_count_or_not(ledger: Ledger, tokens: list[str]) -> None:
    ledger.doubt("c")
    ledger.answered("d", tokens, starts=False, ends=False)
    assert ledger.state == tokens


def test_a_repeated_step_gets_the_answer_that_it_had(ledger: Ledger) -> None:
    ledger.answered("a", ["a"], starts=True, ends=False)
    assert ledger.state == ["a", "b"]
    with pytest.raises(Contradiction):
        ledger.answered("b", ["b"], starts=False, ends=False)


def test_what_is_over_begins_anew(ledger: Ledger) -> None:
    ledger.answered("c", ["a", "b", "c"], starts=False, ends=True)
    assert ledger.status is Status.ENDED
    with pytest.raises(Contradiction):
        ledger.answered("d", ["a", "b", "c", "d"], starts=False, ends=False)
    ledger.answered("e", ["e"], starts=False, ends=False)
    ledger.gone()
    with pytest.raises(Contradiction):
        ledger.answered("f", ["e", "f"], starts=False, ends=False)
    ledger.answered("g", ["g"], starts=True, ends=False)
    assert ledger.state == ["g"]
