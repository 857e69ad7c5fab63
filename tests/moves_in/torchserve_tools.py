"""TorchServe's own benchmark-ab.py, and the config.properties of its image, from a checkout of TorchServe.

python torchserve_tools.py CHECKOUT
"""

import csv
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import requests

REQUESTS = 200
LIMIT = 300
#: The benchmark is older than tokens, and registers models.
UNGUARDED = "disable_token_authorization=true\nenable_model_api=true\n"
HANDLER = """
def handle(data, context):
    return None if data is None else ["ok"] * len(data)
"""


def run(command: list[str], directory: Path, **environment: str) -> str:
    """Run a command to its good end; return what it said."""
    done = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    return done.stdout


def check_benchmark(checkout: Path) -> None:
    """It starts the server, registers a model, asks it with ab, and makes its report of the lines of the metrics."""
    directory = Path(tempfile.mkdtemp())
    model = directory / "noop"
    model.mkdir()
    (model / "handler.py").write_text(HANDLER)
    (directory / "input").write_text("hello")
    benchmarks = checkout / "benchmarks"
    config = directory / "config.properties"
    config.write_text(f"{(benchmarks / 'config.properties').read_text()}\n{UNGUARDED}")
    said = run(
        [
            *(sys.executable, "benchmark-ab.py", "--url", str(model), "--input", str(directory / "input")),
            *("--content_type", "text/plain", "--requests", str(REQUESTS)),
            *("--config_properties", str(config), "--tmp_dir", str(directory), "--report_location", str(directory)),
        ],
        benchmarks,
        TMPDIR=str(directory),
    )
    with (directory / "benchmark" / "ab_report.csv").open() as file:
        (report,) = csv.DictReader(file)
    assert (report["TS failed requests"], report["Requests"]) == ("0", str(REQUESTS)), said
    for name in ("Model_p50", "Queue time p50", "predict_mean", "waiting_time_mean", "worker_thread_mean"):
        assert float(report[name]) >= 0, (name, report)
    print("benchmark-ab.py:", ", ".join(f"{name} {value}" for name, value in report.items() if "TS " in name))


def check_image(checkout: Path) -> None:
    """The server starts with the image's configuration, in which only the model store is another one's here."""
    directory = Path(tempfile.mkdtemp())
    config = checkout / "docker" / "config.properties"
    environment = {"TMPDIR": str(directory)}
    start = ["torchserve", "--start", "--ncs", "--disable-token-auth", "--ts-config", str(config)]
    start += ["--model-store", str(directory)]
    with (directory / "output").open("wb") as output:
        subprocess.run(start, env=os.environ | environment, stdout=output, stderr=output, check=True, timeout=LIMIT)
    try:
        end = time.monotonic() + LIMIT
        while "Model server started." not in (directory / "output").read_text():
            assert time.monotonic() < end, (directory / "output").read_text()
            time.sleep(0.1)
        assert requests.get("http://127.0.0.1:8080/ping", timeout=LIMIT).json() == {"status": "Healthy"}
    finally:
        run(["torchserve", "--stop"], directory, **environment)
    print("config.properties of the image: starts, /ping, stops")


def main() -> None:
    """Both."""
    checkout = Path(sys.argv[1])
    check_image(checkout)
    check_benchmark(checkout)


if __name__ == "__main__":
    main()
