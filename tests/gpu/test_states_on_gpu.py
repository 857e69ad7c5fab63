"""States and copies: what is on a GPU is stored, moved and restored as on the CPU."""

import math
import random
from typing import Any

import pytest
from tests.gpu.machine import GPU_ID
from tests.unit.handlers.conftest import FakeContext

from ts.sequence import SequenceCache
from ts.sequence.encoding import StateEncoding

pytestmark = [pytest.mark.gpu, pytest.mark.torch]


def test_a_state_of_tensors_is_restored_on_the_gpu(device: str) -> None:
    import torch

    types = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool)
    state = {
        "layers": [(torch.randn(3, 5, device=device) * 9).to(dtype) for dtype in types],
        "view": torch.randn(4, 6, device=device).t()[1:, ::2],
        "empty": torch.zeros(0, 3, device=device),
        "number": torch.tensor(2.5, device=device),
        "host": torch.arange(3),
        "steps": 7,
    }
    encoding = StateEncoding(gpu_id=GPU_ID)
    restored = encoding.decode(encoding.encode(state))
    assert restored.keys() == state.keys()
    assert restored["steps"] == 7
    before = [*state["layers"], *(state[name] for name in ("view", "empty", "number", "host"))]
    after = [*restored["layers"], *(restored[name] for name in ("view", "empty", "number", "host"))]
    for was, now in zip(before, after, strict=True):
        assert (now.device, now.dtype) == (was.device, was.dtype)
        assert torch.equal(was, now)


def test_a_state_from_the_gpu_can_be_read_where_there_is_none(device: str) -> None:
    import torch

    data = StateEncoding(gpu_id=GPU_ID).encode({"hidden": torch.arange(4.0, device=device)})
    restored = StateEncoding(gpu_id=None).decode(data)
    assert (restored["hidden"].device.type, restored["hidden"].tolist()) == ("cpu", [0.0, 1.0, 2.0, 3.0])


def test_copies_go_through_pinned_memory(device: str, only_cuda: None) -> None:
    import torch

    from ts.jobs.device_copies import rows_on, to_host

    rows = [torch.randn(3, 64) for _ in range(8)]
    batch = rows_on(rows, device)
    assert torch.equal(batch.cpu(), torch.stack(rows))
    on_host = to_host(batch)
    assert on_host.is_pinned()
    assert torch.equal(on_host, torch.stack(rows))


def test_a_restored_state_is_not_overwritten_while_kernels_read_it(device: str, only_cuda: None) -> None:
    import torch

    from ts.jobs.device_copies import computing_on, own_stream

    stream, size = own_stream(torch.device(device)), 1 << 20
    encoding = StateEncoding(gpu_id=GPU_ID)
    data = encoding.encode({"hidden": torch.ones(size, device=device)})
    sums, others = [], []
    for _ in range(20):
        state = encoding.decode(data)
        with computing_on(stream):
            torch.cuda._sleep(2_000_000)
            sums.append(state["hidden"].sum())
            del state  # the kernel that adds has not begun
            with torch.cuda.stream(torch.cuda.default_stream()):
                others.append(torch.full((size,), 7.0, device=device))
    assert [each.item() for each in sums] == [size] * 20


