"""Flags, environment and config.properties become one frozen `Settings`; every value knows where it came from.

The first source that gives a value wins: environment variable (those without a fixed role only where the file says
``enable_envvars_config=true``), flag, file, default. There is one file: ``TS_CONFIG_FILE``, else ``--ts-config``, else
the newest snapshot (unless ``--no-config-snapshots``), else ``config.properties`` in the current directory, else none.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from torchserve_py.settings import value_kinds
from torchserve_py.settings.flags import JVM_FLAGS, Flags, parse_flags
from torchserve_py.settings.log_config import is_log4j
from torchserve_py.settings.properties import PropertiesError, Property, read_properties, split_glued
from torchserve_py.settings.snapshot_file import newest_snapshot
from torchserve_py.settings.source import Source, env_of
from torchserve_py.settings.table import INTERNAL_KEYS, JVM_KEYS, SOURCES, Settings

__all__ = ["DEFAULT_ORIGIN", "Effective", "Resolution", "Settings", "SettingsError", "default_of", "load", "resolve"]

_log = logging.getLogger(__name__)
_REFERENCE = re.compile(r"\$\$(\w+)\$\$")
DEFAULT_ORIGIN = "default"


class SettingsError(Exception):
    """The configuration is wrong; the message has one line per mistake, each ready to be shown."""


@dataclass(frozen=True, slots=True)
class Effective:
    """The value of one setting and where it came from, for people: ``default``, ``flag --models``, ``file:line``, …"""

    value: Any
    origin: str


@dataclass(slots=True)
class Resolution:
    """The outcome of reading all sources.

    Attributes:
        effective: Setting name -> value and origin. A setting whose value is wrong or missing is not there; there is
            none at all when the file or a flag cannot be read.
        warnings: What the user should know although the server can start.
        errors: Why it cannot start, one line per mistake.
    """

    effective: dict[str, Effective] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def settings(self) -> Settings:
        """The settings. Raises `SettingsError` when there are errors."""
        if self.errors:
            raise SettingsError("\n".join(self.errors))
        return Settings(**{name: each.value for name, each in self.effective.items()})


def load(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Return the settings for a command line and an environment, and log what is doubtful about them as warnings.

    Raises:
        SettingsError: A value is wrong or a mandatory one is missing.
        SystemExit: ``argv`` is no valid command line.
    """
    resolution = resolve(parse_flags(argv), environ, Path.cwd())
    settings = resolution.settings()
    for warning in resolution.warnings:
        _log.warning(warning)
    return settings


def resolve(flags: Flags, environ: Mapping[str, str], cwd: Path) -> Resolution:
    """Read all sources; relative paths start from ``cwd``. Mistakes are collected, never raised."""
    return _Resolver(flags, environ, cwd).run()


