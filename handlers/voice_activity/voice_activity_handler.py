"""Where somebody speaks in a sound that arrives piece by piece: silero-vad's LSTM, its state kept per sequence.

A request is the next piece of a sequence's sound, of any length: 16-bit samples, little-endian, one channel, 16,000 per
second. The response has one probability of speech for each window of 512 samples (32 ms) that the piece completes, and
the moments (seconds since the sequence began) at which speech starts or ends::

    {"probabilities": [0.03, 0.91, 0.98], "events": [{"start": 1.28}]}

In conversations of OpenAI's realtime API sound comes in other encodings and at other rates, and a response has the
probabilities and the seconds of a window.

The rows of a batch belong to different sequences: their windows and their states are stacked, and the network runs once
for all of them. A row that cannot be read gets status 400; the others are unaffected.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime

from ts.handler_utils.audio import Resampler, audio_of, encode_audio

if TYPE_CHECKING:
    from ts.context import Context

Array = np.ndarray[Any, np.dtype[np.float32]]

RATE = 16_000
#: Samples that the network takes at a time, and how many of the samples before them it sees again.
WINDOW, OVERLAP = 512, 64
HIDDEN = (2, 128)
BYTES = 2 * WINDOW
#: Speech starts at this probability, and ends after so many windows (about 100 ms) below the other one.
SPEECH, SILENCE, SILENT_WINDOWS = 0.5, 0.35, 4


class VoiceActivityHandler:
    """Runs the network on the next windows of every sequence in a batch."""

    def initialize(self, context: Context) -> None:
        """Load the network from the package."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1  # it is too small for more
        options.log_severity_level = 3  # without warnings about the file itself
        self.network = onnxruntime.InferenceSession(network_file(), options, providers=["CPUExecutionProvider"])

    def handle(self, data: list[dict[str, Any]], context: Context) -> list[Any]:
        """Answer one batch, which has at most one request of each sequence."""
        answers: list[Any] = [None] * len(data)
        states = {idx: context.state.get(idx) or new_state() for idx in range(len(data))}
        heard: dict[int, bytes] = {}
        for idx, state in states.items():
            try:
                heard[idx] = _sound(context, idx, state)
            except ValueError as error:
                context.fail(idx, str(error))
        found = self._listen([states[idx] for idx in heard], list(heard.values()))
        for idx, probabilities in zip(heard, found, strict=True):
            context.state[idx] = states[idx]
            if context.get_request_header(idx, "realtime_event"):
                answers[idx] = {"probabilities": probabilities, "window": WINDOW / RATE}
            else:
                answers[idx] = {"probabilities": probabilities, "events": _events(states[idx], probabilities)}
        return answers

    def _listen(self, states: Sequence[dict[str, Any]], pieces: Sequence[bytes]) -> list[list[float]]:
        """Run the network on all windows that the pieces complete; return the probabilities of each piece."""
        windows = [_windows(state, piece) for state, piece in zip(states, pieces, strict=True)]
        found: list[list[float]] = [[] for _ in states]
        for turn in range(max(map(len, windows), default=0)):
            rows = [row for row, each in enumerate(windows) if turn < len(each)]
            probabilities = self._step([states[row] for row in rows], [windows[row][turn] for row in rows])
            for row, probability in zip(rows, probabilities, strict=True):
                found[row].append(round(probability, 7))
        return found

    def _step(self, states: Sequence[dict[str, Any]], windows: Sequence[Array]) -> list[float]:
        """Run the network once on the next window of each sequence; keep their next states."""
        hidden = np.stack([state["hidden"] for state in states], axis=1)
        given = {"input": np.stack(windows), "state": hidden, "sr": np.array(RATE)}
        probabilities, hidden = self.network.run(None, given)
        for row, state in enumerate(states):
            state["hidden"] = hidden[:, row].copy()  # a view would keep the states of the whole batch alive
        row_of_numbers: list[float] = probabilities.ravel().tolist()
        return row_of_numbers


def network_file() -> Path:
    """Return the network, a file of the package.

    The package itself is not imported: it would load torch, which the network does not need.

    Raises:
        ModuleNotFoundError: The package is not installed.
    """
    package = find_spec("silero_vad")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("voice_activity needs silero-vad: pip install torchserve-py[speech]")
    return Path(package.origin).parent / "data" / "silero_vad.onnx"


def new_state() -> dict[str, Any]:
    """Return the state of a sequence that begins.

    ``rest`` is the sound that does not fill a window yet, after the ``OVERLAP`` last samples of the window before;
    ``silent`` counts the windows since somebody spoke; ``resampler`` is what a `Resampler` goes on with.
    """
    return {
        "hidden": np.zeros(HIDDEN, np.float32),
        "rest": bytes(2 * OVERLAP),
        "windows": 0,
        "is_speech": False,
        "silent": 0,
        "resampler": (None, 0),
    }


def _sound(context: Context, idx: int, state: dict[str, Any]) -> bytes:
    """Return the piece of sound that a request brings, at the network's rate. Raises ValueError: it brings none."""
    body = context.body(idx) or b""
    if not context.get_request_header(idx, "realtime_event"):
        if isinstance(body, bytes | bytearray) and len(body) % 2 == 0:
            return bytes(body)
        raise ValueError("Send 16-bit samples, 16,000 per second, as bytes; their number is even.")
    samples, rate = audio_of(context, idx, body)
    resampler = Resampler(rate, RATE, *state.get("resampler", ()))
    heard = resampler.hear(samples)
    state["resampler"] = (resampler.rest, resampler.offset)
    return encode_audio(heard, "pcm16")


def _windows(state: dict[str, Any], piece: bytes) -> Array:
    """Return the windows that a piece completes [windows, OVERLAP + WINDOW]; keep the rest of the sound."""
    sound = state["rest"] + piece
    count = (len(sound) - 2 * OVERLAP) // BYTES
    state["rest"] = sound[count * BYTES :]
    if not count:
        return np.empty((0, OVERLAP + WINDOW), np.float32)
    samples = np.frombuffer(sound, "<i2").astype(np.float32) / 32768
    return np.lib.stride_tricks.sliding_window_view(samples, OVERLAP + WINDOW)[::WINDOW]


def _events(state: dict[str, Any], probabilities: Sequence[float]) -> list[dict[str, float]]:
    """Return when speech starts and ends."""
    events: list[dict[str, float]] = []
    for probability in probabilities:
        began = state["windows"] * WINDOW / RATE
        state["windows"] += 1
        if state["is_speech"]:
            state["silent"] = state["silent"] + 1 if probability < SILENCE else 0
            if state["silent"] == SILENT_WINDOWS:
                state["is_speech"], state["silent"] = False, 0
                events.append({"end": round(began - (SILENT_WINDOWS - 1) * WINDOW / RATE, 3)})
        elif probability >= SPEECH:
            state["is_speech"] = True
            events.append({"start": round(began, 3)})
    return events
