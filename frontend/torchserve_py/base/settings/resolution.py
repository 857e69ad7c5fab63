"""Flags, environment and config.properties become one frozen `Settings`; every value knows where it came from.

The first source that gives a value wins: environment variable (those without a fixed role only where the file says
``enable_envvars_config=true``), flag, file, default. There is one file: ``TS_CONFIG_FILE``, else ``--ts-config``, else
the newest snapshot (unless ``--no-config-snapshots``), else ``config.properties`` in the current directory, else none.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from torchserve_py.base.settings.consistency import contradictions, doubts
from torchserve_py.base.settings.flags import JVM_FLAGS, Flags
from torchserve_py.base.settings.log_config import is_log4j
from torchserve_py.base.settings.properties import PropertiesError, Property, read_properties, split_glued
from torchserve_py.base.settings.schemas.schema import told, validate
from torchserve_py.base.settings.schemas.values import FLAG
from torchserve_py.base.settings.server_settings import default_of, server_settings, sources
from torchserve_py.base.settings.snapshot_files import newest_snapshot
from torchserve_py.base.settings.table import (
    DEFAULT_ORIGIN,
    INTERNAL_KEYS,
    JVM_KEYS,
    Effective,
    Settings,
)
from torchserve_py.base.settings.value_kinds import is_directory, is_file
from torchserve_py.base.url_secrets import without_secrets
from torchserve_py.plugins import settings_sections

_REFERENCE = re.compile(r"\$\$(\w+)\$\$")
_PREFIX: Final = "TS_"
_CONFIG_FILE: Final = "TS_CONFIG_FILE"
#: In the current directory.
_DEFAULT_FILE: Final = "config.properties"
#: How much alike a variable and that of a setting must be: more than keys, since others have such variables, too.
_MISSPELT: Final = 0.85


class SettingsError(Exception):
    """The configuration is wrong; the message has one line per mistake, each ready to be shown."""


class _Given(NamedTuple):
    """A value as a source gives it, the place of the source, and the quotation of both in messages."""

    value: str | list[str] | bool
    origin: str
    quoted: str


class Resolution:
    """What all sources say; relative paths start from ``cwd``. All mistakes are collected."""

    def __init__(self, flags: Flags, environ: Mapping[str, str], cwd: Path) -> None:
        #: By setting; those are absent whose value is wrong or missing, and all when the file or a flag cannot be read.
        self.effective: dict[str, Effective] = {}
        #: What the user should know although the server can start.
        self.warnings: list[str] = []
        #: Why the server cannot start, one line per mistake.
        self.errors: list[str] = []
        self._flags = flags
        self._environ = environ
        self._cwd = cwd
        self._file = ""
        self._file_keys = {name for name, source in sources().items() if source.in_file}
        self._properties: dict[str, Property] = {}
        self._problems: defaultdict[str, list[str]] = defaultdict(list)
        self._read_file()
        self._check_flags()
        if self.errors:
            return
        self._check_keys()
        self._env_enabled = self._file_switch("enable_envvars_config")
        self._read_values()
        self._check_environment()
        self._check_misspelt_variables()
        self.warnings += [warning for section in settings_sections() for warning in section.settle(self.effective)]
        self.errors += contradictions(self.effective)
        self.warnings += doubts(self.effective)

    def settings(self) -> Settings:
        """Return the settings. Raises `SettingsError` when there are errors."""
        if self.errors:
            raise SettingsError("\n".join(self.errors))
        made = server_settings().model_construct(**{name: each.value for name, each in self.effective.items()})
        made.origins.update({name: each.origin for name, each in self.effective.items()})
        for name, entry in self._properties.items():
            if name in self._file_keys and sources()[name].secret:
                made.secret_variables.update(_REFERENCE.findall(entry.value))
        return made

    # The file

    def _read_file(self) -> None:
        named = self._environ.get(_CONFIG_FILE) or self._flags.ts_config or self._snapshot()
        if not named:
            if not (self._cwd / _DEFAULT_FILE).is_file():
                return
            named = _DEFAULT_FILE
        if not is_file(self._cwd / named):
            self.errors.append(f"--ts-config file not found: {named}")
            return
        self._file = named
        try:
            entries = read_properties(self._cwd / named)
        except OSError as error:
            self.errors.append(f"Invalid configuration: {named} cannot be read: {error.strerror}")
            return
        except PropertiesError as error:
            self.errors.append(f"Invalid configuration: {named}:{error.line}: {error}")
            return
        except ValueError as error:
            self.errors.append(f"Invalid configuration: {named} cannot be read: {error}")
            return
        for entry in self._unglued(entries):
            earlier = self._properties.get(entry.key)
            if earlier is not None:
                self.warnings.append(
                    f"{named}:{entry.line}: {entry.key} replaces its value of line {earlier.line}; keep one of them"
                )
            self._properties[entry.key] = entry

    def _snapshot(self) -> str:
        """Return the newest snapshot, and tell the user of it; empty if there is none, or if none is wanted."""
        if self._flags.no_config_snapshots:
            return ""
        found = newest_snapshot(self._cwd / self._environ.get("LOG_LOCATION", "logs"))
        if found is None:
            return ""
        path = str(found.relative_to(self._cwd) if found.is_relative_to(self._cwd) else found)
        passed_over = f" instead of {_DEFAULT_FILE}" if (self._cwd / _DEFAULT_FILE).is_file() else ""
        self.warnings.append(
            f"The configuration is that of the snapshot {path}{passed_over}; --no-config-snapshots starts without it"
        )
        return path

    def _unglued(self, entries: Sequence[Property]) -> Iterator[Property]:
        """Yield the entries; two that a missing line break has joined are separated."""
        for entry in entries:
            is_flag = entry.key in sources() and sources()[entry.key].kind is FLAG
            parts = split_glued(entry, {*self._file_keys, *JVM_KEYS, *INTERNAL_KEYS}) if is_flag else (entry,)
            if len(parts) > 1:
                self.warnings.append(
                    f"{self._place(entry)}: a line break is missing between {entry.key}={parts[0].value} and"
                    f" {parts[1].key}; both are read as if there were one"
                )
            yield from parts

    def _place(self, entry: Property) -> str:
        return f"{self._file}:{entry.line}"

    def _file_switch(self, key: str) -> bool:
        entry = self._properties.get(key)
        return entry is not None and entry.value.strip().lower() == "true"

    # What has no effect

    def _check_keys(self) -> None:
        ignored = [JVM_FLAGS[name] for name in JVM_FLAGS if getattr(self._flags, name) is not None]
        if self._flags.log_config is not None and is_log4j(Path(self._flags.log_config)):
            ignored.append("--log-config with a file of log4j2 (see docs/logging.md for Python's form)")
        for key, entry in self._properties.items():
            if key in JVM_KEYS:
                ignored.append(f"{key} ({self._place(entry)})")
            elif key not in self._file_keys and key not in INTERNAL_KEYS:
                self.warnings.append(self._unknown_key(entry))
        if ignored:
            self.warnings.append(
                "No effect, because only the Java virtual machine or the C++ backend of TorchServe has a use for it: "
                + ", ".join(ignored)
            )

    def _unknown_key(self, entry: Property) -> str:
        from difflib import get_close_matches  # 5 ms that a right file need not pay

        message = f"{self._place(entry)}: {entry.key} is no key of config.properties and has no effect"
        closest = get_close_matches(entry.key, sorted([*self._file_keys, *JVM_KEYS]), n=1)
        return f"{message}; did you mean {closest[0]}?" if closest else message

    def _check_flags(self) -> None:
        for flag, value in (
            ("--log-config", self._flags.log_config),
            ("--cpp-log-config", self._flags.cpp_log_config),
        ):
            if value is not None and not is_file(self._cwd / value):
                self.errors.append(f"{flag} file not found: {value}")

    def _check_environment(self) -> None:
        """Warn of variables that would override a setting but are not looked at."""
        switch = "use_env_allowed_urls" if self._env_enabled else "enable_envvars_config"
        without_effect = [
            source.env
            for name, source in sources().items()
            if source.env is not None and source.env in self._environ and not self._is_env_heeded(name)
        ]
        if without_effect:
            self.warnings.append(f"No effect without {switch}=true in config.properties: {', '.join(without_effect)}")

    def _check_misspelt_variables(self) -> None:
        """Warn of variables that are most likely meant for a setting, such as keys without which the server is open."""
        known = {source.env.removeprefix(_PREFIX) for source in sources().values() if source.env is not None}
        known.add(_CONFIG_FILE.removeprefix(_PREFIX))
        given = {name for name in self._environ if name.upper().startswith(_PREFIX)}
        for name in sorted(name for name in given if name[len(_PREFIX) :] not in known):
            from difflib import get_close_matches

            if closest := get_close_matches(name[len(_PREFIX) :].upper(), sorted(known), n=1, cutoff=_MISSPELT):
                meant = f"{_PREFIX}{closest[0]}"
                self.warnings.append(f"environment variable {name} has no effect; did you mean {meant}?")

    def _is_env_heeded(self, name: str) -> bool:
        if name == "allowed_urls" and not self._file_switch("use_env_allowed_urls"):
            return False
        return sources()[name].env_always or self._env_enabled

    # Values

    def _read_values(self) -> None:
        given = {name: found for name in sources() if (found := self._given(name)) is not None}
        converted = {name: self._converted(name, each.value) for name, each in given.items()}
        values, errors = validate(server_settings(), converted, self._cwd)
        for error in errors:
            name = str(error["loc"][0])
            is_part = len(error["loc"]) > 1
            place, quoted = given[name].origin, given[name].quoted
            problem = f"{place}: {told(server_settings(), error)}" if is_part else f"{quoted}: {error['msg']}"
            self._problems[name].append(f"Invalid configuration: {problem}")
        if "model_store" not in {*given, *self._problems}:
            self._problems["model_store"].append("Missing mandatory parameter --model-store")
        for name in sources():
            if name in self._problems:
                self.errors += self._problems[name]
            elif name in given:
                self.effective[name] = Effective(getattr(values, name), given[name].origin)
            else:
                self.effective[name] = Effective(default_of(name, self._cwd), DEFAULT_ORIGIN)

    def _converted(self, name: str, value: str | list[str] | bool) -> Any:
        """Return the value for the schema; an empty text unsets a setting whose default is None."""
        if not isinstance(value, str):
            return value
        if not value.strip() and default_of(name, self._cwd) is None:
            return None
        return sources()[name].kind.from_text(value)

    def _given(self, name: str) -> _Given | None:
        """Return the value of a setting; None if no source gives one, or if it is refused."""
        source = sources()[name]
        if source.env is not None and source.env in self._environ and self._is_env_heeded(name):
            return self._from_environment(name, source.env)
        if source.flag is not None and getattr(self._flags, name) is not None:
            return self._from_flag(name, source.flag)
        if source.in_file and name in self._properties:
            return self._from_file(name, self._properties[name])
        return None

    def _from_environment(self, name: str, variable: str) -> _Given | None:
        text = self._environ[variable]
        origin = f"environment variable {variable}"
        if (word := sources()[name].env_word) is not None:
            return _Given(text == word, origin, "")
        if name == "temp_dir" and not is_directory(self._cwd / text):
            self._problems[name].append(f"Invalid temp directory: {text}, please check TEMP environment variable.")
            return None
        return _Given(text, origin, f"{origin} = {_quoted(name, text)}")

    def _from_flag(self, name: str, flag: str) -> _Given | None:
        value = getattr(self._flags, name)
        if sources()[name].must_exist and not is_directory(self._cwd / value):
            self._problems[name].append(f"{flag} directory not found: {value}")
            return None
        text = value if isinstance(value, str) else " ".join(value)
        return _Given(value, f"flag {flag}", f"{flag} {_quoted(name, text)}")

    def _from_file(self, name: str, entry: Property) -> _Given | None:
        place = self._place(entry)
        quoted = f"{place}: {name} = {_quoted(name, entry.value)}"
        try:
            text = _REFERENCE.sub(lambda reference: self._environ[reference[1]], entry.value)
        except KeyError as missing:
            problem = f"Invalid Environment Variable {missing.args[0]} (it is not set)"
            self._problems[name].append(f"Invalid configuration: {quoted}: {problem}")
            return None
        return _Given(text, place, quoted)


def _quoted(name: str, text: str) -> str:
    """Return what a user has written for a setting, for messages."""
    return "********" if sources()[name].secret else without_secrets(text)
