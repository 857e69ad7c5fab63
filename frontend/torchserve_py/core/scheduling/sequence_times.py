"""How long a step of each sequence takes: learnt from batches, of which only the time as a whole is known."""

from collections.abc import Sequence as Items

from torchserve_py.core.scheduling.sequence import Sequence

#: Which part of an error the next estimates correct.
_RATE = 0.5
#: Over how many batches means are taken.
_REMEMBERED = 16
#: By how many mean errors a batch may take longer than expected.
_ERRORS = 4
#: What is left of the longest step, by which new sequences are judged, after each batch that has none as long.
_FADING = 0.99


class SequenceTimes:
    """A batch is expected to take a time that is the same for each, and that of each step.

    The error of a batch corrects all of these alike (normalized least mean squares): as sequences share batches with
    different others, each estimate finds its value. In its first batch a sequence gets the whole error, as what it
    takes; before that it counts as the longest. All this is of use only if it tells more than the size of a batch does:
    on some devices a batch takes as long whatever is in it.
    """

    __slots__ = ("_by_size", "_error", "_error_by_size", "_longest", "_per_batch")

    def __init__(self) -> None:
        self._per_batch = 0.0
        self._longest = 0.0
        #: The mean time of batches of each size.
        self._by_size: dict[int, float] = {}
        #: The mean errors of both, as shares of the time that a batch took.
        self._error = self._error_by_size = 1.0

    def learn(self, sequences: Items[Sequence], seconds: float) -> None:
        """Note that a batch with a step of each of these sequences has taken so long."""
        if seconds <= 0:
            return
        times = [each.step_seconds or 0.0 for each in sequences]
        error = seconds - self._per_batch - sum(times)
        new = [each for each in sequences if each.step_seconds is None]
        if new:
            for each in new:
                each.step_seconds = max(0.0, error / len(new))
        else:
            self._compare(len(sequences), seconds, error)
            correction = _RATE * error / (len(sequences) + 1)
            self._per_batch = max(0.0, self._per_batch + correction)
            for each, time in zip(sequences, times, strict=True):
                each.step_seconds = max(0.0, time + correction)
        self._longest = max(_FADING * self._longest, *(each.step_seconds or 0.0 for each in sequences))

    def _compare(self, size: int, seconds: float, error: float) -> None:
        """Note by how much a batch took another time than was expected, and than is usual for its size."""
        usual = self._by_size.setdefault(size, seconds)
        self._by_size[size] += (seconds - usual) / _REMEMBERED
        self._error += (min(1.0, abs(error) / seconds) - self._error) / _REMEMBERED
        self._error_by_size += (min(1.0, abs(seconds - usual) / seconds) - self._error_by_size) / _REMEMBERED

    def at_most(self, sequences: Items[Sequence | None]) -> list[float] | None:
        """Return how many seconds a batch takes at the most, with the first of these, the first two, and so on.

        None is a sequence of which nothing is known. Return None while the sizes of batches tell more.
        """
        if 2 * self._error > self._error_by_size:
            return None
        total, most, factor = self._per_batch, [], 1 + _ERRORS * self._error
        for each in sequences:
            known = None if each is None else each.step_seconds
            total += self._longest if known is None else known
            most.append(factor * total)
        return most
