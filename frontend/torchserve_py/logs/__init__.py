"""What is logged, and the loggers that the server's parts share."""

from typing import Final

#: What models print and log.
MODEL_LOGGER: Final = "MODEL_LOG"
