"""The examples of proxies in deploy/: valid, and in agreement with each other and with the server."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import yaml
from tests.programs import need_program

from torchserve_py.settings.table import Settings

DEPLOY = Path(__file__).parents[2] / "deploy"
HAPROXY = (DEPLOY / "haproxy.cfg").read_text()
HEADER = str(Settings.model_fields["ts_header_key_sequence_id"].default)


def test_haproxy_takes_its_configuration() -> None:
    ran = subprocess.run(
        [need_program("haproxy"), "-c", "-f", str(DEPLOY / "haproxy.cfg")], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


def test_both_send_a_sequence_to_one_server_and_ask_whether_that_is_ready() -> None:
    envoy = yaml.safe_load((DEPLOY / "envoy.yaml").read_text())["static_resources"]
    (listener,), (cluster,) = envoy["listeners"], envoy["clusters"]
    (manager,) = listener["filter_chains"][0]["filters"]
    (host,) = manager["typed_config"]["route_config"]["virtual_hosts"]
    (route,) = host["routes"]
    assert route["route"]["hash_policy"] == [{"header": {"header_name": HEADER}}]
    assert HAPROXY.count(f"balance hdr({HEADER})") == 2
    assert cluster["health_checks"][0]["http_health_check"]["path"] == "/ready"
    assert HAPROXY.count("option httpchk GET /ready") == 2
    addresses = [
        "{address}:{port_value}".format(**each["endpoint"]["address"]["socket_address"])
        for each in cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
    ]
    assert addresses == re.findall(r"server server\d (10\.0\.0\.\d:8080)", HAPROXY)
