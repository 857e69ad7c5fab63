"""Forks of stored sequences: the original and the copy go on by themselves, and each step is applied once in each."""

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from tests.sequences.steps.stepping import SUM, Make, answered, step

from ts.sequences.steps.record import unpack_head
from ts.sequences.steps.stores.earlier_step import NoStateThere
from ts.sequences.steps.stores.maintenance import Maintenance
from ts.sequences.steps.stores.sequence_fork import fork

TOKEN: Final = "token of s"
WHOLE: Final = SUM.replace("context.state.append(index, number)", "pass").replace("def rebuild", "def other")


def forked(store: Maintenance, model: str, sequence_id: str, new_id: str, after: int | None = None) -> str:
    """Fork a sequence in a store; return the token of the fork."""
    examined = store.examine_one(model, sequence_id)
    assert examined is not None and examined.sequence is not None and not examined.problems
    made = fork(examined.sequence, new_id, after)
    assert store.write(made, replace=False)
    there = store.examine_one(model, new_id)
    assert there is not None and not there.problems
    return unpack_head(made.head).token


@pytest.mark.parametrize("source", [SUM, WHOLE])
def test_both_go_on_by_themselves_while_a_worker_has_the_original(
    durable_worker: Make, maintenance: Maintenance, tmp_path: Path, source: str
) -> None:
    worker = durable_worker(source)
    for number, word in enumerate("579", 1):
        answered(worker, step(word, "s", word, number=number, token=TOKEN))
    token = forked(maintenance, tmp_path.name, "s", "f")
    again = step("a", "f", "9", number=3, token=token)
    assert answered(worker, again, step("b", "s", "9", number=3, token=TOKEN)) == ["21", "21"]
    both = step("c", "f", "1", number=4, token=token), step("d", "s", "2", number=4, token=TOKEN)
    assert answered(worker, *both) == ["22", "23"]
    assert answered(worker, step("e", "f", "2", number=5, token=TOKEN)) == [(410, "sequence_unknown")]


def test_a_log_can_be_forked_after_an_earlier_step(
    durable_worker: Make, maintenance: Maintenance, tmp_path: Path
) -> None:
    worker = durable_worker(SUM, checkpoint_steps=3)
    for number, word in enumerate("12345", 1):
        answered(worker, step(word, "s", word, number=number, token=TOKEN))
    for after, total in ((4, 10), (5, 15)):
        token = forked(maintenance, tmp_path.name, "s", f"f{after}", after)
        (said,) = answered(worker, step("a", f"f{after}", "100", number=after + 1, token=token))
        assert said == str(total + 100)
    with pytest.raises(NoStateThere, match="after step 1; the store has its state after steps 4 to 5"):
        forked(maintenance, tmp_path.name, "s", "f1", 1)
    assert maintenance.examine_one(tmp_path.name, "f1") is None


def test_request_ids_of_later_steps_are_new_to_the_fork(
    durable_worker: Make, maintenance: Maintenance, tmp_path: Path
) -> None:
    worker = durable_worker(SUM)
    for word in "123":
        answered(worker, step(word, "s", word, request_id=f"id {word}"))
    forked(maintenance, tmp_path.name, "s", "f", 2)
    assert answered(worker, step("a", "f", "2", request_id="id 2")) == ["3"]
    assert answered(worker, step("b", "f", "3", request_id="id 3")) == ["6"]
    assert answered(worker, step("c", "f", "3", request_id="id 3")) == ["6"]


def test_a_sequence_that_is_over_or_an_id_in_use_is_refused(
    durable_worker: Make, maintenance: Maintenance, tmp_path: Path
) -> None:
    worker = durable_worker(SUM)
    answered(worker, step("1", "s", "1"), step("2", "t", "2"))
    examined = maintenance.examine_one(tmp_path.name, "s")
    assert examined is not None and examined.sequence is not None
    assert not maintenance.write(fork(examined.sequence, "t"), replace=False)
    answered(worker, step("3", "s", "1", end=True))
    with pytest.raises(NoStateThere, match="is over"):
        forked(maintenance, tmp_path.name, "s", "f")


@dataclass
class _Known:
    """What the clients know of a sequence: its token, and the numbers that were added, in order."""

    token: str
    added: list[int] = field(default_factory=list)


@pytest.mark.parametrize("seed", range(5))
def test_forks_at_random_never_contradict_what_clients_know(
    durable_worker: Make, maintenance: Maintenance, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    known = {"s": _Known(TOKEN)}
    worker = durable_worker(SUM, checkpoint_steps=4)
    for turn in range(60):
        name = chance.choice(sorted(known))
        one = known[name]
        act = chance.choice(["step", "step", "late", "fork", "worker"])
        if act == "step" or not one.added:
            one.added.append(chance.randrange(1, 100))
            sent = step(f"{turn}", name, str(one.added[-1]), number=len(one.added), token=one.token)
            assert answered(worker, sent) == [str(sum(one.added))]
        elif act == "late":
            number = chance.randint(1, len(one.added))
            sent = step(f"{turn}", name, str(one.added[number - 1]), number=number, token=one.token)
            assert answered(worker, sent)[0] in {str(sum(one.added[:number])), (409, "step_applied")}
        elif act == "fork":
            after = chance.randint(max(1, len(one.added) - 3), len(one.added))
            try:
                token = forked(maintenance, tmp_path.name, name, f"f{turn}", after)
            except NoStateThere:
                assert after < len(one.added)
            else:
                known[f"f{turn}"] = _Known(token, one.added[:after])
        else:
            worker.runtime.close()
            worker = durable_worker(SUM, checkpoint_steps=4)
    assert len(known) > 1
