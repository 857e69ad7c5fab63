"""The classes of a function's state with a store: kept as they are, or refused when the model is loaded."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pytest
from pydantic import BaseModel, PrivateAttr

from ts import serve
from ts.context import Context
from ts.contracts.served_functions.served_function import ServedFunction
from ts.contracts.served_functions.stored_classes import encoders_of
from ts.jobs.errors import LoadError
from ts.sequence import SequenceCache
from ts.sequence.encoding import StateEncoding
from ts.sequence.state_error import StateError
from ts.serve_decorator import MARK


class Mood(Enum):
    CALM = 1
    LOUD = "loud"


@dataclass(frozen=True, slots=True)
class Point:
    x: float = 0.0
    y: float = 0.0


@dataclass
class Track:
    points: list[Point] = field(default_factory=list)
    best: Point | None = None
    mood: Mood = Mood.CALM
    length: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self.made = True


class Chat(BaseModel):
    turns: list[str] = []
    places: dict[str, Track] = {}
    _seen: int = PrivateAttr(0)


class Plain:
    pass


def encoding_of(kind: type) -> StateEncoding:
    return StateEncoding(encoders_of(kind))


def test_a_dataclass_comes_back_with_all_its_attributes():
    track = Track([Point(1.0, 2.0)], Point(3.0), Mood.LOUD)
    track.length, track.made = 4.5, False
    encoding = encoding_of(Track)
    read = encoding.decode(encoding.encode(track))
    assert read == track
    assert (type(read), type(read.points[0]), read.mood, vars(read)) == (Track, Point, Mood.LOUD, vars(track))


def test_a_model_comes_back_with_its_private_attributes_and_what_was_set():
    chat = Chat(turns=["hello"], places={"here": Track([Point()])})
    chat._seen = 3
    encoding = encoding_of(Chat)
    read = encoding.decode(encoding.encode(chat))
    assert (read, read._seen, read.model_fields_set) == (chat, 3, {"turns", "places"})
    read.turns.append("again")
    assert chat.turns == ["hello"]


def test_a_field_that_the_class_has_got_since_has_its_default():
    old = StateEncoding({Track: (lambda track: {"points": track.points}, dict), Point: (dataclasses.asdict, dict)})
    stored = old.encode(Track([]))
    assert encoding_of(Track).decode(stored) == Track()

    @dataclass
    class Needs:
        made: Point
        more: int

    _, restore = encoders_of(Needs)[Needs]
    with pytest.raises(StateError, match=r"Needs has no field more, which has no default"):
        restore({"made": Point()})


def loaded(function: Callable[..., Any], store: str) -> Context:
    context = Context("model", "/model", None, 8, None, "1.0")
    context.cache_settings = {"capacity": 10, "store": store}
    ServedFunction(function, getattr(function, MARK)).initialize(context)
    return context


@pytest.mark.parametrize("kind", [dict, list, int, str, Track, Chat, Point, dict[str, Track]])
def test_what_a_store_keeps_is_loaded(kind: Any):
    @serve
    def follow(text: str, state: kind) -> str:
        return text

    cache = SequenceCache(loaded(follow, "file"))
    new = (getattr(kind, "__origin__", None) or kind)()
    assert cache.encoding.decode(cache.encoding.encode(new)) == new


def test_what_no_store_keeps_is_refused_when_it_is_loaded():
    @serve
    def follow(text: str, state: Plain) -> str:
        return text

    wanted = r"follow: state is a Plain, which a store cannot keep: .*\.Plain, which cannot be stored.*dataclass"
    with pytest.raises(LoadError, match=wanted):
        loaded(follow, "file")
    loaded(follow, "memory")


def test_the_state_of_a_class_with_a_log_may_be_anything():
    @serve
    class Notes:
        def predict(self, text: str, state: Plain, log: Any) -> str:
            return text

        def rebuild(self, states: list[Any], entries: list[Any]) -> list[Any]:
            return states

    loaded(Notes, "file")


@pytest.mark.parametrize("store", ["memory", "file"])
def test_a_state_that_no_sequence_can_begin_with_is_refused(store: str):
    @dataclass
    class Needs:
        size: int

    @serve
    def follow(text: str, state: Needs) -> str:
        return text

    with pytest.raises(LoadError, match=r"state is a Needs, .*missing a required argument: 'size'; give"):
        loaded(follow, store)
