"""The protocol of requests that ask a handler to sleep, see `ts.features.sleeping.sleeper`."""

from typing import Final

SLEEP: Final = "sleep"
