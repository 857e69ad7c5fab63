"""``import mlserver`` gives our API where MLServer is not installed, and MLServer where it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BACKEND = Path(__file__).resolve().parents[4] / "backend"


def run(code: str, *folders: Path) -> None:
    path = ":".join(str(folder) for folder in (BACKEND, *folders))
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": path}, check=True)


def test_every_module_is_ours_under_both_names() -> None:
    run(
        "from ts.mlserver import stand_in\n"
        "assert stand_in.provide() and stand_in.provide()\n"
        "import mlserver, mlserver.codecs.string, importlib\n"
        "from mlserver import MLModel, ModelSettings, Settings, log, register\n"
        "from mlserver.handlers.custom import custom_handler\n"
        "from mlserver.errors import InferenceError, MLServerError, ModelNotFound\n"
        "from mlserver.logging import logger\n"
        "from mlserver.utils import generate_uuid, get_model_uri\n"
        "from mlserver.codecs.utils import get_decoded_or_raw\n"
        "import ts.mlserver, ts.mlserver.codecs.string as ours\n"
        "assert mlserver is ts.mlserver and mlserver.codecs.string is ours\n"
        "assert mlserver.__version__\n"
        "try:\n    import mlserver.grpc\n"
        "except ModuleNotFoundError as error: assert error.name == 'mlserver.grpc'\n"
        "else: raise AssertionError\n"
    )


def test_mlserver_itself_is_used_where_it_is_installed(tmp_path: Path) -> None:
    (tmp_path / "mlserver.py").write_text("real = True\n")
    run(
        "from ts.mlserver import stand_in\nassert not stand_in.provide()\nimport mlserver\nassert mlserver.real\n",
        tmp_path,
    )
