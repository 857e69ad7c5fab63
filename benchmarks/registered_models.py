"""What a registered model costs that is not loaded: memory of the server's process, and time.

    python -m benchmarks.registered_models [--models 1000]

The models load on demand, so no worker is started. They are registered over the management API, one after the other.
"""

from __future__ import annotations

import argparse
import http.client
import sys
import time
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from benchmarks import launchers
from benchmarks.many_models import ManyModels
from benchmarks.servers import Server

#: How often (seconds) the server gives freed memory back, and some more.
_SETTLES = 12.0
_PROPERTIES = """enable_model_api=true
disable_token_authorization=true
memory_budget=2GB
metrics_mode=prometheus
"""


def register(server: Server, store: Path, prefix: str, models: int) -> float:
    """Register models under names with this prefix; return the seconds that it took."""
    connection = http.client.HTTPConnection(urlsplit(server.management_url).netloc, timeout=60)
    began = time.perf_counter()
    for number in range(models):
        query = urlencode({"url": str(store / "m0"), "model_name": f"{prefix}{number}"})
        connection.request("POST", f"/models?{query}")
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != http.HTTPStatus.OK:
            raise RuntimeError(f"model {number}: {answer.status} {text.decode()}")
    return time.perf_counter() - began


def main() -> int:
    """Register models, and print what each costs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=1000)
    options = parser.parse_args()
    one = ManyModels(1, 1000, {"minWorkers": 0, "loading": "on_demand"})
    with Server(launchers.this_server(sys.executable, _PROPERTIES), one) as server:
        register(server, server.folder / "model_store", "first", 10)  # what is made once is no part of a model
        time.sleep(_SETTLES)
        before, cpu = server.frontend().memory_info().rss, sum(server.frontend().cpu_times()[:2])
        seconds = register(server, server.folder / "model_store", "registered", options.models)
        used = sum(server.frontend().cpu_times()[:2]) - cpu
        time.sleep(_SETTLES)
        grown = server.frontend().memory_info().rss - before
        began = time.perf_counter()
        idle = sum(server.frontend().cpu_times()[:2])
        time.sleep(_SETTLES)
        idle = sum(server.frontend().cpu_times()[:2]) - idle
        share = idle / (time.perf_counter() - began)
    print(f"{options.models} models: {seconds:.1f} s, {1000 * used / options.models:.1f} ms of processor time each")
    print(f"{grown / options.models / 1000:.1f} kB of the server's memory each; then it takes {share:.1%} of a core")
    return 0


if __name__ == "__main__":
    sys.exit(main())
