"""MkDocs hook: pages of the REST API, made of the OpenAPI documents of a server that is started for it."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

#: Pages, with their title, the listener and the request that answers with the document.
PAGES = {
    "inference": ("The inference listener", "inference", "OPTIONS", "/"),
    "management": ("The management listener", "management", "OPTIONS", "/"),
    "metrics": ("The metrics listener", "metrics", "OPTIONS", "/"),
    "open-inference": ("The Open Inference Protocol", "inference", "GET", "/v2/docs/dataplane.json"),
}
#: How the paths begin that stand first on their page.
FIRST = "/predictions/"
#: Seconds that the server has to start.
PATIENCE = 120.0

Json = Mapping[str, Any]


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages and the documents that they show."""
    from mkdocs.structure.files import File

    for name, (title, *_) in PAGES.items():
        text = documents()[name]
        files.append(File.generated(config, f"api/{name}.json", content=text))
        files.append(File.generated(config, f"api/{name}.md", content="\n".join(page(title, name, json.loads(text)))))
    return files


@cache
def documents() -> dict[str, str]:
    """Return the document of each page from a server without models, which listens at sockets of its own.

    Raises:
        RuntimeError: The server does not start.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        listeners = ("inference", "management", "metrics")
        lines = [f"{each}_address=unix:{folder / each}" for each in listeners]
        lines += ["grpc_inference_port=0", "grpc_management_port=0", "disable_system_metrics=true"]
        (folder / "config.properties").write_text("\n".join(lines))
        command = [sys.executable, "-m", "torchserve_py.cli", "--start", "--foreground", "--ncs"]
        command += ["--disable-token-auth", "--model-store", str(folder)]
        # Its own folder for temporary files, so that it is not taken for a server that already runs.
        environment = {**os.environ, "TS_CONFIG_FILE": str(folder / "config.properties"), "TMPDIR": str(folder)}
        with (folder / "output").open("w+") as output:
            server = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT)
            try:
                _wait_until_started(server, folder / "output")
                return {page: fetched(folder / at, method, path) for page, (_, at, method, path) in PAGES.items()}
            finally:
                server.terminate()
                server.wait(PATIENCE)


def _wait_until_started(server: subprocess.Popen[bytes], output: Path) -> None:
    end = time.monotonic() + PATIENCE
    while "Model server started." not in output.read_text():
        if server.poll() is not None or time.monotonic() > end:
            raise RuntimeError(
                f"the server whose OpenAPI documents the pages show does not start:\n{output.read_text()}"
            )
        time.sleep(0.05)


def fetched(listener: Path, method: str, path: str) -> str:
    """Return the body of an answer of the server that listens at a Unix socket."""
    connection = http.client.HTTPConnection("localhost", timeout=PATIENCE)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(PATIENCE)
    connection.sock.connect(str(listener))
    connection.request(method, path)
    answer = connection.getresponse()
    text = answer.read().decode()
    if answer.status != 200:
        raise RuntimeError(f"{method} {path} answers {answer.status}: {text}")
    return text


def page(title: str, name: str, document: Json) -> Iterator[str]:
    """Yield the lines of a page."""
    yield f"# {title}\n"
    yield f"Made of the server's [OpenAPI document]({name}.json). A `?` stands behind what may be absent.\n"
    for path, methods in sorted(document["paths"].items(), key=_order):
        for method, operation in methods.items():
            yield f"## `{method.upper()} {path}`\n"
            yield from _operation(operation)
    schemas: Json = document.get("components", {}).get("schemas", {})
    if schemas:
        yield "## Schemas\n"
    for schema_name, schema in schemas.items():
        yield f"### `{schema_name}`\n\n```text\n{shape(schema, depth=0)}\n```\n"


def _order(operations: tuple[str, Json]) -> bool:
    """Return what sorts predictions, which most readers look for, before all else."""
    return not operations[0].startswith(FIRST)


def _operation(operation: Json) -> Iterator[str]:
    deprecated = " **Deprecated.**" if operation.get("deprecated") else ""
    yield f"{operation['description']}.{deprecated}\n"
    if operation["parameters"]:
        yield "| parameter | in | type | default | |\n|---|---|---|---|---|"
        for each in operation["parameters"]:
            schema = each["schema"]
            default = f"`{json.dumps(schema['default'])}`" if "default" in schema else ""
            meaning = each["description"] + (" (required)" if each["required"] else "")
            yield f"| `{each['name']}` | {each['in']} | `{shape(schema)}` | {default} | {meaning} |"
        yield ""
    if "requestBody" in operation:
        body = operation["requestBody"]
        yield f"Body{'' if body.get('required') else ', which may be absent'}: {_bodies(body['content'])}\n"
    alike: dict[str, list[str]] = {}
    for status, response in operation["responses"].items():
        alike.setdefault(_bodies(response.get("content", {})), []).append(f"{status} {response['description']}")
    yield from (f"- {', '.join(statuses)}: {bodies}" for bodies, statuses in alike.items())
    yield ""


def _bodies(content: Json) -> str:
    if not content:
        return "no body"
    return "; ".join(f"{media_type} `{shape(body['schema'])}`" for media_type, body in content.items())


def shape(schema: Json, depth: int | None = None) -> str:
    """Return a JSON Schema in short: `{ code: integer, type?: text }`, on lines of its own where a depth is given."""
    deeper = None if depth is None else depth + 1
    for alternatives in ("oneOf", "anyOf"):
        if alternatives in schema:
            return " or ".join(shape(each, deeper) for each in schema[alternatives])
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return " or ".join(json.dumps(each) for each in schema["enum"])
    if "properties" in schema:
        required = schema.get("required", ())
        members = [
            f"{name}{'' if name in required else '?'}: {shape(each, deeper)}"
            for name, each in schema["properties"].items()
        ]
        if depth is None:
            return f"{{ {', '.join(members)} }}"
        indent = "  " * depth
        return "{\n" + "".join(f"{indent}  {member}\n" for member in members) + f"{indent}}}"
    kinds = schema.get("type", "any")
    kind = kinds if isinstance(kinds, str) else " or ".join(kinds)
    if kind == "array":
        return f"[{shape(schema.get('items', {}), deeper)}]"
    least, most = schema.get("minimum"), schema.get("maximum")
    bounds = [f"≥ {least}"] * (least is not None) + [f"≤ {most}"] * (most is not None)
    return " ".join([{"string": "text"}.get(kind, kind), *bounds])
