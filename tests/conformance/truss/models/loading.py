"""Models that load in unusual ways."""

import logging
import os
import time
from pathlib import Path

logger = logging.getLogger(__name__)


class FailsOnce:
    attempts = 0

    def load(self):
        self.attempts += 1
        if self.attempts == 1:
            raise RuntimeError("the first attempt fails")

    def predict(self, inputs):
        return self.attempts


class FailsAlways:
    def load(self):
        raise RuntimeError("no weights here")

    def predict(self, inputs: int) -> int:
        return inputs


class Exits:
    def load(self):
        raise SystemExit("gone")

    def predict(self, inputs):
        return inputs


class AsyncLoad:
    loaded = False

    async def load(self):
        self.loaded = True

    def predict(self, inputs):
        return self.loaded


class Falsy:
    def __len__(self):
        return 0

    def predict(self, inputs):
        return "served"


class Health:
    """Loads once the file named by GATE is there; then its health is what predict was given last."""

    health = True
    loaded = False

    def load(self):
        while not Path(os.environ["GATE"]).exists():
            time.sleep(0.01)
        self.loaded = True

    def is_healthy(self):
        assert self.loaded
        if self.health == "raise":
            raise RuntimeError("the engine is on fire")
        return self.health

    def predict(self, inputs):
        self.health = inputs
        return inputs
