"""The Helm chart and KServe's runtime: rendered, valid for Kubernetes, and true to what the server does."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from tests.programs import need_program

from torchserve_py.container import how_to_start
from torchserve_py.settings.flags import parse_flags
from torchserve_py.settings.resolution import resolve

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "chart"
KUBERNETES = "1.25"
EVERYTHING = {
    "autoscaling": {"enabled": True},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "models": {"existingClaim": "archives"},
    "imagePullSecrets": [{"name": "registry"}],
    "environment": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
    "nodeSelector": {"gpu": "a100"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "podAnnotations": {"team": "speech"},
    "tokens": True,
    "config": {"drain_timeout": 100, "job_queue_size": 50},
}

Objects = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def render(tmp_path_factory: pytest.TempPathFactory) -> Callable[[dict[str, Any]], Objects]:
    """Render the chart with values; return its objects by kind."""
    directory = tmp_path_factory.mktemp("chart")
    program = directory / "render"
    environment = {
        **os.environ,
        "GO111MODULE": "off",
        "GOPATH": "/usr/share/gocode",
        "GOCACHE": str(directory / "cache"),
    }
    source = ROOT / "tests" / "chart" / "render.go"
    subprocess.run([need_program("go"), "build", "-o", program, source], env=environment, check=True, timeout=300)

    def rendered(values: dict[str, Any]) -> Objects:
        file = directory / "values.yaml"
        file.write_text(yaml.safe_dump(values))
        ran = subprocess.run([program, CHART, file], capture_output=True, text=True, check=True, timeout=60)
        return {each["kind"]: each for each in yaml.safe_load_all(ran.stdout) if each}

    return rendered


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_kubernetes_takes_every_object(render: Callable[..., Objects], values: dict[str, Any]) -> None:
    found = render(values)
    for kind, each in found.items():
        if kind != "ServiceMonitor":  # an object of the Prometheus operator
            kubernetes_validate.validate(each, KUBERNETES, strict=True)
    always = {"ConfigMap", "Deployment", "PodDisruptionBudget", "Service"}
    assert set(found) == always | (
        {"HorizontalPodAutoscaler", "ServiceMonitor"} if values else {"PersistentVolumeClaim"}
    )


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_the_server_takes_the_configuration_and_has_time_to_drain(
    render: Callable[..., Objects], tmp_path: Path, values: dict[str, Any]
) -> None:
    found = render(values)
    config = tmp_path / "config.properties"
    config.write_text(found["ConfigMap"]["data"]["config.properties"])
    pod = found["Deployment"]["spec"]["template"]["spec"]
    (server,) = pod["containers"]
    flags = ["--start", "--ts-config", str(config), "--model-store", str(tmp_path), *server["args"]]
    settings = resolve(parse_flags(flags), {}, tmp_path).settings()
    assert {port["name"]: port["containerPort"] for port in server["ports"]} == {
        "http": settings.inference_address.port,
        "metrics": settings.metrics_address.port,
        "grpc": settings.grpc_inference_port,
    }
    assert settings.disable_token_authorization is not values.get("tokens", False)
    pause = int(server["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > settings.drain_timeout + pause


def test_everything_selects_the_pods_of_the_chart(render: Callable[..., Objects]) -> None:
    found = render(EVERYTHING)
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    selectors = [
        found["Deployment"]["spec"]["selector"]["matchLabels"],
        found["Service"]["spec"]["selector"],
        found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
    ]
    assert all(selector.items() <= labels.items() for selector in selectors)
    service = found["Service"]
    monitor = found["ServiceMonitor"]["spec"]
    job = service["metadata"]["labels"][monitor["jobLabel"]]
    assert f'up{{job="{job}"}}' in (ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text()
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert found["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"] == found["Deployment"]["metadata"]["name"]
    assert "replicas" not in found["Deployment"]["spec"]  # the autoscaler decides


def test_values_are_checked() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    jsonschema.validate(values, schema)
    assert set(schema["properties"]) == {*values, "global"}
    for wrong in ({"replica": 3}, {"image": {"pullPolicy": "never"}}, {"service": {"http": 0}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def test_kserves_runtime_starts_the_image_as_it_expects(tmp_path: Path) -> None:
    text = (ROOT / "deploy" / "kserve-runtime.yaml").read_text()
    spec = yaml.safe_load(text)["spec"]
    (container,) = spec["containers"]
    assert container["name"] == "kserve-container"
    assert set(spec["protocolVersions"]) == {"v1", "v2", "grpc-v2"}
    (tmp_path / "model-store").mkdir()
    arguments = [re.sub("/mnt/models", str(tmp_path), each).replace("{{.Name}}", "m") for each in container["args"]]
    start = how_to_start(arguments, {})
    assert start.flags == ["--model-store", str(tmp_path / "model-store"), "--models", "all"]
    ports = {port["containerPort"] for port in container["ports"]}
    assert start.overrides["inference_address"].endswith(f":{min(ports)}")
    assert f"containerPort: {start.overrides['grpc_inference_port']}" in text
    probes = [container[name]["httpGet"] for name in ("readinessProbe", "livenessProbe")]
    assert {(probe["path"], probe["port"]) for probe in probes} == {("/ready", 8080), ("/live", 8080)}
