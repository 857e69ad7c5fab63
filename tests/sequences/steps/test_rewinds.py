"""Stored sequences that go back: what was undone does not count, and each step is applied once in what goes on."""

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from tests.sequences.steps.stepping import SUM, Make, answered, close, rewound, step

from ts.sequences.steps.record import unpack_head
from ts.sequences.steps.stores.earlier_step import NoStateThere
from ts.sequences.steps.stores.maintenance import Examined, Maintenance, StoredSequence
from ts.sequences.steps.stores.sequence_fork import fork
from ts.sequences.steps.stores.sequence_rewind import replacement

TOKEN: Final = "token of s"


def test_it_goes_on_after_the_step_and_no_step_with_the_earlier_token_enters(
    durable_worker: Make, maintenance: Maintenance, tmp_path: Path
) -> None:
    worker = durable_worker(SUM)
    for number, word in enumerate("5793", 1):
        answered(worker, step(word, "s", word, number=number, token=TOKEN))
    token = rewound(maintenance, tmp_path.name, "s", 2)
    assert answered(worker, step("a", "s", "1", number=5, token=TOKEN)) == [(409, "sequence_moved")]
    late = [step(f"l{number}", "s", word, number=number, token=TOKEN) for number, word in enumerate("57931", 1)]
    over = (410, "sequence_ended")
    assert [answered(worker, each) for each in late] == [[(409, "step_applied")], *[[over]] * 4]
    assert answered(worker, step("b", "s", "7", number=2, token=token)) == ["12"]
    assert answered(worker, step("c", "s", "100", number=3, token=token)) == ["112"]
    worker.runtime.close()
    assert answered(durable_worker(SUM), step("d", "s", "1", number=4, token=token)) == ["113"]


def test_undone_request_ids_can_be_sent_again(durable_worker: Make, maintenance: Maintenance, tmp_path: Path) -> None:
    worker = durable_worker(SUM)
    for word in "123":
        answered(worker, step(word, "s", word, request_id=f"id {word}"))
    close(worker, s="suspended")
    rewound(maintenance, tmp_path.name, "s", 1)
    assert answered(worker, step("a", "s", "1", request_id="id 1")) == ["1"]
    assert answered(worker, step("b", "s", "3", request_id="id 3")) == ["4"]
    assert answered(worker, step("c", "s", "3", request_id="id 3")) == ["4"]
    assert answered(worker, step("d", "s", "2", request_id="id 2")) == ["6"]


def test_it_may_go_back_twice_and_to_where_it_is(
    durable_worker: Make, maintenance: Maintenance, tmp_path: Path
) -> None:
    worker = durable_worker(SUM, checkpoint_steps=3)
    for number, word in enumerate("12345", 1):
        answered(worker, step(word, "s", word, number=number, token=TOKEN))
    close(worker, s="suspended")
    tokens = {rewound(maintenance, tmp_path.name, "s", after) for after in (5, 4, 4)}
    assert len(tokens) == 3
    for token in tokens:
        (said,) = answered(worker, step(token, "s", "100", number=5, token=token))
        assert said in {"110", (410, "sequence_ended")}
    assert answered(worker, step("e", "s", "look", number=6, token=token)) in (["110"], [(410, "sequence_ended")])
    with pytest.raises(NoStateThere, match="no state after step 2; the store has its state after steps 4 to"):
        rewound(maintenance, tmp_path.name, "s", 2)
    answered(worker, step("f", "s", "0", end=True))
    with pytest.raises(NoStateThere, match="is over"):
        rewound(maintenance, tmp_path.name, "s", 4)


def test_what_replaces_a_sequence_lets_no_step_of_either_enter(
    durable_worker: Make, maintenance: Maintenance, tmp_path: Path
) -> None:
    worker = durable_worker(SUM)
    answered(worker, step("1", "s", "1", number=1, token=TOKEN))
    kept = maintenance.examine_one(tmp_path.name, "s")
    assert kept is not None and kept.sequence is not None
    answered(worker, step("2", "s", "2", start=True, number=1, token="other"))
    close(worker, s="suspended")
    made: list[StoredSequence] = []

    def change(found: Examined | None) -> StoredSequence:
        assert found is not None and kept is not None and kept.sequence is not None
        made.append(replacement(kept.sequence, found.sequence))
        return made[-1]

    maintenance.change(tmp_path.name, "s", change)
    for token in (TOKEN, "other"):
        assert answered(worker, step(token, "s", "9", number=2, token=token)) == [(410, "sequence_ended")]
    new = unpack_head(made[-1].head).token
    assert answered(worker, step("3", "s", "9", number=2, token=new)) == ["10"]


@dataclass
class _Known:
    """What the clients know of a sequence: its token, and the numbers that were added, in order."""

    token: str
    added: list[int] = field(default_factory=list)
    earlier: list[str] = field(default_factory=list)


@pytest.mark.parametrize("seed", range(6))
def test_rewinds_at_random_never_contradict_what_clients_know(
    durable_worker: Make, maintenance: Maintenance, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    known = {"s": _Known(TOKEN)}
    worker, went_back = durable_worker(SUM, checkpoint_steps=4), 0
    for turn in range(80):
        name = chance.choice(sorted(known))
        one = known[name]
        act = chance.choice(["step", "step", "step", "late", "fork", "rewind", "worker"])
        if act == "step" or not one.added:
            number = chance.randrange(1, 100)
            sent = step(f"{turn}", name, str(number), number=len(one.added) + 1, token=one.token)
            said = answered(worker, sent)
            if said == [(409, "sequence_moved")]:  # the worker has heard only now that it went back
                said = answered(worker, sent)
            one.added.append(number)
            assert said == [str(sum(one.added))]
        elif act == "late":
            number = chance.randint(1, len(one.added))
            token = chance.choice([one.token, *one.earlier])
            said = answered(worker, step(f"{turn}", name, str(one.added[number - 1]), number=number, token=token))[0]
            if token == one.token:
                assert said in {str(sum(one.added[:number])), (409, "step_applied"), (409, "sequence_moved")}
            else:
                assert said in {(409, "step_applied"), (410, "sequence_ended"), (409, "sequence_moved")}
        elif act in {"fork", "rewind"}:
            after = chance.randint(max(1, len(one.added) - 3), len(one.added))
            try:
                if act == "rewind":
                    token = rewound(maintenance, tmp_path.name, name, after)
                    one.earlier.append(one.token)
                    one.token, one.added, went_back = token, one.added[:after], went_back + 1
                else:
                    found = maintenance.examine_one(tmp_path.name, name)
                    assert found is not None and found.sequence is not None
                    made = fork(found.sequence, f"f{turn}", after)
                    assert maintenance.write(made, replace=False)
                    known[f"f{turn}"] = _Known(unpack_head(made.head).token, one.added[:after])
            except NoStateThere:
                assert after < len(one.added)
        else:
            worker.runtime.close()
            worker = durable_worker(SUM, checkpoint_steps=4)
    assert went_back > 1
