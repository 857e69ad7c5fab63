"""The examples of proxies in deploy/: valid, and in agreement with each other and with the server."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from tests.programs import need_program

from torchserve_py.base.settings.server_settings import server_settings

DEPLOY = Path(__file__).parents[2] / "deploy"
HAPROXY = (DEPLOY / "haproxy.cfg").read_text()
HEADER = str(server_settings().model_fields["ts_header_key_sequence_id"].default)


def test_haproxy_takes_its_configuration() -> None:
    ran = subprocess.run(
        [need_program("haproxy"), "-c", "-f", str(DEPLOY / "haproxy.cfg")], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


def test_envoy_takes_its_configuration() -> None:
    command = [str(Path(sys.executable).parent / "envoy"), "--mode", "validate", "-c", str(DEPLOY / "envoy.yaml")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_both_send_a_sequence_to_one_server_and_ask_whether_that_is_ready() -> None:
    envoy = yaml.safe_load((DEPLOY / "envoy.yaml").read_text())["static_resources"]
    (listener,) = envoy["listeners"]
    (manager,) = listener["filter_chains"][0]["filters"]
    (host,) = manager["typed_config"]["route_config"]["virtual_hosts"]
    assert all(each["route"]["hash_policy"] == [{"header": {"header_name": HEADER}}] for each in host["routes"])
    assert HAPROXY.count(f"balance hdr({HEADER})") == 2
    assert {each["route"]["cluster"] for each in host["routes"]} == {each["name"] for each in envoy["clusters"]}
    assert HAPROXY.count("option httpchk GET /ready") == 2
    for cluster, port in zip(envoy["clusters"], (8080, 7070), strict=True):
        assert cluster["health_checks"][0]["http_health_check"]["path"] == "/ready"
        (locality,) = cluster["load_assignment"]["endpoints"]
        servers = [_as_haproxy_says(each["endpoint"]) for each in locality["lb_endpoints"]]
        assert servers == re.findall(rf"server server\d (10\.0\.0\.\d:{port}(?: port \d+)?)", HAPROXY)


def _as_haproxy_says(endpoint: dict[str, Any]) -> str:
    address = "{address}:{port_value}".format(**endpoint["address"]["socket_address"])
    check = endpoint.get("health_check_config")
    return f"{address} port {check['port_value']}" if check else address
