"""Requests to a worker on a Ray node, to one on a Unix socket, and to Ray Serve, alternately in one run.

    python -m benchmarks.ray_workers [--rounds N] [--seconds S]

The node is on this machine, and all three run a function that returns its input. Printed are the medians of the rounds:
seconds per request at one connection, and requests per second at 32. Needs wrk and the extras ray and test; Ray Serve
needs `pip install 'ray[serve]'`, and is left out where it is not installed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.running_server import RunningServer, model_folder
from tests.fleet.ray.ray_cluster import RayNodes
from tests.ports import free_ports

from benchmarks.loads import HttpLoad

ECHO = """
def handle(data, context):
    return None if data is None else [row.get("body") or row.get("data") for row in data]
"""


@contextmanager
def ours(cluster: RayNodes | None) -> Iterator[str]:
    """Run this server, its worker on a node of the cluster or (None) on a Unix socket; yield the URL of the model."""
    properties: dict[str, object] = {"access_log": "false"}
    if cluster is not None:
        properties |= {"worker_launcher": "ray", "ray_address": cluster.address}
    with tempfile.TemporaryDirectory() as directory:
        folder = model_folder(Path(directory), "m", ECHO)
        with RunningServer({"m": folder}, properties) as server:
            server.wait_ready()
            yield f"{server.inference}/predictions/m"


@contextmanager
def ray_serve(cluster: RayNodes) -> Iterator[str]:
    """Run Ray Serve with one replica; yield its URL. Raises ModuleNotFoundError: it is not installed."""
    import ray
    from ray import serve
    from starlette.requests import Request
    from starlette.responses import Response

    @serve.deployment(num_replicas=1)
    class Echo:
        async def __call__(self, request: Request) -> Response:
            return Response(await request.body())

    ray.init(cluster.address, log_to_driver=False)
    (port,) = free_ports(1)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(Echo.bind())
        yield f"http://127.0.0.1:{port}/"
    finally:
        serve.shutdown()
        ray.shutdown()


@dataclass(frozen=True)
class Echoing:
    """Where an echo answers; a target of loads."""

    url: str
    grpc_target: str = ""
    authorization: dict[str, str] = field(default_factory=dict)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3)
    options = parser.parse_args()
    with ExitStack() as stack:
        cluster = stack.enter_context(RayNodes())
        cluster.add(num_cpus=4)
        urls = {"Unix socket": stack.enter_context(ours(None)), "Ray node": stack.enter_context(ours(cluster))}
        try:
            urls["Ray Serve"] = stack.enter_context(ray_serve(cluster))
        except ModuleNotFoundError as error:
            print(f"Ray Serve is left out: {error}", file=sys.stderr)
        found: dict[tuple[str, int], list[float]] = {}
        for _ in range(options.rounds):
            for connections in (1, 32):
                for name, url in urls.items():
                    load = HttpLoad(connections=connections, path="", body=b"x" * 1000)
                    measured = load.run(Echoing(url), options.seconds).requests_per_second
                    found.setdefault((name, connections), []).append(measured)
        for name in urls:
            one, many = (statistics.median(found[name, connections]) for connections in (1, 32))
            print(f"{name:12} {1e6 / one:8.0f} µs per request at 1 connection, {many:8.0f} requests/s at 32")
    return 0


if __name__ == "__main__":
    sys.exit(main())
