"""Settings that need or contradict each other: mistakes that keep the server from starting, and doubtful values."""

from collections.abc import Iterator, Mapping
from typing import Any

from torchserve_py.settings.schemas.versions import VERSION_KEYS, VersionSettings
from torchserve_py.settings.table import SOURCES, Effective

_PEM_FILES = ("certificate_file", "private_key_file")


def contradictions(effective: Mapping[str, Effective]) -> Iterator[str]:
    """Yield a line for each mistake; settings whose own value is wrong are absent from ``effective``."""
    yield from _missing_tls_files(effective)
    snapshot, store = effective.get("model_snapshot"), effective.get("model_store")
    if snapshot is not None and snapshot.value is not None and store is not None:
        yield from snapshot.value.missing(store.value)
    yield from _local_only(effective)
    for place, version in _versions(effective):
        low, high = version.min_workers, version.max_workers
        if low and high and low > high:
            yield (
                f"Invalid configuration: {place}.minWorkers is {low} but maxWorkers is {high};"
                f" maxWorkers must be at least {low}"
            )


def doubts(effective: Mapping[str, Effective]) -> Iterator[str]:
    """Yield a warning for each setting that has no effect, or not the one that was probably meant."""
    yield from _incomplete_cors(effective)
    store = effective.get("workflow_store")
    if store is not None and store.value is not None and not store.value.is_dir():
        yield (
            f"{store.origin}: workflow_store = {store.value}: there is no such directory;"
            " workflows cannot be registered until there is"
        )
    snapshot, wanted = effective.get("model_snapshot"), effective.get("load_models")
    overridden = f"flag {SOURCES['load_models'].flag}"
    if snapshot is not None and snapshot.value is not None and wanted is not None and wanted.origin == overridden:
        yield f"--models has no effect: {snapshot.origin} says which models are loaded"
    for place, version in _versions(effective):
        for key in sorted((version.model_extra or {}).keys() - set(VERSION_KEYS)):
            yield f"{place}.{key} is not known and has no effect; known are {', '.join(VERSION_KEYS)}"


def _local_only(effective: Mapping[str, Effective]) -> Iterator[str]:
    """Yield the settings that are about processes of this machine, if workers run on others."""
    values = {name: each.value for name, each in effective.items()}
    if values.get("worker_launcher") != "ray":
        return
    for name in ("debug", "cpu_launcher_enable", "install_py_dep_per_model", "worker_user", "worker_memory_limit"):
        if values.get(name):
            yield f"Invalid configuration: {name} is about processes of this machine, but worker_launcher is ray"


def _missing_tls_files(effective: Mapping[str, Effective]) -> Iterator[str]:
    for name, why in _needed_tls_files({name: each.value for name, each in effective.items()}).items():
        file = effective.get(name)
        if file is None or file.value is None:
            yield f"Invalid configuration: {name}: {why}"
        elif not file.value.is_file():
            yield f"Invalid configuration: {file.origin}: {name} = {file.value}: no such file"


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


def _incomplete_cors(effective: Mapping[str, Effective]) -> Iterator[str]:
    names = ("cors_allowed_origin", "cors_allowed_methods", "cors_allowed_headers")
    missing = [name for name in names if name not in effective or not effective[name].value]
    given = [name for name in names if name not in missing]
    if given and missing:
        yield (
            f"{effective[given[0]].origin}: {' and '.join(given)} without {' and '.join(missing)}:"
            " no other origin is allowed until all three are set"
        )


def _versions(effective: Mapping[str, Effective]) -> Iterator[tuple[str, VersionSettings]]:
    """Yield the place and the settings of each model version in `models`."""
    models = effective.get("models")
    if models is not None:
        for name, versions in models.value.items():
            for version, values in versions.items():
                yield f"{models.origin}: models.{name}.{version}", values
