"""The base of handlers whose model DeepSpeed spreads over GPUs; `ts.handler_utils.distributed.deepspeed` does that."""

import abc
import os
from typing import Any

from ts.torch_handler.base_handler import BaseHandler


class BaseDeepSpeedHandler(BaseHandler, abc.ABC):
    """Knows its device: ``device`` is the number of this process among those of its worker."""

    def initialize(self, context: Any) -> None:
        """Set ``device``; a subclass loads its model here and calls this first."""
        self.device = int(os.environ.get("LOCAL_RANK", "0"))