class _Resolver:
    """One pass over all sources."""

    def __init__(self, flags: Flags, environ: Mapping[str, str], cwd: Path) -> None:
        self._flags = flags
        self._environ = environ
        self._cwd = cwd
        self._file = ""
        self._properties: dict[str, Property] = {}
        self._out = Resolution()

    def run(self) -> Resolution:
        self._read_file()
        self._check_flags()
        if self._out.errors:
            return self._out
        self._check_keys()
        env_enabled = self._file_switch("enable_envvars_config")
        for name, source in SOURCES.items():
            self._resolve_one(name, source, env_enabled=env_enabled)
        self._check_environment(env_enabled=env_enabled)
        self._check_tls()
        self._check_cors()
        self._check_workflow_store()
        self._check_snapshot()
        self._check_models_map()
        return self._out

    # The file

    def _read_file(self) -> None:
        named = self._environ.get("TS_CONFIG_FILE") or self._flags.ts_config or self._newest_snapshot()
        if named is None:
            if not (self._cwd / "config.properties").is_file():
                return
            named = "config.properties"
        if not (self._cwd / named).is_file():
            self._out.errors.append(f"--ts-config file not found: {named}")
            return
        self._file = named
        try:
            entries = read_properties(self._cwd / named)
        except OSError as error:
            self._out.errors.append(f"Invalid configuration: {named} cannot be read: {error.strerror}")
            return
        except PropertiesError as error:
            self._out.errors.append(f"Invalid configuration: {named}:{error.line}: {error}")
            return
        for entry in self._unglued(entries):
            earlier = self._properties.get(entry.key)
            if earlier is not None:
                self._out.warnings.append(
                    f"{named}:{entry.line}: {entry.key} replaces its value of line {earlier.line}; keep one of them"
                )
            self._properties[entry.key] = entry

    def _unglued(self, entries: Sequence[Property]) -> Iterator[Property]:
        """The entries, those apart that a missing line break has made one."""
        known = {name for name, source in SOURCES.items() if source.in_file} | {*JVM_KEYS, *INTERNAL_KEYS}
        for entry in entries:
            source = SOURCES.get(entry.key)
            is_boolean = source is not None and source.kind is value_kinds.boolean
            parts = split_glued(entry, known) if is_boolean else (entry,)
            if len(parts) > 1:
                self._out.warnings.append(
                    f"{self._place(entry)}: a line break is missing between {entry.key}={parts[0].value} and"
                    f" {parts[1].key}; both are read as if there were one"
                )
            yield from parts

    def _newest_snapshot(self) -> str | None:
        if self._flags.no_config_snapshots:
            return None
        found = newest_snapshot(self._cwd / self._environ.get("LOG_LOCATION", "logs"))
        if found is None:
            return None
        path = str(found.relative_to(self._cwd) if found.is_relative_to(self._cwd) else found)
        passed_over = " instead of config.properties" if (self._cwd / "config.properties").is_file() else ""
        self._out.warnings.append(
            f"The configuration is that of the snapshot {path}{passed_over}; --no-config-snapshots starts without it"
        )
        return path

    def _place(self, entry: Property) -> str:
        return f"{self._file}:{entry.line}"

    def _file_switch(self, key: str) -> bool:
        entry = self._properties.get(key)
        return entry is not None and entry.value.strip().lower() == "true"

    def _check_keys(self) -> None:
        known = {name for name, source in SOURCES.items() if source.in_file}
        ignored = [JVM_FLAGS[name] for name in JVM_FLAGS if getattr(self._flags, name) is not None]
        if self._flags.log_config is not None and is_log4j(Path(self._flags.log_config)):
            ignored.append("--log-config with a file of log4j2 (see docs/logging.md for Python's form)")
        for key, entry in self._properties.items():
            if key in JVM_KEYS:
                ignored.append(f"{key} ({self._place(entry)})")
            elif key not in known and key not in INTERNAL_KEYS:
                self._out.warnings.append(self._unknown_key(entry, [*known, *JVM_KEYS]))
        if ignored:
            self._out.warnings.append(
                "No effect, because only the Java virtual machine or the C++ backend of TorchServe has a use for it: "
                + ", ".join(ignored)
            )

    def _unknown_key(self, entry: Property, known: list[str]) -> str:
        from difflib import get_close_matches  # 5 ms that a right file need not pay

        message = f"{self._place(entry)}: {entry.key} is no key of config.properties and has no effect"
        closest = get_close_matches(entry.key, sorted(known), n=1)
        return f"{message}; did you mean {closest[0]}?" if closest else message

    # Flags and environment

    def _check_flags(self) -> None:
        for flag, value in (
            ("--log-config", self._flags.log_config),
            ("--cpp-log-config", self._flags.cpp_log_config),
        ):
            if value is not None and not (self._cwd / value).is_file():
                self._out.errors.append(f"{flag} file not found: {value}")

    def _check_environment(self, *, env_enabled: bool) -> None:
        """Tell of variables that would override a setting but are not looked at."""
        switch = "use_env_allowed_urls" if env_enabled else "enable_envvars_config"
        without_effect = [
            variable
            for name, source in SOURCES.items()
            if (variable := env_of(name, source)) is not None
            and variable in self._environ
            and not self._is_env_heeded(name, source, env_enabled=env_enabled)
        ]
        if without_effect:
            self._out.warnings.append(
                f"No effect without {switch}=true in config.properties: {', '.join(without_effect)}"
            )

    def _is_env_heeded(self, name: str, source: Source, *, env_enabled: bool) -> bool:
        if name == "allowed_urls" and not self._file_switch("use_env_allowed_urls"):
            return False
        return source.env_always or env_enabled

    def _check_tls(self) -> None:
        """Tell of missing files before the server starts, if an https listener or gRPC with TLS needs them."""
        for name, why in self._tls_files().items():
            path = self._out.effective[name].value if name in self._out.effective else None
            if path is None:
                self._out.errors.append(f"Invalid configuration: {name}: {why}")
            elif not path.is_file():
                origin = self._out.effective[name].origin
                self._out.errors.append(f"Invalid configuration: {origin}: {name} = {path}: no such file")

    def _tls_files(self) -> dict[str, str]:
        """The settings whose files are needed, and why."""
        values = {name: each.value for name, each in self._out.effective.items()}
        pair = ("certificate_file", "private_key_file")
        needed: dict[str, str] = {}
        if values.get("enable_grpc_ssl"):
            needed.update(dict.fromkeys(pair, f"enable_grpc_ssl needs {' and '.join(pair)}"))
        addresses = (values.get(f"{door}_address") for door in ("inference", "management", "metrics"))
        if any(address is not None and address.is_tls for address in addresses):
            if values.get("keystore") is not None:
                needed["keystore"] = "https needs its file"
            elif any(values.get(name) is not None for name in pair):  # else a certificate is made
                needed.update(dict.fromkeys(pair, f"https with {' and '.join(pair)} needs both"))
        return needed

    def _check_cors(self) -> None:
        """Tell of a setting for other origins that lacks the two others."""
        names = ("cors_allowed_origin", "cors_allowed_methods", "cors_allowed_headers")
        missing = [name for name in names if name not in self._out.effective or not self._out.effective[name].value]
        given = [name for name in names if name not in missing]
        if given and missing:
            self._out.warnings.append(
                f"{self._out.effective[given[0]].origin}: {' and '.join(given)} without {' and '.join(missing)}:"
                " no other origin is allowed until all three are set"
            )

    def _check_workflow_store(self) -> None:
        """Tell of a workflow store that is missing; only workflows need it, and TorchServe starts without."""
        store = self._out.effective.get("workflow_store")
        if store is not None and store.value is not None and not store.value.is_dir():
            self._out.warnings.append(
                f"{store.origin}: workflow_store = {store.value}: there is no such directory;"
                " workflows cannot be registered until there is"
            )

    def _check_snapshot(self) -> None:
        """Tell of archives that a snapshot needs, and of the flag that it overrides."""
        snapshot, store, wanted = (
            self._out.effective.get(name) for name in ("model_snapshot", "model_store", "load_models")
        )
        if snapshot is None or snapshot.value is None:
            return
        if store is not None:
            self._out.errors += snapshot.value.missing(store.value)
        if wanted is not None and wanted.origin == f"flag {SOURCES['load_models'].flag}":
            self._out.warnings.append(f"--models has no effect: {snapshot.origin} says which models are loaded")

    def _check_models_map(self) -> None:
        """Warn of keys of ``models`` that have no effect."""
        models = self._out.effective.get("models")
        if models is None:
            return
        for name, versions in models.value.items():
            for version, values in versions.items():
                for key in sorted(values.keys() - set(value_kinds.MODELS_MAP_KEYS)):
                    self._out.warnings.append(
                        f"{models.origin}: models, {name} {version}: {key} is not known and has no effect; known are"
                        f" {', '.join(value_kinds.MODELS_MAP_KEYS)}"
                    )

    # Values

    def _resolve_one(self, name: str, source: Source, *, env_enabled: bool) -> None:
        variable = env_of(name, source)
        env_heeded = self._is_env_heeded(name, source, env_enabled=env_enabled)
        if variable is not None and variable in self._environ and env_heeded:
            self._from_environment(name, source, variable)
        elif source.flag is not None and getattr(self._flags, name) is not None:
            self._from_flag(name, source, source.flag)
        elif source.in_file and name in self._properties:
            self._from_file(name, source, self._properties[name])
        else:
            self._from_default(name)

    def _from_environment(self, name: str, source: Source, variable: str) -> None:
        text = self._environ[variable]
        if name == "ts_open_inference_protocol":  # the one variable with a rule of its own: not true/false, but oip
            self._out.effective[name] = Effective(text == "oip", f"environment variable {variable}")
            return
        if name == "temp_dir" and not (self._cwd / text).is_dir():
            self._out.errors.append(f"Invalid temp directory: {text}, please check TEMP environment variable.")
            return
        self._read(name, source, text, f"environment variable {variable}", f"environment variable {variable} = {text}")

    def _from_flag(self, name: str, source: Source, flag: str) -> None:
        given = getattr(self._flags, name)
        if name == "load_models":
            self._from_texts(name, source, given, flag)
            return
        if name in ("model_store", "workflow_store") and not (self._cwd / given).is_dir():
            self._out.errors.append(f"{flag} directory not found: {given}")
            return
        self._read(name, source, given, f"flag {flag}", f"{flag} {given}")

    def _from_texts(self, name: str, source: Source, texts: Sequence[str], flag: str) -> None:
        """Store what the values of a flag with several make together."""
        try:
            values = [value for text in texts for value in source.kind.read(text, self._cwd)]
        except ValueError as error:
            self._refuse(source, f"{flag} {' '.join(texts)}", error)
        else:
            self._out.effective[name] = Effective(tuple(values), f"flag {flag}")

    def _from_file(self, name: str, source: Source, entry: Property) -> None:
        place = self._place(entry)
        described = f"{place}: {name} = {'********' if source.secret else entry.value}"
        try:
            text = _REFERENCE.sub(self._substitute, entry.value)
        except KeyError as missing:
            self._out.errors.append(
                f"Invalid configuration: {described}: Invalid Environment Variable {missing.args[0]} (it is not set)"
            )
            return
        self._read(name, source, text, place, described)

    def _substitute(self, reference: re.Match[str]) -> str:
        return self._environ[reference[1]]

    def _from_default(self, name: str) -> None:
        if name == "model_store":
            self._out.errors.append("Missing mandatory parameter --model-store")
            return
        self._out.effective[name] = Effective(default_of(name, self._cwd), DEFAULT_ORIGIN)

    def _read(self, name: str, source: Source, text: str, origin: str, described: str) -> None:
        """Store the value that ``text`` stands for; an empty one unsets a setting whose default is "none"."""
        if not text.strip() and default_of(name, self._cwd) is None:
            self._out.effective[name] = Effective(None, origin)
            return
        try:
            self._out.effective[name] = Effective(source.kind.read(text, self._cwd), origin)
        except ValueError as error:
            self._refuse(source, described, error)

    def _refuse(self, source: Source, described: str, error: ValueError) -> None:
        reason = f"{error}, expected" if error.args else "expected"
        self._out.errors.append(f"Invalid configuration: {described}: {reason} {source.kind.expected}")


_FIELDS = {each.name: each for each in fields(Settings)}


def default_of(name: str, cwd: Path) -> Any:
    """The default of a setting, `dataclasses.MISSING` where it is mandatory; relative paths start from ``cwd``."""
    setting = _FIELDS[name]
    if setting.default_factory is not MISSING:
        return setting.default_factory()
    if setting.default is MISSING:
        return MISSING
    return cwd / setting.default if isinstance(setting.default, Path) else setting.default
