"""Settings that need or contradict each other: mistakes that keep the server from starting, and doubtful values."""

from collections.abc import Iterator, Mapping
from typing import Any

from torchserve_py.settings.schemas.versions import VERSION_KEYS, VersionSettings
from torchserve_py.settings.table import SOURCES, Effective

_PEM_FILES = ("certificate_file", "private_key_file")
_CORS = ("cors_allowed_origin", "cors_allowed_methods", "cors_allowed_headers")
#: Settings about processes of this machine.
_LOCAL = ("debug", "cpu_launcher_enable", "install_py_dep_per_model", "worker_user", "worker_memory_limit")


def contradictions(effective: Mapping[str, Effective]) -> Iterator[str]:
    """Yield a line for each mistake; settings whose own value is wrong are absent from ``effective``."""
    values = {name: each.value for name, each in effective.items()}
    for name, why in _needed_tls_files(values).items():
        file = values.get(name)
        if file is None:
            yield f"Invalid configuration: {name}: {why}"
        elif not file.is_file():
            yield f"Invalid configuration: {effective[name].origin}: {name} = {file}: no such file"
    if values.get("model_snapshot") and values.get("model_store"):
        yield from values["model_snapshot"].missing(values["model_store"])
    if values.get("worker_launcher") == "ray":
        for name in _LOCAL:
            if values.get(name):
                yield f"Invalid configuration: {name} is about processes of this machine, but worker_launcher is ray"
    for place, version in _versions(effective):
        low, high = version.min_workers, version.max_workers
        if low and high and low > high:
            yield (
                f"Invalid configuration: {place}.minWorkers is {low} but maxWorkers is {high};"
                f" maxWorkers must be at least {low}"
            )


def doubts(effective: Mapping[str, Effective]) -> Iterator[str]:
    """Yield a warning for each setting that has no effect, or not the one that was probably meant."""
    values = {name: each.value for name, each in effective.items()}
    missing = [name for name in _CORS if not values.get(name)]
    given = [name for name in _CORS if name not in missing]
    if given and missing:
        yield (
            f"{effective[given[0]].origin}: {' and '.join(given)} without {' and '.join(missing)}:"
            " no other origin is allowed until all three are set"
        )
    store = values.get("workflow_store")
    if store is not None and not store.is_dir():
        yield (
            f"{effective['workflow_store'].origin}: workflow_store = {store}: there is no such directory;"
            " workflows cannot be registered until there is"
        )
    if values.get("model_snapshot") and "load_models" in effective:
        flag = SOURCES["load_models"].flag
        if effective["load_models"].origin == f"flag {flag}":
            yield f"{flag} has no effect: {effective['model_snapshot'].origin} says which models are loaded"
    for place, version in _versions(effective):
        for key in sorted((version.model_extra or {}).keys() - set(VERSION_KEYS)):
            yield f"{place}.{key} is not known and has no effect; known are {', '.join(VERSION_KEYS)}"


def _needed_tls_files(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings whose files an https listener or gRPC with TLS needs, and why."""
    needed: dict[str, str] = {}
    if values.get("enable_grpc_ssl"):
        needed.update(dict.fromkeys(_PEM_FILES, f"enable_grpc_ssl needs {' and '.join(_PEM_FILES)}"))
    addresses = (values.get(f"{door}_address") for door in ("inference", "management", "metrics"))
    if any(address is not None and address.is_tls for address in addresses):
        if values.get("keystore") is not None:
            needed["keystore"] = "https needs its file"
        elif any(values.get(name) is not None for name in _PEM_FILES):  # else the server makes a certificate
            needed.update(dict.fromkeys(_PEM_FILES, f"https with {' and '.join(_PEM_FILES)} needs both"))
    return needed


def _versions(effective: Mapping[str, Effective]) -> Iterator[tuple[str, VersionSettings]]:
    """Yield the place and the settings of each model version in `models`."""
    models = effective.get("models")
    if models is not None:
        for name, versions in models.value.items():
            for version, values in versions.items():
                yield f"{models.origin}: models.{name}.{version}", values
