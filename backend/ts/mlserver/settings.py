"""A model's settings (``model-settings.json``) and the server's (``settings.json``), as models read them.

What a file says beats the environment: ``MLSERVER_MODEL_<KEY>`` for a model and its parameters, ``MLSERVER_<KEY>`` for
the server, both also in a file ``.env`` of the model's folder.
"""

from __future__ import annotations

import importlib
import inspect
import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import AliasChoices, Field, PrivateAttr, model_validator
from pydantic_settings import BaseSettings as PydanticSettings
from pydantic_settings import SettingsConfigDict

from ts.mlserver.types import MetadataTensor
from ts.mlserver.version import __version__

if TYPE_CHECKING:
    from ts.mlserver.model import MLModel

ENV_FILE_SETTINGS = ".env"
ENV_PREFIX_SETTINGS = "MLSERVER_"
ENV_PREFIX_MODEL_SETTINGS = "MLSERVER_MODEL_"


class BaseSettings(PydanticSettings):
    """The base of all settings: properties with a setter can be assigned."""

    def __setattr__(self, name: str, value: Any) -> None:
        attribute = getattr(type(self), name, None)
        if isinstance(attribute, property) and attribute.fset is not None:
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)


class Settings(BaseSettings):
    """The server's settings. Most of them are MLServer's listeners', which the configuration of this server replaces;
    they are here for models that read them."""

    model_config = SettingsConfigDict(
        protected_namespaces=(), env_file=ENV_FILE_SETTINGS, env_prefix=ENV_PREFIX_SETTINGS, extra="ignore"
    )

    debug: bool = True
    parallel_workers: int = 1
    parallel_workers_timeout: int = 5
    environments_dir: str = ".envs"
    model_repository_root: str = "."
    load_models_at_startup: bool = True
    server_name: str = "mlserver"
    server_version: str = __version__
    extensions: list[str] = []
    host: str = "0.0.0.0"  # noqa: S104 - MLServer's default; nothing listens there
    http_port: int = 8080
    root_path: str = ""
    grpc_port: int = 8081
    grpc_max_message_length: int | None = None
    metrics_endpoint: str | None = "/metrics"
    metrics_port: int = 8082
    metrics_rest_server_prefix: str = "rest_server"
    metrics_dir: str = ".metrics"
    use_structured_logging: bool = False
    logging_settings: str | dict[str, Any] | None = None
    cache_enabled: bool = False
    cache_size: int = 100
    gzip_enabled: bool = True


class ModelParameters(BaseSettings):
    """What may differ between two versions of a model; any further key is kept as well.

    Attributes:
        uri: Where the model's artifacts are: absolute, or relative to ``model-settings.json``; its folder by default.
        version: The model's version.
        format: The artifacts' format, for implementations that know several.
        content_type: The content type of requests that do not name one.
        extra: Whatever the implementation wants to know.
    """

    model_config = SettingsConfigDict(env_file=ENV_FILE_SETTINGS, env_prefix=ENV_PREFIX_MODEL_SETTINGS, extra="allow")

    uri: str | None = None
    version: str | None = None
    environment_path: str | None = None
    environment_tarball: str | None = None
    inference_pool_gid: str | None = None
    autogenerate_inference_pool_gid: bool = False
    format: str | None = None
    content_type: str | None = None
    extra: dict[str, Any] | None = {}

    @model_validator(mode="after")
    def _make_pool_id(self) -> ModelParameters:
        if self.autogenerate_inference_pool_gid and self.inference_pool_gid is None:
            self.inference_pool_gid = str(uuid.uuid4())
        return self


class ModelSettings(BaseSettings):
    """A model's settings.

    Attributes:
        implementation_: The import path of the model's class; ``implementation`` is the class itself.
        name: What the model is called.
        platform, versions: What it was trained with.
        inputs, outputs: Its tensors, for metadata and for codecs.
        max_batch_size: Requests of one adaptive batch; 0 and 1 mean that there are no batches.
        max_batch_time: Seconds that an adaptive batch waits for more requests; 0 means that there are no batches.
        parameters: What may differ between versions.
    """

    model_config = SettingsConfigDict(
        protected_namespaces=(), env_file=ENV_FILE_SETTINGS, env_prefix=ENV_PREFIX_MODEL_SETTINGS, extra="ignore"
    )

    _source: str | None = PrivateAttr(None)

    implementation_: str = Field(
        validation_alias=AliasChoices("implementation", "MLSERVER_MODEL_IMPLEMENTATION"),
        serialization_alias="implementation",
    )
    name: str = ""
    platform: str = ""
    versions: list[str] = []
    inputs: list[MetadataTensor] = []
    outputs: list[MetadataTensor] = []
    parallel_workers: int | None = None
    warm_workers: bool = False
    max_batch_size: int = 0
    max_batch_time: float = 0.0
    parameters: ModelParameters | None = None
    cache_enabled: bool = False

    def __init__(self, *arguments: Any, **values: Any) -> None:
        if inspect.isclass(values.get("implementation")):
            values["implementation"] = _import_path(values["implementation"])
        super().__init__(*arguments, **values)

    @classmethod
    def parse_file(cls, path: str) -> ModelSettings:  # type: ignore[override]
        """Read a ``model-settings.json``.

        Raises:
            OSError: It cannot be read.
            ValueError: It is no JSON, or a value in it is wrong.
        """
        return cls.model_validate({**json.loads(Path(path).read_text()), "_source": path})

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> ModelSettings:
        """Return the settings that a dict describes; its key ``_source`` is the file that it comes from."""
        values = dict(obj)
        source = values.pop("_source", None)
        settings = super().model_validate(values, **options)
        settings._source = source
        return settings

    @property
    def implementation(self) -> type[MLModel]:
        """The model's class, imported now."""
        implementation: type[MLModel] = _imported(self.implementation_)
        return implementation

    @implementation.setter
    def implementation(self, value: type[MLModel]) -> None:
        self.implementation_ = _import_path(value)

    @property
    def version(self) -> str | None:
        """The model's version, from its parameters."""
        return None if self.parameters is None else self.parameters.version


def _import_path(cls: type[Any]) -> str:
    return f"{cls.__module__}.{cls.__name__}"


def _imported(path: str) -> Any:
    """Return what ``module.Name`` or ``module:Name`` names.

    Raises:
        ImportError: There is no such module, or no such name in it.
    """
    module_name, separator, name = path.rpartition(":" if ":" in path else ".")
    if not separator:
        raise ImportError(f"implementation is {path!r}; it must be a module and a class, such as 'model.MyModel'")
    module = importlib.import_module(module_name)
    try:
        return getattr(module, name)
    except AttributeError:
        raise ImportError(f"implementation is {path!r}, but the module {module_name!r} has no {name!r}") from None
