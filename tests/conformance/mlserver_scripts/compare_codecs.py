"""Runs in MLServer's environment: reads cases as lines of JSON, and prints what its codecs and ours make of each."""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd

warnings.simplefilter("ignore")


class Api:
    """One of the two packages."""

    def __init__(self, package: str) -> None:
        self.codecs: Any = importlib.import_module(f"{package}.codecs")
        self.types: Any = importlib.import_module(f"{package}.types")
        self.package: Any = importlib.import_module(package)


def value_of(case: dict[str, Any]) -> Any:
    """Return the Python value that a case is about."""
    value = case["value"]
    match case["kind"]:
        case "base64":
            return [each.encode("latin-1") for each in value]
        case "datetime":
            return [datetime.fromisoformat(each) for each in value]
        case "np":
            return np.array(value, dtype=case["dtype"]).reshape(case["shape"])
        case "pd":
            frame = {name: pd.Series(each, dtype=case["dtypes"][name]) for name, each in value.items()}
            return pd.DataFrame(frame)
        case _:
            return value


def plain(value: Any) -> str:
    """Return something that is equal for equal values."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {value.tolist()}"
    if isinstance(value, pd.DataFrame):
        return f"{dict(value.dtypes)} {value.to_dict('list')}"
    if hasattr(value, "model_dump"):
        return repr(value.model_dump())
    return repr(value)


def results(api: Api, case: dict[str, Any]) -> list[str]:
    """Return all that a package does with a case."""
    if case["kind"] == "json":
        return decoded(api, case["value"])
    value = value_of(case)
    request_level = case["kind"] == "pd" or case.get("request")
    finder = importlib.import_module(
        f"{api.codecs.__name__}.{'registry' if hasattr(api.codecs, 'registry') else 'base'}"
    )
    if request_level:
        codec = finder.find_request_codec(case["kind"])
        made = [codec.encode_request(value), codec.encode_response("m", value, "1")]
        back = [
            codec.decode_request(type(made[0]).model_validate_json(as_json(made[0]))),
            codec.decode_response(type(made[1]).model_validate_json(as_json(made[1]))),
        ]
    else:
        codec = finder.find_input_codec(case["kind"])
        made = [codec.encode_input("x", value), codec.encode_output("x", value), codec.can_encode(value)]
        made.append(codec.encode_output("x", value, use_bytes=False))
        back = [codec.decode_input(type(made[0]).model_validate_json(as_json(made[0]))), codec.decode_output(made[1])]
    return [plain(each) for each in (*made, *back)]


def as_json(message: Any) -> str:
    """Return a message as it is sent."""
    return str(message.model_dump_json())


def decoded(api: Api, request: dict[str, Any]) -> list[str]:
    """Return what a model makes of a request, by its content types."""

    class Model(api.package.MLModel):  # type: ignore[misc, name-defined]
        pass

    settings = api.package.ModelSettings(
        implementation=Model,
        name="m",
        inputs=[{"name": "described", "datatype": "BYTES", "shape": [-1], "parameters": {"content_type": "base64"}}],
    )
    model = Model(settings)
    given = api.types.InferenceRequest.model_validate(request)
    answers = [plain(model.decode(each)) for each in given.inputs]
    whole = model.decode_request(api.types.InferenceRequest.model_validate(request))
    return [*answers, "request" if isinstance(whole, api.types.InferenceRequest) else plain(whole)]


def attempt(api: Api, case: dict[str, Any]) -> Any:
    """Return the results, or the kind of the error."""
    try:
        return results(api, case)
    except Exception as error:
        return [f"failed: {isinstance(error, ValueError | TypeError | KeyError | Exception)}"]


def main() -> None:
    """Answer until there are no more cases."""
    apis = Api("mlserver"), Api("ts.mlserver")
    for line in sys.stdin:
        case = json.loads(line)
        print(json.dumps([attempt(api, case) for api in apis]), flush=True)


if __name__ == "__main__":
    main()
