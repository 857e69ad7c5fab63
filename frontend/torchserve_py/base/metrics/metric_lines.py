"""Lines of metrics in logs, as far as the server needs them: here there are none; `ops.metrics` writes them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, TypeAlias

from torchserve_py.base.metrics.families import Family
from torchserve_py.base.metrics.instruments import Instrument

#: Stand in a form for what a line begins with, and for its time in seconds since 1970.
START: Final = "\1"
SECOND: Final = "\2"


class LineForm:
    """The lines of an event, with places for what differs.

    Values are put in by their order: `%` would look each name up, which takes ten times as long.

    Args:
        lines: With `START`, `SECOND`, and places for the operator `%`.
        names: Those of the values for the places, in order.
    """

    __slots__ = ("_lines", "second", "start", "template", "values_of")

    def __init__(self, lines: str, names: Sequence[str]) -> None:
        self._lines = lines
        #: Returns the values for the places, in order, of those by their names.
        self.values_of: Callable[[Mapping[str, Any]], object] = itemgetter(*names) if names else lambda _: ()
        #: The lines with this start and second.
        self.template = self.start = ""
        self.second = -1

    def begin(self, start: str, second: int) -> None:
        """Make the template of another start, or second."""
        self.start, self.second = start, second
        self.template = self._lines.replace(START, start).replace(SECOND, str(second))


#: A form, and the values for its places by their names.
Filled: TypeAlias = tuple[LineForm, Mapping[str, object]]


def text_of(filled: Filled, start: str, second: int) -> str:
    """Return the lines of an event; a `logs.line_logs.TextOf`."""
    form, values = filled
    if start is not form.start or second != form.second:  # all events of a millisecond share a start
        form.begin(start, second)
    return form.template % form.values_of(values)


class MetricLines:
    """Makes the forms of lines, and takes what fills them, see `server_metrics.MakeLines`."""

    def __init__(self) -> None:
        #: Events that are not passed on yet: when (seconds since 1970), a form, and its values.
        self.events: list[tuple[float, Filled]] = []

    def form(self, *metrics: tuple[Iterable[str], Mapping[str, str]]) -> LineForm | None:
        """Return the form of the lines of an event that changes metrics, None if none of them gets lines.

        Each argument is the values of some metrics' dimensions, without the host's, and the places for their values by
        the metrics' names.
        """
        return None

    def handlers_form(self, name: str, unit: str, dimensions: Iterable[tuple[str, str]]) -> LineForm | None:
        """Return the form of the line of each value that a handler reports of a series, None if there are none.

        It has the places ``value`` and ``ids``, for the ids of the requests.
        """
        return None

    def note_of_handler(self, form: LineForm, values: dict[str, object], at: float | None = None) -> None:
        """Take a value that a handler has reported, at that moment (seconds since 1970), or now."""

    def pass_on(self) -> None:
        """Pass the events on in the order of their moments."""

    def note_changes(self, families: Iterable[Family[Instrument]]) -> None:
        """Take what has changed since the last call of what has no lines for single events."""

    def flush(self) -> None:
        """Write what was taken."""
