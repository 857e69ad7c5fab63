"""Incidents that clients cause: they take all connections, kill workers, keep connections open."""

from __future__ import annotations

import contextlib
import http.client
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from tests.e2e.running_server import RunningServer, model_folder
from tests.incidents.scenes import WELL, Scene, is_well, live_status, metric

_FATAL = """
import os, signal


def handle(data, context):
    if any("kill" in str(row.get("data") or row.get("body")) for row in data or ()):
        os.kill(os.getpid(), signal.SIGKILL)
    return ['well'] * len(data) if data else None
"""
_SLOW = WELL.replace("    return", "    if data:\n        __import__('time').sleep(5)\n    return")


def connections_taken(scene: Scene) -> None:
    """All connections of the inference listener are taken by idle clients."""
    model = model_folder(scene.directory, "m", WELL)
    with RunningServer({"m": model}, {"max_connections": 20}) as server:
        server.wait_ready()
        address = urlsplit(server.inference)
        held = [socket.create_connection((address.hostname, address.port)) for _ in range(20)]
        scene.lost += not is_well(server, "m")
        scene.expect(live_status(server) == 200, "/live is not answered")
        scene.expect(live_status(server, "/ready") == 200, "/ready is not answered")
        scene.detect(lambda: metric(server, "ts_refusals_total", reason="listener_full"), "refusals are counted")
        scene.expect("max_connections" in server.log(), "the log has no line")
        for each in held:
            each.close()
        scene.heal(lambda: is_well(server, "m"), "there is room again")


def requests_that_kill_workers(scene: Scene) -> None:
    """One request in ten kills the worker that runs it."""
    model = model_folder(scene.directory, "m", _FATAL, "minWorkers: 2\nmaxWorkers: 2\n")
    with RunningServer({"m": model}) as server:
        server.wait_ready()
        until = time.monotonic() + 15
        while time.monotonic() < until:
            server.predict("m", "kill")
            for _ in range(9):
                scene.lost += server.predict("m", "x").status_code != 200
        scene.detect(lambda: metric(server, "ts_outcomes_total", cause="worker_died"), "deaths are counted")
        scene.heal(lambda: metric(server, "ts_workers_ready") == 2 and is_well(server, "m"), "both workers are back")


def batches_with_a_request_that_kills(scene: Scene) -> None:
    """One request in each batch of four kills every worker that runs it; the only worker is replaced each time."""
    model = model_folder(scene.directory, "m", _FATAL, "batchSize: 4\nmaxBatchDelay: 1000\n")
    with RunningServer({"m": model}) as server, ThreadPoolExecutor() as pool:
        server.wait_ready()
        for _ in range(5):
            killer = pool.submit(server.predict, "m", "kill")
            others = [pool.submit(server.predict, "m", "x") for _ in range(3)]
            scene.lost += sum(each.result().status_code != 200 for each in others)
            scene.expect(killer.result().headers.get("ts-error-cause") == "worker_died", "it is not refused by name")
        scene.expect(not scene.lost, "neighbours of a request that kills are not answered")
        scene.detect(lambda: "does not run again: 2 workers have died with it" in server.log(), "the log names it")
        scene.heal(lambda: metric(server, "ts_workers_ready") == 1 and is_well(server, "m"), "the worker is back")


def drain_with_keep_alive_clients(scene: Scene) -> None:
    """A server drains while clients keep their connections open and a request runs."""
    model = model_folder(scene.directory, "m", _SLOW)
    with RunningServer({"m": model}, {"drain_timeout": 10}) as server:
        server.wait_ready()
        address = urlsplit(server.inference)
        clients = [http.client.HTTPConnection(str(address.hostname), address.port, timeout=180) for _ in range(5)]
        for client in clients:
            client.request("GET", "/live")
            client.getresponse().read()
        running = http.client.HTTPConnection(str(address.hostname), address.port, timeout=180)
        running.request("POST", "/predictions/m", b"x", {"content-type": "text/plain"})
        time.sleep(0.3)
        assert server.process is not None
        server.process.terminate()
        scene.detect(lambda: live_status(server, "/ready") == 503, "/ready is 503")
        for client in clients:
            client.request("POST", "/predictions/m", b"x", {"content-type": "text/plain"})
            answer = client.getresponse()
            answer.read()
            closes = answer.headers["connection"] == "close"
            scene.expect(answer.status == 503 and closes, "a draining server keeps a connection")
        with contextlib.closing(running):
            scene.lost += running.getresponse().status != 200
        scene.heal(lambda: server.process is not None and server.process.poll() == 0, "the server has ended")
