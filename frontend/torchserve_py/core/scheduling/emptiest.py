"""Which worker has the fewest sequences, found without a look at all workers."""

import heapq

from torchserve_py.core.scheduling.sequence import SequenceLane

_SMALLEST_CLEANING = 64


class EmptiestLane:
    """The lanes of workers, by how many sequences are bound to each; of those with equally many, the oldest lane first.

    A heap with an entry for each number that a lane has had. An entry with a former number, or of the time before a
    lane was removed and added again, is dropped when it comes to the top, or together with all others like it whenever
    the heap has doubled.
    """

    __slots__ = ("_ages", "_cleaning_size", "_heap", "_latest")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, SequenceLane]] = []
        self._ages: dict[SequenceLane, int] = {}
        self._latest = 0
        self._cleaning_size = _SMALLEST_CLEANING

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, lane: SequenceLane) -> None:
        """Add the lane of a new worker."""
        self._latest += 1
        self._ages[lane] = self._latest
        self.changed(lane)

    def remove(self, lane: SequenceLane) -> None:
        """Forget the lane of a worker that takes no more sequences."""
        self._ages.pop(lane, None)

    def changed(self, lane: SequenceLane) -> None:
        """Note that more or fewer sequences are bound to the lane; lanes that were not added do not count."""
        if (age := self._ages.get(lane)) is not None:
            heapq.heappush(self._heap, (len(lane.bound), age, lane))
            if len(self._heap) > self._cleaning_size:
                self._heap = [(len(each.bound), age, each) for each, age in self._ages.items()]
                heapq.heapify(self._heap)
                self._cleaning_size = max(_SMALLEST_CLEANING, 2 * len(self._heap))

    def get(self) -> SequenceLane | None:
        """Return the lane with the fewest sequences, None if there is no lane."""
        heap = self._heap
        while heap:
            size, age, lane = heap[0]
            if size == len(lane.bound) and self._ages.get(lane) == age:
                return lane
            heapq.heappop(heap)
        return None
