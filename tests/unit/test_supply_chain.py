"""The bill of materials lists what is installed; the audit says when it could check nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def install(folder: Path, name: str, version: str, *lines: str) -> None:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("\n".join(["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}", *lines]))


def test_the_bill_has_every_distribution_and_who_needs_it(tmp_path: Path) -> None:
    install(tmp_path, "torchserve_py", "9.8", "Requires-Dist: Some.Thing>=1", "Requires-Dist: absent; extra == 'x'")
    install(tmp_path, "some_thing", "1.5", "License-Expression: MIT", "Summary: A thing")
    script = [sys.executable, "-S", str(ROOT / "scripts" / "sbom")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    bill = json.loads(subprocess.run(script, env=environment, capture_output=True, check=True).stdout)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    assert bill["metadata"]["component"]["purl"] == "pkg:pypi/torchserve-py@9.8"
    (thing,) = bill["components"]
    assert (thing["purl"], thing["licenses"]) == ("pkg:pypi/some-thing@1.5", [{"expression": "MIT"}])
    edges = {each["ref"]: each["dependsOn"] for each in bill["dependencies"]}
    assert edges == {"pkg:pypi/torchserve-py@9.8": ["pkg:pypi/some-thing@1.5"], "pkg:pypi/some-thing@1.5": []}


def test_an_audit_that_reaches_nothing_says_so_and_fails_only_if_it_must_not(tmp_path: Path) -> None:
    environment = {**os.environ, "https_proxy": "http://127.0.0.1:9", "PYTHON": sys.executable, "no_proxy": ""}
    for arguments, code in (([], 0), (["--strict"], 2)):
        ran = subprocess.run(
            [str(ROOT / "scripts" / "audit"), *arguments], env=environment, capture_output=True, text=True, check=False
        )
        assert ran.returncode == code
        assert "NOT AUDITED" in ran.stdout
