"""Speech without noise, piece by piece: RNNoise, a recurrent network, from `pip install --no-deps pyrnnoise`.

Its state holds addresses of the library, so it stays in the memory of its worker.
"""

import ctypes
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from ts import serve
from ts.service import PredictionException

FRAME, BYTES = 480, 2  # 10 ms at 48,000 samples per second


def library() -> ctypes.CDLL:
    """Return the library of the package, whose Python part would import a plotting library."""
    package = find_spec("pyrnnoise")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("denoise needs RNNoise: pip install --no-deps pyrnnoise")
    return ctypes.CDLL(str(Path(package.origin).with_name("librnnoise.so")))


@serve
class Denoise:
    """Return the sound that a piece completes without its noise: 16-bit samples, one channel, 48,000 per second."""

    def setup(self, device: str) -> None:
        self.library = library()

    def predict(self, sound: bytes, state: dict) -> bytes:
        if len(sound) % BYTES:
            raise PredictionException(f"Send whole 16-bit samples; {len(sound)} bytes are none", 422)
        if "network" not in state:
            state["network"] = ctypes.create_string_buffer(self.library.rnnoise_get_size())
            self.library.rnnoise_init(state["network"], None)
        sound = state.get("rest", b"") + sound
        whole = len(sound) - len(sound) % (FRAME * BYTES)
        state["rest"] = sound[whole:]
        samples = np.frombuffer(sound[:whole], "<i2").astype(np.float32).reshape(-1, FRAME)
        for frame in samples:
            place = frame.ctypes.data_as(ctypes.c_void_p)
            self.library.rnnoise_process_frame(state["network"], place, place)
        return samples.clip(-32768, 32767).astype("<i2").tobytes()
