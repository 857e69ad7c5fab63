"""The packages that a model brings: installed with pip from its requirements file, for its workers alone.

They go into a folder below `temp_dir` that is the model's own, never into a folder of the user's and never into the
server's environment. With `useVenv` that is a virtual environment, whose interpreter the workers run with; what it
lacks comes from the server's environment. Without, it is a folder that the workers look for modules in first.
"""

import asyncio
import contextlib
import importlib.util
import logging
import os
import shutil
import signal
import site
import uuid
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torchserve_py.base.settings.server_settings import secret_variables
from torchserve_py.base.settings.table import Settings
from torchserve_py.core.archive.model_files import ModelFiles
from torchserve_py.core.plans.plan import Plan
from torchserve_py.core.serving.errors import DependencyError
from torchserve_py.core.workers.launch_command import interpreter, worker_package_root

logger = logging.getLogger(__name__)

#: How long creating an environment, or installing the packages of one model, may take (seconds).
_LIMIT = 1800.0
#: How long a command that was sent SIGKILL may take to go (seconds).
_KILL_LIMIT = 10.0
_TOLD_LINES = 5
_LINE_LIMIT = 1 << 20
_LISTED = "requirements.txt"
_PIP = ("-m", "pip", "install", "--no-input", "--disable-pip-version-check")


class _CommandFailed(Exception):
    """A command ended with an error; `str()` is the end of its output."""


async def install(plan: Plan, settings: Settings) -> ModelFiles:
    """Install what a model needs, as `Plugin.packages` says."""
    if not settings.install_py_dep_per_model and (plan.requirements or plan.requirements_file):
        text = "%s: its requirements are not installed, because install_py_dep_per_model is not true"
        logger.info(text, plan.name)
    return await install_dependencies(
        plan.files,
        plan.name,
        settings.temp_dir,
        use_venv=plan.config.use_venv,
        requirements=settings.install_py_dep_per_model,
        runtime=plan.config.runtime,
        listed=plan.requirements,
        file=plan.requirements_file,
    )


async def install_dependencies(
    files: ModelFiles,
    model_name: str,
    temp_dir: Path,
    *,
    use_venv: bool,
    requirements: bool,
    runtime: str,
    file: str | None,
    listed: Sequence[str] = (),
) -> ModelFiles:
    """Prepare what the workers of a model need; return its files with where that is.

    Args:
        use_venv: Whether the model has a virtual environment; it is made even if nothing is installed into it.
        requirements: Whether its requirements, if it has any, are installed (`install_py_dep_per_model`).
        runtime: The interpreter, `python` or `python3`.
        file: Its requirements file, by the path in its folder.
        listed: Further requirements, each as a line of such a file.

    Raises DependencyError: the preparation failed; its files are removed. The log has all output of pip.
    """
    if not requirements:
        file, listed = None, ()
    if not use_venv and file is None and not listed:
        return files
    folder = temp_dir.absolute() / "models" / uuid.uuid4().hex
    venv_python = folder / "venv" / "bin" / "python" if use_venv else None
    packages_dir = None if use_venv else folder / "packages"
    try:
        folder.mkdir(mode=0o700, parents=True)
        python = str(interpreter(runtime))
        if use_venv:
            await _make_venv(python, folder, model_name)
        required = [files.model_dir / file] if file else []
        if listed:
            (folder / _LISTED).write_text("\n".join([*listed, ""]))
            required.append(folder / _LISTED)
        if required:
            where = ["-t", str(packages_dir)] if packages_dir else ["--upgrade-strategy", "only-if-needed"]
            command = [str(venv_python or python), *_PIP, "-U", *where]
            await _install(command, required, files.model_dir, model_name)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise DependencyError(f"Custom pip package installation failed for model {model_name}: {error}") from error
        raise
    return replace(files, dependencies_dir=folder, venv_python=venv_python, packages_dir=packages_dir)


async def _make_venv(python: str, folder: Path, model_name: str) -> None:
    # The server's own pip serves the environment as well, and spares it three seconds; where it has none, one is made.
    options = ["--without-pip"] if importlib.util.find_spec("pip") else []
    try:
        await _run([python, "-m", "venv", *options, str(folder / "venv")], folder, model_name)
        (library,) = (folder / "venv" / "lib").glob("python*/site-packages")
        (library / "torchserve_py.pth").write_text(_inherited())
    except (_CommandFailed, OSError, ValueError) as error:
        raise DependencyError(f"Virtual environment creation failed for model {model_name}: {error}") from error


def _inherited() -> str:
    """The lines of a .pth file that put the server's packages, and the worker's own, behind those of an environment."""
    folders = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    # Not the bare paths: packages that are installed for editing are found through the .pth files in these folders.
    lines = [f"import site; site.addsitedir({folder!r})" for folder in folders]
    return "\n".join([*lines, str(worker_package_root())]) + "\n"


async def _install(command: Sequence[str], required: Sequence[Path], model_dir: Path, model_name: str) -> None:
    try:  # in the model's folder: its requirements may name files that lie there
        files = [argument for path in required for argument in ("-r", str(path))]
        await _run([*command, *files], model_dir, model_name)
    except _CommandFailed as error:
        raise DependencyError(f"Custom pip package installation failed for model {model_name}: {error}") from error


async def _run(command: list[str], directory: Path, model_name: str) -> None:
    """Run a command and log its output; on a time-out or a cancellation kill it with all processes it started."""
    logger.info("%s: %s", model_name, " ".join(command))
    hidden = secret_variables() | {"PIP_TARGET", "PIP_USER"}  # packages run code as they are built
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=directory,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
        limit=_LINE_LIMIT,
    )
    last = deque[str](maxlen=_TOLD_LINES)
    try:
        async with asyncio.timeout(_LIMIT):
            assert process.stdout is not None
            async for raw in process.stdout:
                if line := raw.decode("utf-8", "replace").rstrip():
                    logger.info("%s: %s", model_name, line)
                    last.append(line)
            code = await process.wait()
    except TimeoutError:
        raise _CommandFailed(f"it took longer than {_LIMIT:g} s") from None
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(TimeoutError):  # a process that hangs in the kernel survives even SIGKILL
                await asyncio.wait_for(process.wait(), _KILL_LIMIT)
    if code != 0:
        errors = [line for line in last if line.startswith("ERROR:")]
        said = errors[-1].removeprefix("ERROR:").strip() if errors else " ".join(last)
        raise _CommandFailed(said or f"it ended with code {code}")
