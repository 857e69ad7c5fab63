"""Finds what differs between two answers: JSON by its values, events one by one, everything else byte by byte."""

import json
import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

#: How many differences of one answer are told, and how many characters of a value.
_MOST_TOLD: Final = 5
_MOST_SHOWN: Final = 80
_DATA: Final = b"data: "
_PLAIN: Final = frozenset((int, float, str, bytes))
_STARTS_OF_EVENTS: Final = (_DATA, b"event: ")


class Comparison:
    """Compares answers.

    Args:
        tolerance: By how much numbers may differ, of 1 or of the larger one.
        ignored: The members of JSON objects that may differ, such as ``usage.seconds``; items of lists have no name.
    """

    def __init__(self, tolerance: float = 0.0, ignored: Sequence[str] = ()) -> None:
        self._tolerance = tolerance
        self._ignored = frozenset(ignored)

    def differences(self, recorded: bytes, replayed: bytes, ignored: Sequence[str] = ()) -> list[str]:
        """Return what differs, each with where it is; empty if nothing does. ``ignored`` comes on top."""
        if recorded == replayed:
            return []
        return self.of_documents(documents_in(recorded), documents_in(replayed), ignored)

    def of_documents(self, recorded: Sequence[Any], replayed: Sequence[Any], ignored: Sequence[str] = ()) -> list[str]:
        """Return the same of answers that were read: values as JSON has them, and ``bytes``."""
        skip = self._ignored | frozenset(ignored)
        if len(recorded) != len(replayed):
            return [f"{len(recorded)} events became {len(replayed)}"]
        found: list[str] = []
        for number, (before, after) in enumerate(zip(recorded, replayed, strict=True)):
            where = f"event {number + 1}" if len(recorded) > 1 else ""
            try:
                found += islice(self._of_values(before, after, where, "", skip), _MOST_TOLD - len(found))
            except RecursionError:
                found.append(f"{where + ': ' if where else ''}the values are nested too deeply to be compared")
            if len(found) >= _MOST_TOLD:
                break
        return found

    def _of_values(self, one: Any, other: Any, where: str, path: str, skip: frozenset[str]) -> Iterator[str]:
        if isinstance(one, dict) and isinstance(other, dict):
            for name in {**one, **other}:
                inner = f"{path}.{name}" if path else str(name)
                if inner in skip:
                    continue
                shown = f"{where}.{name}" if where else str(name)
                if name not in one or name not in other:
                    yield f"{shown} is {'new' if name in other else 'missing'}"
                else:
                    yield from self._of_values(one[name], other[name], shown, inner, skip)
        elif isinstance(one, list) and isinstance(other, list):
            if len(one) != len(other):
                yield f"{where or 'the list'} had {len(one)} items and has {len(other)}"
                return
            if _are_the_same(one, other):
                return
            for index, (before, after) in enumerate(zip(one, other, strict=True)):
                yield from self._of_values(before, after, f"{where}[{index}]", path, skip)
        elif not self._are_equal(one, other):
            yield f"{where + ': ' if where else ''}{_shown(one)} became {_shown(other)}"

    def _are_equal(self, one: Any, other: Any) -> bool:
        if isinstance(one, bool) or isinstance(other, bool) or not _are_numbers(one, other):
            return type(one) is type(other) and bool(one == other)
        if one == other or (one != one and other != other):  # noqa: PLR0124 - NaN
            return True
        try:
            return math.isclose(one, other, rel_tol=self._tolerance, abs_tol=self._tolerance)
        except OverflowError:  # an integer that no float can hold
            return False


def _are_the_same(one: list[Any], other: list[Any]) -> bool:
    """Return whether lists hold the same numbers or texts; large ones are compared far faster so than one by one."""
    kinds = list(map(type, one))
    return kinds == list(map(type, other)) and set(kinds) <= _PLAIN and one == other


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(each, int | float) for each in values)


def documents_in(answer: bytes) -> list[Any]:
    """Return the data of the events that an answer consists of, or all of it: values of JSON, or else ``bytes``."""
    if not answer.startswith(_STARTS_OF_EVENTS):
        return [json_or_bytes(answer)]
    return [json_or_bytes(line.removeprefix(_DATA)) for line in answer.splitlines() if line.startswith(_DATA)]


def json_or_bytes(text: bytes) -> Any:
    """Return the value that a text in JSON says, or the text if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _shown(value: Any) -> str:
    text = _text(value) if isinstance(value, bytes) else json.dumps(value, default=_text)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")
