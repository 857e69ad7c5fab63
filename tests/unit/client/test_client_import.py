"""Where a package is missing, importing the client says what to install."""

import subprocess
import sys

from tests.e2e.running_server import DEADLINE

WITHOUT_HTTPX = "import sys; sys.modules['httpx'] = None; import torchserve_py.client"


def test_a_missing_package_is_named_with_the_command_that_installs_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_HTTPX], capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: the client needs the package httpx: pip install 'torchserve-py[client]'"
    )
