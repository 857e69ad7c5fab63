"""Whose turn it is in a spoken conversation: one state machine, with all of its transitions in one table.

The session reports what happens, and does what the table returns. What has no transition leaves the state as it is.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final


class State(Enum):
    """Whose turn it is."""

    idle = auto()
    #: The user speaks.
    listening = auto()
    #: The user has spoken; a response begins once the words are known.
    waiting = auto()
    #: A response is made.
    responding = auto()
    #: A response is made while the user speaks, who does not interrupt it.
    overlapping = auto()


class Happening(Enum):
    """What changes whose turn it is."""

    #: The user starts to speak; ``interrupts``: that ends a response.
    speech = auto()
    speech_interrupts = auto()
    #: The user has stopped; ``asks``: and a response is to follow.
    silence = auto()
    silence_asks = auto()
    #: The words of the utterance are known; or there are none.
    words = auto()
    no_words = auto()
    #: The client asks for a response.
    request = auto()
    #: The response has ended.
    over = auto()


class Deed(Enum):
    """What the session does then."""

    nothing = auto()
    begin = auto()
    interrupt = auto()
    refuse = auto()


_S, _H, _D = State, Happening, Deed

#: What follows, and what is done, by the state and by what happens in it.
TRANSITIONS: Final[Mapping[tuple[State, Happening], tuple[State, Deed]]] = {
    (_S.idle, _H.speech): (_S.listening, _D.nothing),
    (_S.idle, _H.speech_interrupts): (_S.listening, _D.interrupt),  # of a response that is made, and still played
    (_S.idle, _H.request): (_S.responding, _D.begin),
    (_S.listening, _H.silence): (_S.idle, _D.nothing),
    (_S.listening, _H.silence_asks): (_S.waiting, _D.nothing),
    (_S.listening, _H.request): (_S.overlapping, _D.begin),
    (_S.waiting, _H.words): (_S.responding, _D.begin),
    (_S.waiting, _H.no_words): (_S.idle, _D.nothing),
    (_S.waiting, _H.request): (_S.responding, _D.begin),
    (_S.waiting, _H.speech): (_S.listening, _D.nothing),
    (_S.waiting, _H.speech_interrupts): (_S.listening, _D.nothing),
    (_S.responding, _H.speech): (_S.overlapping, _D.nothing),
    (_S.responding, _H.speech_interrupts): (_S.listening, _D.interrupt),
    (_S.responding, _H.request): (_S.responding, _D.refuse),
    (_S.responding, _H.over): (_S.idle, _D.nothing),
    (_S.overlapping, _H.silence): (_S.responding, _D.nothing),
    (_S.overlapping, _H.silence_asks): (_S.responding, _D.nothing),
    (_S.overlapping, _H.request): (_S.overlapping, _D.refuse),
    (_S.overlapping, _H.over): (_S.listening, _D.nothing),
}


class TurnTaking:
    """The state of one session."""

    def __init__(self) -> None:
        self.state = State.idle

    def after(self, happening: Happening) -> Deed:
        """Go to the state that follows; return what is to be done."""
        self.state, deed = TRANSITIONS.get((self.state, happening), (self.state, Deed.nothing))
        return deed
