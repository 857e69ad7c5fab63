"""Speech from text: espeak-ng, whose library and voices come with `pip install espeakng-loader`."""

import ctypes

import espeakng_loader
import numpy as np

from ts import serve
from ts.service import PredictionException
from ts.utils.sound import Audio

SYNCHRONOUS, UTF8, RATE_OF_WORDS = 2, 1, 1  # names of espeak-ng's interface
Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


@serve(example={"text": "Hello world."})
class Speak:
    """Say a text, in any language that espeak-ng has a voice for."""

    def setup(self, device: str) -> None:
        self.library = espeakng_loader.load_library()
        self.rate = self.library.espeak_Initialize(SYNCHRONOUS, 0, espeakng_loader.get_data_path().encode(), 0)
        if self.rate <= 0:
            raise RuntimeError(f"espeak-ng does not start: {self.rate}")
        self.pieces: list[np.ndarray] = []
        self.callback = Callback(self._collect)  # the library calls it later
        self.library.espeak_SetSynthCallback(self.callback)

    def predict(self, text: str, voice: str = "en-us", words_per_minute: int = 160) -> Audio:
        if self.library.espeak_SetVoiceByName(voice.encode()):
            raise PredictionException(f"espeak-ng has no voice {voice!r}; en-us and de are two that it has", 422)
        self.library.espeak_SetParameter(RATE_OF_WORDS, words_per_minute, 0)
        self.pieces.clear()
        said = text.encode() + b"\0"
        self.library.espeak_Synth(said, ctypes.c_size_t(len(said)), 0, 1, 0, UTF8, None, None)
        samples = np.concatenate([np.empty(0, np.int16), *self.pieces])
        return Audio(samples.astype(np.float32) / 32768, self.rate)

    def _collect(self, samples: "ctypes._Pointer[ctypes.c_short]", count: int, events: int | None) -> int:
        if count:
            self.pieces.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0  # go on
