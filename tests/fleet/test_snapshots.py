"""A server that is restarted serves what it served before."""

import json
import shutil
import subprocess
from pathlib import Path

import requests
from tests.e2e.running_server import DEADLINE, HANDLERS, RunningServer, eventually, model_folder

from torchserve_py.base.settings.properties import read_properties


class SnapshotServer(RunningServer):
    """A server with snapshots; only its first start is given a configuration file and models."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.command.remove("--ncs")

    @property
    def snapshots(self) -> list[Path]:
        return sorted((self.directory / "logs" / "config").glob("*.cfg"), key=lambda path: path.name)

    def restart(self, *arguments: str) -> None:
        """Stop the server and start it again, with nothing but `arguments`."""
        if self.process is not None and self.process.poll() is None:
            assert self.terminate() == 0
        self.command = [*self.command[: self.command.index("--start") + 1], *arguments]
        self.output.unlink()
        self.start()


def models_in(path: Path) -> dict[str, dict[str, dict[str, object]]]:
    (text,) = (each.value for each in read_properties(path) if each.key == "model_snapshot")
    models: dict[str, dict[str, dict[str, object]]] = json.loads(text)["models"]
    return models


def test_a_restart_brings_back_what_was_served() -> None:
    with SnapshotServer({"echo": HANDLERS / "echo"}) as running:
        running.wait_ready()
        shutil.copytree(HANDLERS / "echo", running.model_store / "second")
        assert running.register("second", model_name="other", batch_size=3, max_batch_delay=7).status_code == 200
        assert running.scale("other", 2).status_code == 200
        eventually(
            lambda: models_in(running.snapshots[-1]).get("other", {}).get("1.0", {}).get("minWorkers") == 2,
            "a snapshot with two workers",
        )
        running.restart()
        running.wait_ready()
        (other,) = running.describe("other")
        assert (other["minWorkers"], other["maxWorkers"], other["batchSize"], other["maxBatchDelay"]) == (2, 2, 3, 7)
        assert len(other["workers"]) == 2
        assert running.predict("echo", "hello").text == "hello"
        assert running.predict("other", "hello").text == "hello"
        names = [path.stem.split("-")[1] for path in running.snapshots]
        assert names.count("startup") == 2
        assert names.count("shutdown") == 1
        assert {path.stat().st_mode & 0o777 for path in running.snapshots} == {0o600}


def test_what_is_unregistered_stays_away_and_models_of_the_command_line_win() -> None:
    with SnapshotServer({"echo": HANDLERS / "echo", "gone": HANDLERS / "echo"}) as running:
        running.wait_ready()
        assert running.unregister("gone").status_code == 200
        running.restart()
        running.wait_ready()
        listed = requests.get(f"{running.management}/models", timeout=DEADLINE).json()["models"]
        assert [each["modelName"] for each in listed] == ["echo"]
        running.restart("--models", f"third={HANDLERS / 'echo'}")
        running.wait_ready()
        listed = requests.get(f"{running.management}/models", timeout=DEADLINE).json()["models"]
        assert [each["modelName"] for each in listed] == ["third"]
        assert "flag --models says which models are loaded, so those of logs/config/" in running.log()


def test_a_server_does_not_start_without_an_archive_that_it_served() -> None:
    with SnapshotServer() as running:
        shutil.copytree(HANDLERS / "echo", running.model_store / "echo")
        assert running.register("echo").status_code == 200
        assert running.terminate() == 0
        shutil.rmtree(running.model_store / "echo")
        running.command = running.command[: running.command.index("--start") + 1]
        running.output.unlink()
        with running.output.open("wb") as output:
            code = subprocess.run(
                running.command,
                cwd=running.directory,
                env=running.environment,
                stdout=output,
                stderr=output,
                timeout=DEADLINE,
                check=False,
            ).returncode
        assert code == 1
        assert running.log().splitlines() == [
            "Model archive file for model :echo, version :1.0 not found in model store"
        ]


def test_without_snapshots_none_is_read_or_written() -> None:
    with RunningServer({"echo": HANDLERS / "echo"}) as running:
        running.wait_ready()
        assert running.terminate() == 0
        assert not (running.directory / "logs" / "config").exists()


def test_a_model_that_could_not_be_loaded_is_tried_again(tmp_path: Path) -> None:
    with SnapshotServer({"broken": tmp_path / "broken", "echo": HANDLERS / "echo"}) as running:
        eventually(lambda: running.describe("echo")[0]["workers"][0]["status"] == "READY", "echo is ready")
        ready = requests.get(f"{running.inference}/ready", timeout=DEADLINE)
        assert ready.status_code == 503
        assert ready.json()["reasons"] == ['The start-up model "broken" could not be loaded; the log says why.']
        model_folder(tmp_path, "broken", "def handle(data, context):\n    return data\n")
        running.restart()
        running.wait_ready()
        assert running.predict("broken").status_code == 200


def test_a_registration_of_a_start_up_model_that_failed_makes_the_server_ready(tmp_path: Path) -> None:
    with RunningServer({"broken": tmp_path / "broken"}) as running:
        assert requests.get(f"{running.inference}/ready", timeout=DEADLINE).status_code == 503
        folder = model_folder(tmp_path, "broken", "def handle(data, context):\n    return data\n")
        assert running.register(folder, model_name="broken").status_code == 200
        running.wait_ready()
