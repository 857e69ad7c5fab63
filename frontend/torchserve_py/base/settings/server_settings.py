"""All settings of the server: the kernel's, and the sections of its plugins.

`server_settings` is the schema of config.properties, of the `TS_...` environment variables and of the flags of
settings; its field names are the keys. `torchserve_py.base.settings.resolution` fills it, and the tables of
docs/configuration.md follow from it.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, cast

from pydantic import GetJsonSchemaHandler
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema

from torchserve_py.base.settings.properties import written
from torchserve_py.base.settings.schemas.schema import ClosedSchema
from torchserve_py.base.settings.schemas.values import choice
from torchserve_py.base.settings.table import BY_RULE, Settings, Source, setting
from torchserve_py.plugin_api import PluginUnavailable
from torchserve_py.plugins import launchers, settings_sections

#: The variable with the key of an operator who runs commands of this program against a server: all users of a machine
#: can see the arguments of a command.
KEY_VARIABLE: Final = "TORCHSERVE_PY_KEY"

_LAUNCHER = Settings.model_fields["worker_launcher"]


class _PropertiesFile(Settings):
    """Settings as config.properties has them, and with the launchers of plugins."""

    worker_launcher: Annotated[str, choice(_LAUNCHER.default, *launchers())] = setting(
        _LAUNCHER.default, ", or ".join((_LAUNCHER.description or "", *(offer.where for offer in launchers().values())))
    )

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the JSON Schema of config.properties: its keys only, and texts as the file writes them."""
        schema = handler.resolve_ref_schema(handler(core))
        schema["description"] = "config.properties"
        keys = {name: schema["properties"][name] for name, source in sources().items() if source.in_file}
        for name, each in keys.items():
            default = written(default_of(name, Path()))
            if default == "" or name == "model_store":
                del each["default"]
            elif each.get("type") == "string":
                each["default"] = default
        return {**schema, "properties": keys}


@cache
def server_settings() -> type[Settings]:
    """Return the schema of all settings: those of the kernel first, those of plugins in the order of plugins.

    Raises PluginUnavailable: a setting of a plugin has the name of another one.
    """
    sections = settings_sections()
    all_of_them: tuple[type[ClosedSchema], ...] = (Settings, *sections)
    names = [name for each in all_of_them for name in each.model_fields]
    for name, count in Counter(names).items():
        if count > 1:
            raise PluginUnavailable(f"There are {count} settings called {name!r}; a plugin must rename its own.")
    bases: tuple[type, ...] = (*reversed(sections), _PropertiesFile)  # a class has the fields of its last base first
    return cast(type[Settings], type("ServerSettings", bases, {"__module__": __name__}))


@cache
def sources() -> Mapping[str, Source]:
    """Return where the value of each setting may come from, by name, in the order of the documentation."""
    return {name: _source(name, field) for name, field in server_settings().model_fields.items()}


def _source(name: str, field: FieldInfo) -> Source:
    source = next((each for each in field.metadata if isinstance(each, Source)), Source())
    env = f"TS_{name.removeprefix('ts_').upper()}" if source.env == BY_RULE else source.env
    return replace(
        source, env=env, secret=not field.repr, kind=next(each for each in field.metadata if hasattr(each, "from_text"))
    )


def default_of(name: str, cwd: Path) -> Any:
    """Return the default of a setting; relative paths start from ``cwd``."""
    default = server_settings().model_fields[name].get_default(call_default_factory=True)
    return cwd / default if isinstance(default, Path) else default


@cache
def secret_variables() -> frozenset[str]:
    """Return the variables that no process with a model's code may see."""
    return frozenset((KEY_VARIABLE, *(each.env for each in sources().values() if each.secret and each.env)))