class Both:
    """The same arena on the CPU and on the GPU, each with the states of the same sequences."""

    def __init__(self, spec: Any, device: str, units: int) -> None:
        from ts.sequence.arena import UNIT, Arena

        grows = next(iter(spec.values())).grows is not None
        self.spec, self.places = spec, ("cpu", device)
        self.arenas, self.caches = [], []
        for place in self.places:
            context = FakeContext({"batchSize": 4, "maxNumSequence": 100})
            context.system_properties["gpu_id"] = None if place == "cpu" else GPU_ID
            size = sum(field.dtype.itemsize * math.prod(field.shape) for field in spec.values())
            arena = Arena(context, spec, most_bytes=size * (UNIT if grows else 1) * units, device=place)
            self.arenas.append(arena)
            self.caches.append(SequenceCache(context))

    def states(self, names: list[str]) -> list[list[Any]]:
        return [[cache.get(name) for name in names] for cache in self.caches]

    def keep(self, names: list[str], states: list[list[Any]]) -> None:
        for cache, row in zip(self.caches, states, strict=True):
            for name, state in zip(names, row, strict=True):
                cache[name] = state

    def compare(self, names: list[str]) -> None:
        import torch

        there, here = (arena.gather(row) for arena, row in zip(self.arenas, self.states(names), strict=True))
        for row, state in enumerate(self.states(names)[0]):
            for name in there:
                length = (slice(None),) * (self.spec[name].grows or 0) + (slice(0, state.length),)
                cut = length if self.arenas[0].grows and self.spec[name].window is None else ()
                assert torch.equal(there[name][row][cut], here[name][row][cut].cpu())

    def restart(self, name: str) -> None:
        """Write a state as bytes, and read it again."""
        for cache in self.caches:
            cache.before_commit([name])
            cache[name] = cache.encoding.decode(cache.encoding.encode(cache[name]))


@pytest.mark.parametrize(("window", "pinned"), [(None, 0), (21, 3)])
def test_an_arena_of_growing_fields_is_that_of_the_cpu(device: str, window: int | None, pinned: int) -> None:
    import torch

    from ts.sequence.arena import Field

    spec = {
        "keys": Field((2, 3), torch.float16, 1, window, pinned),
        "ids": Field((), torch.int64, 0, window, pinned),
    }
    both, order = Both(spec, device, units=12), random.Random(3)
    names = [f"s{number}" for number in range(10)]  # more than fit
    known: set[str] = set()
    longest = 40 if window is None else 1_000  # what keeps all entries begins anew now and then
    for _ in range(150):
        batch = order.sample(names, order.randint(1, 3))
        width = order.randint(1, 20)
        counts = [order.randint(1, width) for _ in batch]
        keys = torch.randn(len(batch), 2, width, 3).half()
        ids = torch.randint(0, 1000, (len(batch), width))
        appended = []
        for arena, place, states in zip(both.arenas, both.places, both.states(batch), strict=True):
            short = [None if state is None or state.length > longest else state for state in states]
            appended.append(arena.append(short, {"keys": keys.to(place), "ids": ids.to(place)}, counts))
        both.keep(batch, appended)
        known.update(batch)
        if order.random() < 0.2:
            both.restart(order.choice(batch))
        both.compare(batch)
    for name in sorted(known):
        both.compare([name])
    assert both.arenas[1].host_bytes > 0, "some have made room for others"


def test_an_arena_of_fixed_fields_is_that_of_the_cpu(device: str) -> None:
    import torch

    from ts.sequence.arena import Field

    both, order = Both({"hidden": Field((32,)), "count": Field((), torch.int32)}, device, units=9), random.Random(4)
    names = [f"s{number}" for number in range(20)]
    for _ in range(100):
        batch = order.sample(names, 3)
        given = {"hidden": torch.randn(3, 32), "count": torch.randint(0, 99, (3,)).int()}
        there = [{name: each.to(place) for name, each in given.items()} for place in both.places]
        both.keep(batch, [arena.scatter(each) for arena, each in zip(both.arenas, there, strict=True)])
        if order.random() < 0.2:
            both.restart(order.choice(batch))
        both.compare(batch)
    assert both.arenas[1].host_bytes > 0


def test_states_that_do_not_fit_at_once_are_refused_with_their_size(device: str) -> None:
    import torch

    from ts.jobs.device_loss import memory_ran_out
    from ts.sequence.arena import ArenaFull, Field

    both = Both({"hidden": Field((1000,))}, device, units=3)
    with pytest.raises(ArenaFull, match="12000 more bytes") as refused:
        both.arenas[1].scatter({"hidden": torch.ones(3, 1000, device=device)})
    assert memory_ran_out(refused.value)
