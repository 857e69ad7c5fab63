"""The Helm chart, rendered by Helm, and KServe's runtime: valid for Kubernetes, and true to what the server does."""

import re
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate
import pytest
import yaml

from torchserve_py.apis.grpc.grpc_settings import GrpcSettings
from torchserve_py.base.settings.flags import parse_flags
from torchserve_py.base.settings.resolution import Resolution
from torchserve_py.tools.operator_tools.container import how_to_start

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "chart"
KUBERNETES = "1.25"
#: Objects of the Prometheus operator.
OF_OPERATOR = {"ServiceMonitor", "PrometheusRule"}
EVERYTHING = {
    "autoscaling": {"enabled": True},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
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


def render(values: dict[str, Any], name: str = "demo") -> Objects:
    """Render the chart with values as a release of a name; return its objects by kind."""
    with helm_python.Chart.load(CHART) as chart:
        texts = chart.render(values, name=name, namespace="models")
    found = [yaml.safe_load(text) for path, text in texts.items() if path.endswith(".yaml")]
    return {each["kind"]: each for each in found if each}


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_helm_finds_no_fault_with_the_chart(values: dict[str, Any]) -> None:
    assert helm_python.lint(CHART, values, strict=True)["errors"] == []
    with helm_python.Chart.load(CHART) as chart:
        notes = chart.render(values, name="demo")["torchserve-py/templates/NOTES.txt"]
    assert "http://demo:8080" in notes
    assert ("Requests need no token" in notes) is not values.get("tokens", False)


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_kubernetes_takes_every_object(values: dict[str, Any]) -> None:
    found = render(values)
    for kind, each in found.items():
        if kind not in OF_OPERATOR:
            kubernetes_validate.validate(each, KUBERNETES, strict=True)
    always = {"ConfigMap", "Deployment", "PodDisruptionBudget", "Service"}
    assert set(found) == always | ({"HorizontalPodAutoscaler", *OF_OPERATOR} if values else {"PersistentVolumeClaim"})


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_the_server_takes_the_configuration_and_has_time_to_drain(tmp_path: Path, values: dict[str, Any]) -> None:
    found = render(values)
    config = tmp_path / "config.properties"
    config.write_text(found["ConfigMap"]["data"]["config.properties"])
    pod = found["Deployment"]["spec"]["template"]["spec"]
    (server,) = pod["containers"]
    flags = ["--start", "--ts-config", str(config), "--model-store", str(tmp_path), *server["args"]]
    settings = Resolution(parse_flags(flags), {}, tmp_path).settings()
    assert {port["name"]: port["containerPort"] for port in server["ports"]} == {
        "http": settings.inference_address.port,
        "metrics": settings.metrics_address.port,
        "grpc": settings.of(GrpcSettings).grpc_inference_port,
    }
    assert settings.disable_token_authorization is not values.get("tokens", False)
    pause = int(server["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > settings.drain_timeout + pause


def test_requests_may_name_the_service_and_what_the_values_add(tmp_path: Path) -> None:
    config = tmp_path / "config.properties"
    config.write_text(render({"allowedHosts": ["m.example"]})["ConfigMap"]["data"]["config.properties"])
    flags = ["--start", "--ts-config", str(config), "--model-store", str(tmp_path)]
    settings = Resolution(parse_flags(flags), {}, tmp_path).settings()
    service = "demo.models.svc"
    assert settings.allowed_hosts == ("demo", "demo.models", service, f"{service}.cluster.local", "m.example")
    assert "allowed_hosts" not in render({"tokens": True})["ConfigMap"]["data"]["config.properties"]


def test_everything_selects_the_pods_of_the_chart() -> None:
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


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"replica": 3}, "'replica' not allowed"),
        ({"image": {"pullPolicy": "never"}}, "/image/pullPolicy"),
        ({"service": {"http": 0}}, "/service/http"),
    ],
)
def test_values_are_checked(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(helm_python.HelmError, match=re.escape(told)):
        render(wrong)


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


@pytest.mark.parametrize("name", ["alerts.yaml", "recording-rules.yaml"])
def test_the_rules_of_the_chart_are_those_of_prometheus(name: str) -> None:
    (group,) = yaml.safe_load((ROOT / "deploy" / "prometheus" / name).read_text())["groups"]
    (shown,) = [
        each for each in render(EVERYTHING)["PrometheusRule"]["spec"]["groups"] if each["name"] == group["name"]
    ]
    assert {rule.get("alert", rule.get("record")): rule["expr"] for rule in shown["rules"]} == {
        rule.get("alert", rule.get("record")): rule["expr"] for rule in group["rules"]
    }


def test_the_values_and_the_ingress_of_the_page_about_deployment_are_valid() -> None:
    page = (ROOT / "docs" / "deploy.md").read_text()
    blocks = dict(re.findall(r"^```yaml\n# (\w+)\.yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    values, ingress = yaml.safe_load(blocks["values"]), yaml.safe_load(blocks["ingress"])
    assert helm_python.lint(CHART, values, strict=True)["errors"] == []
    found = render(values, "models")
    for each in (found["Deployment"], ingress):
        kubernetes_validate.validate(each, KUBERNETES, strict=True)
    (server,) = found["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert {each["name"] for each in server["env"]} == {"TS_INFERENCE_KEYS", "TS_MANAGEMENT_KEYS"}
    assert "disable_token_authorization=false" in found["ConfigMap"]["data"]["config.properties"]
    (rule,) = ingress["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    service = found["Service"]
    assert path["backend"]["service"]["name"] == service["metadata"]["name"]
    assert path["backend"]["service"]["port"]["number"] in [port["port"] for port in service["spec"]["ports"]]
    assert service["spec"]["sessionAffinity"] == "None"
