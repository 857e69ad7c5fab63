"""Lines of metrics in logs, as far as the server needs them: here there are none; `ops.metrics` writes them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final, TypeAlias

from torchserve_py.base.metrics.families import Family
from torchserve_py.base.metrics.instruments import Instrument

#: Stand in a form for what a line begins with, and for its time in seconds since 1970.
START: Final = "\1"
SECOND: Final = "\2"

#: The values of an event, in the order that its form knows.
Values: TypeAlias = tuple[object, ...]


class LineForm:
    """The lines of an event, with places for what differs.

    Values are put in by their order: `%` would look each name up, which takes ten times as long.

    Args:
        lines: With `START`, `SECOND`, and places for the operator `%`.
        places: Which of an event's values each place has, in order.
        count: How many values an event has.
    """

    __slots__ = ("_lines", "_of_second", "_second", "_start", "_template", "_values_of")

    def __init__(self, lines: str, places: Sequence[int], count: int) -> None:
        self._lines = lines
        #: Returns the values for the places, in order; None if they are an event's values as they stand.
        self._values_of: Callable[[Values], object] | None = None
        if [*places] != [*range(count)]:
            self._values_of = itemgetter(*places) if places else lambda _: ()
        #: The lines with this second, and then with this start.
        self._second, self._of_second = -1, ""
        self._start: str | None = None
        self._template = ""

    def texts(self, values: Iterable[Values], start: str, second: int) -> list[str]:
        """Return the lines of events with these values; each line begins with ``start``."""
        if second != self._second:
            self._second, self._of_second, self._start = second, self._lines.replace(SECOND, str(second)), None
        if start is not self._start:  # all events of a millisecond share a start
            self._start, self._template = start, self._of_second.replace(START, start)
        template, values_of = self._template, self._values_of
        if values_of is not None:
            values = map(values_of, values)  # type: ignore[arg-type]
        return [template % each for each in values]


#: A form, and values for its places.
Filled: TypeAlias = tuple[LineForm, Values]
_form_of: Final = itemgetter(0)


def texts_of(filled: Sequence[Filled], start: str, second: int) -> list[str]:
    """Return the lines of events; a `logs.line_logs.TextsOf`."""
    texts: list[str] = []
    for form, alike in groupby(filled, _form_of):
        texts += form.texts([values for _, values in alike], start, second)
    return texts


class MetricLines:
    """Makes the forms of lines, and takes what fills them, see `server_metrics.MakeLines`."""

    def __init__(self) -> None:
        #: Events that `flush` writes: when (seconds since 1970), a form, and its values.
        self.events: list[tuple[float, Filled]] = []

    def form(self, *metrics: tuple[Iterable[str], Mapping[str, str]], values: Sequence[str] = ()) -> LineForm | None:
        """Return the form of the lines of an event that changes metrics, None if none of them gets lines.

        Each argument is the values of some metrics' dimensions, without the host's, and the places for their values by
        the metrics' names. ``values`` are the names of an event's values, in order, by which places ask for them.
        """
        return None

    def handlers_form(self, name: str, unit: str, dimensions: Iterable[tuple[str, str]]) -> LineForm | None:
        """Return the form of the line of each value that a handler reports of a series, None if there are none.

        The values of an event are that, and the ids of its requests.
        """
        return None

    def note_of_handler(self, form: LineForm, values: Values, at: float | None = None) -> None:
        """Take a value that a handler has reported, at that moment (seconds since 1970), or now."""

    def note_changes(self, families: Iterable[Family[Instrument]]) -> None:
        """Take what has changed since the last call of what has no lines for single events."""

    def flush(self) -> None:
        """Write what was taken, events in the order of their moments."""
