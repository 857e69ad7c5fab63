"""`ts.launcher`, as a script uses it."""

from pathlib import Path

from tests.e2e.workplace import Workplace

SCRIPT = """
import sys
import urllib.request

from ts import launcher

management, inference, handlers = sys.argv[1:]
launcher.MANAGEMENT_ADDRESS = management
lines = launcher.start(
    model_store="model_store",
    no_config_snapshots=True,
    disable_token=True,
    models=f"first={handlers}/echo",
    enable_model_api=True,
)
response = launcher.register_model("second", f"{handlers}/echo")
print(response.status_code, response.json()["status"])
print(launcher.register_model("third", "no-such-model").status_code)
request = urllib.request.Request(f"{inference}/predictions/second", b"hello", {"content-type": "text/plain"})
answer = urllib.request.urlopen(request, timeout=180)
print(answer.read().decode())
launcher.stop()
while "has stopped" not in lines.get(timeout=180):
    pass
try:
    launcher.start(model_store="gone")
except RuntimeError as error:
    print(error)
"""


def test_a_script_starts_a_server_registers_a_model_and_stops_it(tmp_path: Path) -> None:
    with Workplace(tmp_path) as workplace:
        (tmp_path / "script.py").write_text(SCRIPT)
        code, output = workplace.run(
            f"python script.py {workplace.management} {workplace.inference} {tmp_path / 'handlers'}"
        )
        assert code == 0, output
        printed = [line for line in output.splitlines() if not line.startswith("Stopping process ")]
        assert printed == [
            "TorchServe is not currently running.",
            '200 Model "second" Version: 1.0 registered with 1 initial workers',
            "404",
            "hello",
            "TorchServe has stopped.",
            "TorchServe is not currently running.",
            "The server did not start: --model-store directory not found: gone",
        ]
        assert workplace.ports_are_free()
