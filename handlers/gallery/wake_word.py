"""A wake word in sound that arrives piece by piece: pocketsphinx with the model of its package.

A recogniser takes many megabytes, so a worker has one. What a session keeps is its last second and a half of sound.
"""

from pocketsphinx import Decoder

from ts import serve
from ts.service import PredictionException

PHRASE, THRESHOLD = "open sesame", 1e-70  # a smaller threshold hears it more often, also where it is not
RATE, BYTES = 16_000, 2
KEPT = int(1.5 * RATE) * BYTES
QUIET = bytes(RATE // 4 * BYTES)  # the search wants a pause on both sides of the phrase


@serve(store="file")
class WakeWord:
    """Tell whether a piece of sound completes the phrase: 16-bit samples, one channel, 16,000 per second."""

    def setup(self, device: str) -> None:
        self.decoder = Decoder(keyphrase=PHRASE, kws_threshold=THRESHOLD, loglevel="FATAL")

    def predict(self, sound: bytes, state: dict) -> bool:
        if len(sound) % BYTES or len(sound) > 30 * RATE * BYTES:
            raise PredictionException("Send at most 30 s of 16-bit samples, 16,000 per second", 422)
        heard = state.get("kept", b"") + sound
        self.decoder.start_utt()
        self.decoder.process_raw(QUIET + heard + QUIET, full_utt=True)
        self.decoder.end_utt()
        found = self.decoder.hyp() is not None
        state["kept"] = b"" if found else heard[-KEPT:]
        return found
