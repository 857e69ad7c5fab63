"""What SageMaker's variables mean as settings of the server."""

import json
from collections.abc import Mapping
from typing import Final

_WORKERS: Final = "SAGEMAKER_MODEL_SERVER_WORKERS"
#: The later one wins.
_TIMEOUTS: Final = ("SAGEMAKER_MODEL_SERVER_TIMEOUT", "SAGEMAKER_MODEL_SERVER_TIMEOUT_SECONDS")
_PAYLOAD: Final = "SAGEMAKER_MAX_PAYLOAD_IN_MB"
_MEBIBYTE: Final = 1 << 20
#: Of the only model: its keys in the setting `models`.
_OF_MODEL: Final = {
    "SAGEMAKER_TS_BATCH_SIZE": "batchSize",
    "SAGEMAKER_TS_MAX_BATCH_DELAY": "maxBatchDelay",
    "SAGEMAKER_TS_MIN_WORKERS": "minWorkers",
    "SAGEMAKER_TS_MAX_WORKERS": "maxWorkers",
    "SAGEMAKER_TS_RESPONSE_TIMEOUT": "responseTimeout",
}
_DEFAULT_VERSION: Final = "1.0"


def settings_of(environ: Mapping[str, str], model: str) -> dict[str, str]:
    """Return settings by name; ``model`` is the name of an endpoint's only model.

    Raises ValueError: a variable has no number from 1.
    """
    settings: dict[str, str] = {}
    if workers := _number(_WORKERS, environ):
        settings["default_workers_per_model"] = str(workers)
    for name in _TIMEOUTS:
        if seconds := _number(name, environ):
            settings["default_response_timeout"] = str(seconds)
    if payload := _number(_PAYLOAD, environ):
        settings["max_request_size"] = settings["max_response_size"] = str(payload * _MEBIBYTE)
    own = {key: number for name, key in _OF_MODEL.items() if (number := _number(name, environ))}
    if own:
        settings["models"] = json.dumps({model: {_DEFAULT_VERSION: own}})
    return settings


def _number(name: str, environ: Mapping[str, str]) -> int | None:
    text = environ.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise ValueError(f"{name} is {text!r}, it must be a whole number from 1")
    return int(text)
