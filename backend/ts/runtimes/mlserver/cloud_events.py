"""CloudEvents headers, which MLServer adds to every request and response."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class CloudEvents:
    """Makes the headers of one model."""

    def __init__(self, model_name: str, server_name: str) -> None:
        namespace = _namespace()
        source = f"io.seldon.serving.deployment.{server_name}"
        self._common = {
            "Ce-Specversion": "0.3",
            "Ce-Source": f"{source}.{namespace}" if namespace else source,
            "Ce-Modelid": model_name,
            "Ce-Inferenceservicename": server_name,
            "Ce-Endpoint": model_name,
        }
        if namespace:
            self._common["Ce-Namespace"] = namespace

    def of_request(self, request_id: str | None) -> dict[str, str]:
        """Return the headers for a request."""
        return self._headers("request", request_id)

    def of_response(self, request_id: str | None) -> dict[str, str]:
        """Return the headers for the response to a request."""
        return self._headers("response", request_id)

    def _headers(self, kind: str, request_id: str | None) -> dict[str, str]:
        headers = {**self._common, "Ce-Type": f"io.seldon.serving.inference.{kind}"}
        if request_id and request_id.isprintable():  # no header can hold what is not
            headers["Ce-Id"] = headers["Ce-Requestid"] = request_id
        return headers


def _namespace() -> str:
    """Return the name of the Kubernetes namespace that this runs in; "" outside of Kubernetes."""
    try:
        return _NAMESPACE_FILE.read_text().strip()
    except OSError:
        return ""
