"""Settings that need or contradict each other: mistakes that keep the server from starting, and doubtful values."""

from collections.abc import Iterator, Mapping

from torchserve_py.base.settings.schemas.versions import VERSION_KEYS, VersionSettings
from torchserve_py.base.settings.table import Effective
from torchserve_py.plugins import launchers, settings_sections

_CORS = ("cors_allowed_methods", "cors_allowed_headers")
_SEQUENCE_HEADERS = tuple(f"ts_header_key_sequence_{what}" for what in ("id", "start", "end"))
#: Settings about processes of this machine.
_LOCAL = ("debug", "cpu_launcher_enable", "install_py_dep_per_model", "worker_user", "worker_memory_limit")


def contradictions(effective: Mapping[str, Effective]) -> Iterator[str]:
    """Yield a line for each mistake; settings whose own value is wrong are absent from ``effective``."""
    values = {name: each.value for name, each in effective.items()}
    for section in settings_sections():
        yield from section.contradictions(effective)
    if (launcher := values.get("worker_launcher")) in launchers():
        for name in _LOCAL:
            if values.get(name):
                why = f"is about processes of this machine, but worker_launcher is {launcher}"
                yield f"Invalid configuration: {name} {why}"
    headers = {name: values[name] for name in _SEQUENCE_HEADERS if name in values}
    if len({header.lower() for header in headers.values()}) < len(headers):
        named = ", ".join(f"{name} is {header}" for name, header in headers.items())
        yield f"Invalid configuration: {named}; each must be another header"
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
    if not values.get("cors_allowed_origin"):
        for name in _CORS:
            if values.get(name):
                yield f"{effective[name].origin}: {name} has no effect without cors_allowed_origin"
    for section in settings_sections():
        yield from section.doubts(effective)
    for place, version in _versions(effective):
        for key in sorted((version.model_extra or {}).keys() - set(VERSION_KEYS)):
            yield f"{place}.{key} is not known and has no effect; known are {', '.join(VERSION_KEYS)}"


def _versions(effective: Mapping[str, Effective]) -> Iterator[tuple[str, VersionSettings]]:
    """Yield the place and the settings of each model version in `models`."""
    models = effective.get("models")
    if models is not None:
        for name, versions in models.value.items():
            for version, values in versions.items():
                yield f"{models.origin}: models.{name}.{version}", values
