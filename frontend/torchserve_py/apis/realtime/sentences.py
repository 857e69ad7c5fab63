"""Cuts a text that comes piece by piece into sentences, so that the first one is spoken while the next is written."""

import re
from typing import Final

#: Where a sentence ends: after its mark and what closes it, before a space; or at the end of a line.
_END: Final = re.compile(r"""[.!?…]+["'”’)\]]*(?=\s)|[。！？]+|\n""")
#: A text of so many characters without an end is cut behind its last space: a synthesizer's requests stay short.
_MOST: Final = 300


class Sentences:
    """The sentences of a text that is written piece by piece; joined they are the text, without a change."""

    def __init__(self) -> None:
        self._rest = ""

    def write(self, text: str) -> list[str]:
        """Add a piece; return the sentences that have ended with it."""
        self._rest += text
        ended: list[str] = []
        while (end := self._end()) is not None:
            ended.append(self._rest[:end])
            self._rest = self._rest[end:]
        return ended

    def finish(self) -> list[str]:
        """Return what no mark has ended, as the text is complete."""
        rest, self._rest = self._rest, ""
        return [rest] if rest else []

    def _end(self) -> int | None:
        start = len(self._rest) - len(self._rest.lstrip())
        if (found := _END.search(self._rest, start)) is not None:
            return found.end()
        if len(self._rest) <= _MOST:
            return None
        return self._rest.rfind(" ", start, _MOST) + 1 or _MOST
