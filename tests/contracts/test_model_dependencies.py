"""Models that bring packages of their own: installed for their workers alone, from files in the archive."""

import sys
import zipfile
from pathlib import Path

import pytest
import requests
from tests.e2e.running_server import DEADLINE, RunningServer, model_folder

from torchserve_py.archives.archiver.pack import PackOptions, pack

HANDLER = """
import json
import sys


def handle(data, context):
    if data is None:
        return None
    found = {"prefix": sys.prefix, "base": sys.base_prefix}
    for name in ("tinydep", "typing_extensions", "msgpack", "ts"):
        try:
            module = __import__(name)
            found[name] = str(getattr(module, "VERSION", module.__file__))
        except ImportError:
            found[name] = None
    return [json.dumps(found) for _ in data]
"""


def write_wheel(folder: Path, name: str, version: str) -> Path:
    """Write a wheel with one module, which says its version."""
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, content in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(path, content)
    return wheel


def pack_model(store: Path, sources: Path, name: str, requirements: str | None, config: str = "") -> None:
    """Pack a model whose wheels lie in `sources`."""
    folder = sources / name
    folder.mkdir()
    (folder / "handler.py").write_text(HANDLER)
    (folder / "model-config.yaml").write_text(config)
    if requirements is not None:
        (folder / "requirements.txt").write_text(requirements)
    pack(
        PackOptions(
            model_name=name,
            version="1.0",
            handler=str(folder / "handler.py"),
            extra_files=",".join(map(str, sources.glob("*.whl"))) or None,
            requirements_file=str(folder / "requirements.txt") if requirements is not None else None,
            config_file=str(folder / "model-config.yaml"),
            export_path=str(store),
        )
    )


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    write_wheel(tmp_path, "tinydep", "1.5")
    write_wheel(tmp_path, "typing_extensions", "99.0")
    return tmp_path


def private_folders(running: RunningServer) -> list[Path]:
    return sorted(running.temp.glob("ts-server-*/models/*"))


NO_INDEX = {"PIP_NO_INDEX": "1"}
INSTALL = {"install_py_dep_per_model": "true"}
BOTH = "tinydep-1.5-py3-none-any.whl\n./typing_extensions-99.0-py3-none-any.whl\n"


def test_packages_are_installed_for_the_workers_of_a_model(sources: Path) -> None:
    with RunningServer(properties=INSTALL, environment=NO_INDEX) as running:
        pack_model(running.model_store, sources, "with", BOTH)
        pack_model(running.model_store, sources, "without", None)
        for name in ("with", "without"):
            assert running.register(f"{name}.mar").status_code == 200
        found = running.predict("with").json()
        assert (found["tinydep"], found["typing_extensions"]) == ("1.5", "99.0")
        others = running.predict("without").json()
        assert others["tinydep"] is None
        assert others["typing_extensions"] != "99.0"
        assert "Successfully installed tinydep-1.5" in running.log()
        assert len(private_folders(running)) == 3
        assert running.unregister("with").status_code == 200
        assert len(private_folders(running)) == 1


def test_a_virtual_environment_has_its_own_packages_and_those_of_the_server(sources: Path) -> None:
    with RunningServer(properties=INSTALL, environment=NO_INDEX) as running:
        pack_model(running.model_store, sources, "m", BOTH, "useVenv: true\n")
        response = running.register("m.mar")
        assert response.status_code == 200, response.text
        found = running.predict("m").json()
        assert (found["tinydep"], found["typing_extensions"]) == ("1.5", "99.0")
        assert found["prefix"].endswith("/venv")
        assert str(running.temp) in found["prefix"]
        assert found["msgpack"]
        assert found["ts"]
        assert running.unregister("m").status_code == 200
        assert private_folders(running) == []


def test_a_virtual_environment_is_made_without_packages_too(sources: Path) -> None:
    with RunningServer(environment=NO_INDEX) as running:
        pack_model(running.model_store, sources, "m", BOTH, "useVenv: true\n")
        assert running.register("m.mar").status_code == 200
        found = running.predict("m").json()
        assert found["prefix"].endswith("/venv")
        assert found["tinydep"] is None
        assert found["msgpack"]


def test_nothing_is_installed_unless_it_is_asked_for(sources: Path) -> None:
    with RunningServer(environment=NO_INDEX) as running:
        pack_model(running.model_store, sources, "m", BOTH)
        assert running.register("m.mar").status_code == 200
        assert running.predict("m").json()["tinydep"] is None


@pytest.mark.parametrize("config", ["", "useVenv: true\n"])
def test_packages_that_cannot_be_installed_are_told(sources: Path, config: str) -> None:
    with RunningServer(properties=INSTALL, environment=NO_INDEX) as running:
        pack_model(running.model_store, sources, "m", "there-is-no-such-package\n", config)
        response = running.register("m.mar")
        assert response.status_code == 400
        error = response.json()
        assert error["type"] == "ModelException"
        assert error["message"].startswith("Custom pip package installation failed for model m")
        assert "there-is-no-such-package" in error["message"]
        assert private_folders(running) == []
        assert requests.get(f"{running.management}/models/m", timeout=DEADLINE).status_code == 404


OWN_NAMES = """
import utils


def handle(data, context):
    import calendar, csv, html, json, numbers, queue, random, secrets, statistics, string, token, types, uuid

    return data and [json.dumps([utils.WHO, random.random() < 1, queue.Queue().empty(), token.NAME])] * len(data)
"""


def test_files_with_the_names_of_pythons_modules_break_neither_worker_nor_requests(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "named", OWN_NAMES)
    for name in sys.stdlib_module_names:
        (folder / f"{name}.py").write_text("raise RuntimeError('imported in place of a module of Python's')\n")
    (folder / "utils.py").write_text("WHO = 'own'\n")
    with RunningServer({"named": folder}, {"drain_timeout": 1}) as server:
        server.wait_ready()
        url, expected = f"{server.inference}/predictions/named", ["own", True, True, 1]
        assert requests.post(url, data=b"x", timeout=DEADLINE).json() == expected
        assert requests.post(url, json={"a": 1}, timeout=DEADLINE).json() == expected
        assert requests.post(url, files={"a": ("a", b"x")}, timeout=DEADLINE).json() == expected
        tensor = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}
        url = f"{server.inference}/v2/models/named/infer"
        assert requests.post(url, json={"inputs": [tensor]}, timeout=DEADLINE).status_code == 200
        assert "The model's random.py is not imported, as Python has a module of that name" in server.log()
