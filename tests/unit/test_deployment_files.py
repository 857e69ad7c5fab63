"""The examples in deploy/ name what there is: flags, settings, ports, probes; and each is valid for what reads it."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from torchserve_py.apis.grpc.grpc_settings import GrpcSettings
from torchserve_py.base.settings.flags import parse_flags
from torchserve_py.base.settings.resolution import Resolution
from torchserve_py.base.settings.table import Settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
STARTER = ROOT / "frontend" / "torchserve_py" / "tools" / "quickstart" / "starter"
UNIT = DEPLOY / "torchserve-py.service"
STORE = ["--model-store", str(ROOT / "model_store")]


def load(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    return Resolution(parse_flags(argv), environ, Path.cwd()).settings()


@pytest.fixture
def container() -> Settings:
    """The settings of the image."""
    return load(["--start", *STORE, "--ts-config", str(DEPLOY / "container.properties")], {})


def ports(settings: Settings) -> dict[str, int]:
    """What the image listens at, where others reach it."""
    return {
        "http": settings.inference_address.port,
        "metrics": settings.metrics_address.port,
        "grpc": settings.of(GrpcSettings).grpc_inference_port,
    }


def directives() -> dict[str, str]:
    lines = [line for line in UNIT.read_text().splitlines() if line and line[0] not in "#["]
    return dict(line.split("=", 1) for line in lines)


def objects() -> dict[str, Any]:
    return {each["kind"]: each for each in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}


def test_operations_names_each_of_them() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    named = set(re.findall(r"\(\.\./deploy/([\w.-]+)\)", text))
    assert named == {path.name for path in DEPLOY.iterdir()} - {"container.properties"}


def test_the_image_exposes_its_ports_and_starts_with_flags_that_there_are(container: Settings) -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    assert "COPY deploy/container.properties config.properties" in text
    exposed = next(line.split()[1:] for line in text.splitlines() if line.startswith("EXPOSE"))
    assert set(map(str, ports(container).values())) <= set(exposed)
    program, flags = (yaml.safe_load(re.findall(rf"^{key} (.*)$", text, re.M)[0]) for key in ("ENTRYPOINT", "CMD"))
    assert program == ["python", "-m", "torchserve_py.tools.operator_tools.container"]
    load(["--start", *flags, *STORE], {})


def test_both_images_run_as_a_user_without_rights_and_have_what_the_server_needs() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    stages = dict(re.findall(r"^FROM \S+ AS (\w+)$(.*?)(?=^FROM|\Z)", text, re.M | re.S))
    assert list(stages) == ["wheel", "server", "cuda", "cpu"], "docker build without a target makes the last one"
    assert 'ARG EXTRAS="[torch,gpu]"' in stages["cuda"]
    for name in ("cuda", "cpu"):
        assert stages[name].rstrip().endswith("USER 1000")
        assert '"$(echo /wheels/*.whl)${EXTRAS}"' in stages[name]
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {name for name, _ in re.findall(r"^COPY (\S+) (\S+)$", text, re.M)} - {"."}
    assert copied | {"backend", "frontend", "setup.cfg", "setup.py", "pyproject.toml", "README.md", "LICENSE"} <= sent
    assert all((ROOT / name).exists() for name in sent)


def test_hadolint_finds_no_fault_with_the_images() -> None:
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert hadolint is not None
    ran = subprocess.run(
        [
            hadolint,
            "--no-color",
            "--failure-threshold",
            "style",
            str(DEPLOY / "Dockerfile"),
            str(STARTER / "Dockerfile"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_pods_have_the_images_ports_probes_that_answer_and_time_to_drain(container: Settings) -> None:
    found = objects()
    pod = found["Deployment"]["spec"]["template"]["spec"]
    (server,) = pod["containers"]
    settings = load(["--start", *STORE, *server["args"]], {})
    assert found["Service"]["metadata"]["name"] in settings.allowed_hosts
    assert {port["name"]: port["containerPort"] for port in server["ports"]} == ports(container)
    annotations = found["Deployment"]["spec"]["template"]["metadata"]["annotations"]
    assert int(annotations["prometheus.io/port"]) == ports(container)["metrics"]
    for port in found["Service"]["spec"]["ports"]:
        assert port["targetPort"] == port["name"] and port["port"] == ports(container)[port["name"]]
    probes = {name: server[name]["httpGet"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert {name: (probe["path"], probe["port"]) for name, probe in probes.items()} == {
        "startupProbe": ("/ready", "http"),
        "readinessProbe": ("/ready", "http"),
        "livenessProbe": ("/live", "http"),
    }
    pause = int(server["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > container.drain_timeout + pause
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert found["Service"]["spec"]["selector"] == labels == found["Deployment"]["spec"]["selector"]["matchLabels"]


def test_the_unit_starts_with_flags_that_there_are_and_leaves_time_to_drain(tmp_path: Path) -> None:
    unit = directives()
    program, *flags = shlex.split(unit["ExecStart"])
    assert program.endswith("/torchserve-py")
    flags[flags.index("--ts-config") + 1] = str(tmp_path / "config.properties")
    (tmp_path / "config.properties").write_text(f"model_store={STORE[1]}")
    environment = dict(each.split("=", 1) for each in shlex.split(unit["Environment"]))
    settings = load(flags, environment)
    assert settings.log_location == Path("/var/log") / unit["LogsDirectory"]
    assert int(unit["TimeoutStopSec"]) > settings.drain_timeout


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    program = tmp_path / "torchserve-py"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / UNIT.name
    text = UNIT.read_text().replace("/opt/torchserve-py/bin/torchserve-py", str(program))
    unit.write_text(re.sub(r"^(User|Group)=.*\n", "", text, flags=re.M))  # users that only a real host has
    ran = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    complaints = [line for line in ran.stderr.splitlines() if UNIT.name in line]
    assert complaints == []
