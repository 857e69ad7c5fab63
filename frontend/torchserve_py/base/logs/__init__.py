"""What is logged, and the loggers that the server's parts share."""

from typing import Final

#: What models print and log.
MODEL_LOGGER: Final = "MODEL_LOG"
#: Metrics of the server, and those that handlers report.
METRICS_LOGGER: Final = "TS_METRICS"
HANDLER_METRICS_LOGGER: Final = "MODEL_METRICS"
