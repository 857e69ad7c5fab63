"""handlers/chat: a step of the model gets one thread or all of them, whichever was faster lately."""

from collections import Counter
from collections.abc import Iterator
from types import ModuleType

import pytest
from tests.unit.handlers.conftest import HANDLERS, load_module

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.fixture
def chat_threads() -> Iterator[ModuleType]:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield load_module(HANDLERS / "chat" / "chat_threads.py")
    torch.set_num_threads(threads)


class Machine:
    """Steps take so many seconds with so many threads."""

    def __init__(self, patch: pytest.MonkeyPatch, chat_threads: ModuleType, *, is_on_cpu: bool = True) -> None:
        self.now = 0.0
        patch.setattr(chat_threads.time, "perf_counter", lambda: self.now)
        self.threads = chat_threads.StepThreads(is_on_cpu=is_on_cpu)

    def steps(self, count: int, seconds: dict[int, float], *, tokens: int = 8, context: int = 800) -> Counter[int]:
        """Run steps; return how many had so many threads."""
        used = Counter[int]()
        for _ in range(count):
            with self.threads.of_step(tokens, context):
                used[torch.get_num_threads()] += 1
                self.now += seconds[torch.get_num_threads()]
            assert torch.get_num_threads() == 2
        return used


@pytest.mark.parametrize(("seconds", "faster"), [({1: 1.0, 2: 1.5}, 1), ({1: 1.5, 2: 1.0}, 2)])
def test_nearly_all_steps_go_the_faster_way(monkeypatch, chat_threads, seconds, faster):
    used = Machine(monkeypatch, chat_threads).steps(1000, seconds)
    assert used[faster] > 980
    assert used[3 - faster] > 3


def test_the_slower_way_is_tried_seldom_where_it_is_much_slower(monkeypatch, chat_threads):
    seconds = {1: 16.0, 2: 1.0}
    machine = Machine(monkeypatch, chat_threads)
    machine.steps(10, seconds)
    assert machine.steps(10_000, seconds)[1] <= 1


def test_the_way_changes_when_the_machine_does(monkeypatch, chat_threads):
    machine = Machine(monkeypatch, chat_threads)
    assert machine.steps(200, {1: 1.2, 2: 1.0})[2] > 190
    machine.steps(200, {1: 1.2, 2: 3.0})  # another program uses the processors
    assert machine.steps(200, {1: 1.2, 2: 3.0})[1] > 195


def test_steps_of_other_sizes_go_their_own_way(monkeypatch, chat_threads):
    machine = Machine(monkeypatch, chat_threads)
    assert machine.steps(50, {1: 1.0, 2: 2.0}, tokens=1)[1] > 40
    assert machine.steps(50, {1: 2.0, 2: 1.0}, tokens=64)[2] > 40
    assert machine.steps(50, {1: 2.0, 2: 1.0}, tokens=1, context=100_000)[2] > 40


def test_a_step_that_fails_gives_the_threads_back(chat_threads):
    threads = chat_threads.StepThreads(is_on_cpu=True)
    for _ in range(10):
        with pytest.raises(RuntimeError), threads.of_step(1, 1):
            raise RuntimeError
        assert torch.get_num_threads() == 2


@pytest.mark.parametrize(("is_on_cpu", "threads"), [(False, 2), (True, 1)])
def test_nothing_is_chosen_where_there_is_no_choice(monkeypatch, chat_threads, is_on_cpu, threads):
    torch.set_num_threads(threads)
    machine = Machine(monkeypatch, chat_threads, is_on_cpu=is_on_cpu)
    for _ in range(20):
        with machine.threads.of_step(1, 1):
            assert torch.get_num_threads() == threads
