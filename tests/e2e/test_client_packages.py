"""The client as packages of its own, for Python and for browsers: built, installed, and used without the server."""

import importlib.metadata
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from tests.e2e.running_server import DEADLINE, ROOT

import torchserve_py.client
from torchserve_py.version import __version__

CLIENTS = ROOT / "clients"
#: What the wheel needs, from the environment of the tests.
NEEDED = ("httpx", "httpcore", "h11", "anyio", "idna", "certifi", "sniffio", "typing_extensions", "websockets")
USE = """
import sys
from torchserve_py_client import AsyncClient, Client, RequestFailed, Session

try:
    with Client(sys.argv[1]) as client:
        client.predict("net", [1, 2, 3])
except RequestFailed as failed:
    print(failed.status, failed)
print([name for name in sys.modules if name in ("torchserve_py", "ts", "pydantic", "numpy", "torch")])
"""


@contextmanager
def refusing_server() -> Iterator[str]:
    """Run a server that knows no model; yield its URL."""

    class Refusing(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = b'{"code": 404, "type": "ModelNotFoundException", "message": "Model not found: net"}'
            assert self.rfile.read(int(self.headers["Content-Length"])) == b"[1,2,3]"
            self.send_response(404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *said: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def run(*command: object, folder: Path) -> str:
    done = subprocess.run(
        [str(each) for each in command], cwd=folder, capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("client")
    shutil.copytree(CLIENTS / "python", folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "made", folder / "source", folder=folder)
    (made,) = (folder / "made").glob("*.whl")
    return made


def test_the_python_package_has_the_client_and_not_the_server(wheel: Path, tmp_path: Path) -> None:
    names = [name for name in zipfile.ZipFile(wheel).namelist() if not name.split("/")[0].endswith(".dist-info")]
    sources = [path.name for path in Path(torchserve_py.client.__file__).parent.glob("*.py")]
    assert sorted(names) == sorted(f"torchserve_py_client/{name}" for name in (*sources, "py.typed"))
    run(
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        tmp_path / "site",
        wheel,
        folder=tmp_path,
    )
    (installed,) = importlib.metadata.distributions(path=[str(tmp_path / "site")])
    assert installed.version == __version__
    assert {re.split("[<>=]", each)[0] for each in installed.requires or () if "extra ==" not in each} == {
        "httpx",
        "websockets",
    }
    for name in NEEDED:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            place = Path(spec.origin)
            place = place.parent if place.name == "__init__.py" else place
            (tmp_path / "site" / place.name).symlink_to(place)
    (tmp_path / "use.py").write_text(USE)
    with refusing_server() as url:
        path = str(tmp_path / "site")
        code = f"import sys; sys.path[:0] = [{path!r}]; sys.argv = ['', {url!r}]; exec(open('use.py').read())"
        printed = run(sys.executable, "-I", "-S", "-c", code, folder=tmp_path)
    assert printed.splitlines() == ["404 Model not found: net", "[]"]


def test_the_npm_package_has_the_module_and_types_of_all_that_it_exports(tmp_path: Path) -> None:
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("needs Node.js and npm")
    shutil.copytree(CLIENTS / "npm", tmp_path / "clients" / "npm")
    module = Path(torchserve_py.client.__file__).with_name("live-session.js")
    (tmp_path / "frontend/torchserve_py/client").mkdir(parents=True)
    shutil.copy(module, tmp_path / "frontend/torchserve_py/client")
    command = "npm pack --silent ./clients/npm"
    for page in ("docs/client.md", "clients/npm/README.md"):
        assert command.replace(" --silent", "") in (ROOT / page).read_text().replace(" --silent", "").replace("\n", " ")
    packed = run(*command.split(), folder=tmp_path).strip().splitlines()[-1]
    page = tmp_path / "page"
    page.mkdir()
    (page / "package.json").write_text('{"type": "module", "private": true}')
    run("npm", "install", "--silent", "--offline", "--no-audit", tmp_path / packed, folder=page)
    installed = page / "node_modules" / "torchserve-py-client"
    assert json.loads((installed / "package.json").read_text())["version"] == __version__
    assert sorted(path.name for path in installed.iterdir()) == [
        "README.md",
        "live-session.d.ts",
        "live-session.js",
        "package.json",
    ]
    script = 'console.log(Object.keys(await import("torchserve-py-client")).sort().join(" "))'
    exported = run("node", "--input-type=module", "-e", script, folder=page).split()
    types = (installed / "live-session.d.ts").read_text()
    assert exported == sorted(re.findall(r"^export class (\w+)", types, re.MULTILINE))
    body = types[types.index("export class LiveSession") :]
    for name in ("static open", "readonly sequence", "readonly window", "step", "stream", "close"):
        assert re.search(rf"^  {name}\b", body, re.MULTILINE), name
