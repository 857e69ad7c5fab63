"""Lines of metrics in logs, as far as the server needs them: here there are none; a feature writes them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from torchserve_py.metrics.families import Family
from torchserve_py.metrics.instruments import Instrument


class LineForm(NamedTuple):
    """The lines of an event, with places for what differs.

    Values are put in by their order: `%` would look each name up, which takes ten times as long.

    Attributes:
        template: For the operator `%`, with a place for each of the values that ``values_of`` returns.
        values_of: Takes them from the values by their names.
    """

    template: str
    values_of: Callable[[Mapping[str, Any]], tuple[Any, ...]]


class MetricLines:
    """Makes the forms of lines, and takes what fills them; see `plugin_api.Plugin.metric_lines`."""

    def __init__(self) -> None:
        #: Events that are not passed on yet: when (seconds since 1970), a form, and its values.
        self.events: list[tuple[float, tuple[LineForm, dict[str, object]]]] = []

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
