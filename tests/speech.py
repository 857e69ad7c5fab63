"""Speech for tests: a text as sound, 16-bit samples, 16,000 per second, one channel."""

import subprocess
from functools import cache

from tests.programs import need_program

RATE = 16_000
#: Options of the voice whose words pocketsphinx recognises best.
VOICE = ("-v", "en-us+m1", "-s", "140", "-p", "30")
_RAW = ("-t", "raw", "-r", str(RATE), "-b", "16", "-e", "signed-integer", "-c", "1", "-")


@cache
def say(text: str, *voice: str) -> bytes:
    """Return a text as espeak-ng says it; ``voice`` are its options."""
    speak, convert = need_program("espeak-ng"), need_program("sox")
    wave = subprocess.run([speak, "--stdout", *voice, text], capture_output=True, check=True).stdout
    return subprocess.run([convert, "-R", "-t", "wav", "-", *_RAW], input=wave, capture_output=True, check=True).stdout


def silence(seconds: float) -> bytes:
    """Return silence."""
    return bytes(2 * int(seconds * RATE))
