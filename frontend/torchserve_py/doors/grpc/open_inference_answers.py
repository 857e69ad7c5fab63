"""Descriptions of the Open Inference Protocol, which the REST door sends as JSON, as messages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf.json_format import ParseDict

from torchserve_py.doors.grpc.protos import open_inference_pb2 as messages
from ts.open_inference.protos.infer_pb2 import InferParameter


def server_metadata(described: Mapping[str, Any]) -> messages.ServerMetadataResponse:
    """What `torchserve_py.doors.open_inference.descriptions.server_metadata` says."""
    return ParseDict(dict(described), messages.ServerMetadataResponse())


def model_metadata(described: Mapping[str, Any]) -> messages.ModelMetadataResponse:
    """What `torchserve_py.doors.open_inference.descriptions.model_metadata` says."""
    response = messages.ModelMetadataResponse(
        name=described["name"],
        versions=described["versions"],
        platform=described["platform"],
        parameters=_parameters(described.get("parameters") or {}),
    )
    for target, tensors in ((response.inputs, described["inputs"]), (response.outputs, described["outputs"])):
        for tensor in tensors:
            target.add(
                name=tensor["name"],
                datatype=tensor["datatype"],
                shape=tensor["shape"],
                parameters=_parameters(tensor.get("parameters") or {}),
            )
    return response


def model_config(described: Mapping[str, Any]) -> messages.ModelConfigResponse:
    """What `torchserve_py.doors.open_inference.descriptions.model_config` says."""
    return ParseDict({"config": dict(described)}, messages.ModelConfigResponse())


def model_statistics(described: Iterable[Mapping[str, Any]]) -> messages.ModelStatisticsResponse:
    """What `torchserve_py.doors.open_inference.statistics.of` says of each model."""
    return ParseDict({"model_stats": [dict(each) for each in described]}, messages.ModelStatisticsResponse())


def repository_index(entries: Iterable[Mapping[str, str]]) -> messages.RepositoryIndexResponse:
    """What `torchserve_py.doors.open_inference.repository.Repository.index` says."""
    return ParseDict({"models": [dict(each) for each in entries]}, messages.RepositoryIndexResponse())


def _parameters(values: Mapping[str, Any]) -> dict[str, InferParameter]:
    return {name: _parameter(value) for name, value in values.items() if value is not None}


def _parameter(value: Any) -> InferParameter:
    match value:
        case bool():
            return InferParameter(bool_param=value)
        case int():
            return InferParameter(int64_param=value)
        case float():
            return InferParameter(double_param=value)
        case str():
            return InferParameter(string_param=value)
    return InferParameter(string_param=json.dumps(value))
