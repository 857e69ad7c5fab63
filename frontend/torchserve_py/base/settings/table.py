"""Every setting of the kernel: its name, kind, default and meaning, and where its value may come from.

Plugins have more, in sections of their own; `server_settings` puts all together.
"""

import re
import tempfile
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

from pydantic import ConfigDict, Field, PrivateAttr

from torchserve_py.base.settings import value_kinds as kinds
from torchserve_py.base.settings.addresses import Address
from torchserve_py.base.settings.model_spec import ModelSpec
from torchserve_py.base.settings.schemas.schema import ClosedSchema, key
from torchserve_py.base.settings.schemas.values import (
    FLAG,
    MAX_LONG,
    NAME,
    POSITIVE,
    JsonText,
    Nested,
    choice,
    integer,
)
from torchserve_py.base.settings.schemas.versions import VersionSettings

DEFAULT_ORIGIN = "default"
BY_RULE = "TS_<KEY>"


class Effective(NamedTuple):
    """The value of one setting and where it came from, for people: ``default``, ``flag --models``, ``file:line``, …"""

    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class Source:
    """Where the value of a setting may come from, if not only from the file and from the variable `TS_<KEY>`."""

    env: str | None = BY_RULE  # the environment variable that overrides the setting
    env_always: bool = False  # that variable counts without enable_envvars_config=true
    env_word: str | None = None  # what that variable has for true, any other text being false
    in_file: bool = True  # the setting is a key of config.properties
    flag: str | None = None  # the command line flag that sets it
    short: str | None = None  # a second name of the flag
    metavar: str | None = None  # stands for the value in the flag's help
    must_exist: bool = False  # the flag is refused if the directory that it names does not exist
    secret: bool = False  # the value must never be shown; `repr` does not show it either
    kind: Any = None  # of the value


def setting(default: Any, meaning: str, shown: str = "", **more: Any) -> Any:
    """Return the field of a setting; `shown` tells its default where the value itself does not."""
    return key(None, meaning, shown, default, **more)


_Version = Annotated[VersionSettings, Nested('a JSON object of settings, such as {"batchSize": 4}')]
_Versions = Annotated[dict[str, _Version], Nested("a JSON object with an object of settings for each version")]

Switch = Annotated[bool, FLAG]
SwitchWithoutVariable = Annotated[bool, FLAG, Source(env=None)]
Name = Annotated[str, NAME]
OptionalName = Annotated[str | None, NAME]
Header = Annotated[str, kinds.HEADER]
Host = Annotated[str, kinds.HOST]
Port = Annotated[int, kinds.PORT]
Number = Annotated[int, integer(1, MAX_LONG)]
NumberFrom0 = Annotated[int, integer(0, MAX_LONG)]
OptionalNumber = Annotated[int | None, integer(1, MAX_LONG)]
Bytes = Annotated[int, integer(1, MAX_LONG, "bytes")]
#: As long as a version of a model can have it, which takes some of them as its defaults.
Seconds = Annotated[int, integer(1, unit="seconds")]
Milliseconds = Annotated[int | None, integer(1, MAX_LONG, "milliseconds")]
MillisecondsFrom0 = Annotated[int | None, integer(0, MAX_LONG, "milliseconds")]
OptionalPath = Annotated[Path | None, kinds.PATH]
OptionalRoute = Annotated[str | None, kinds.ROUTE]


class SettingsSection(ClosedSchema):
    """Settings that only a plugin reads; their fields are made by `setting`.

    All of these get all settings by name, those of the kernel too, but for those whose own value is wrong.
    """

    @classmethod
    def settle(cls, effective: MutableMapping[str, Effective]) -> Iterable[str]:
        """Change values that others overrule; yield a warning for each change."""
        return ()

    @classmethod
    def contradictions(cls, effective: Mapping[str, Effective]) -> Iterable[str]:
        """Yield a line for each mistake that keeps the server from starting."""
        return ()

    @classmethod
    def doubts(cls, effective: Mapping[str, Effective]) -> Iterable[str]:
        """Yield a warning for each setting that has no effect, or not the one that was probably meant."""
        return ()


S = TypeVar("S", bound=ClosedSchema)


class Settings(ClosedSchema):
    """The effective configuration of one server. Paths are absolute where `resolution` has made it."""

    #: Only the schema of all settings is used, see `server_settings`: what it is made of is never built.
    model_config: ClassVar[ConfigDict] = ConfigDict(defer_build=True)

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)
    _secret_variables: set[str] = PrivateAttr(default_factory=set)

    @property
    def origins(self) -> dict[str, str]:
        """Where the value of each setting comes from, see `Effective`; `resolution` fills it."""
        return self._origins

    @property
    def secret_variables(self) -> set[str]:
        """The variables to which settings that are secrets refer, as in ``keystore_pass=${NAME}``; filled likewise."""
        return self._secret_variables

    def of(self, section: type[S]) -> S:
        """Return the settings of a plugin. Raises TypeError: they are not among these; see `server_settings`."""
        if not isinstance(self, section):
            raise TypeError(f"{section.__name__} is not a section of {type(self).__name__}; does a plugin offer it?")
        return self

    # Listeners
    inference_address: Annotated[Address, kinds.address(http_port=80, https_port=443)] = setting(
        Address("http", "127.0.0.1", 8080), "where the inference API listens"
    )
    management_address: Annotated[Address, kinds.address(http_port=8081, https_port=8444)] = setting(
        Address("http", "127.0.0.1", 8081),
        "where the management API listens; may be that of `inference_address`",
    )
    metrics_address: Annotated[Address, kinds.address(http_port=8082, https_port=8445)] = setting(
        Address("http", "127.0.0.1", 8082), "where `/metrics` listens"
    )
    enable_metrics_api: Switch = setting(True, "start the metrics listener")
    health_route: OptionalRoute = setting(
        None, "one more path of `/ready`; `/ping` itself is then 503 until the start-up models are loaded"
    )

    # Models
    model_store: Annotated[Path, kinds.DIRECTORY, Source(flag="--model-store", metavar="DIR", must_exist=True)] = (
        setting(Path(), "directory of the model archives", "none, mandatory")
    )
    data_folder: Annotated[Path, kinds.PATH] = setting(
        Path("data"),
        "directory of the file store's sequences, [those in memory](operations.md#sequences-in-memory), and the names"
        " of background responses",
    )
    load_models: Annotated[tuple[ModelSpec, ...], kinds.MODELS, Source(flag="--models", metavar="[NAME=]LOCATION")] = (
        setting((), "models to load at start-up; `all` loads the whole model store", "none")
    )
    models: Annotated[
        dict[str, _Versions],
        JsonText('a JSON object: {"model": {"version": {"batchSize": 4, ...}}}'),
        Source(env=None),
    ] = setting({}, "settings per model and version, as JSON", "none")
    enable_model_api: Annotated[bool, FLAG, Source(flag="--enable-model-api")] = setting(
        False, "let clients register and unregister models"
    )
    allowed_urls: Annotated[tuple[re.Pattern[str], ...], kinds.REGEXES] = setting(
        (re.compile("file://.*", re.IGNORECASE),),  # TorchServe's default allows every URL
        "the whole URL of an archive must match one of these, in upper or lower case",
    )
    allowed_url_networks: Annotated[tuple[IPv4Network | IPv6Network, ...], kinds.NETWORKS] = setting(
        (), "networks, besides the public internet, that archives may come from", "none"
    )
    use_env_allowed_urls: SwitchWithoutVariable = setting(False, "let `TS_ALLOWED_URLS` override `allowed_urls`")
    install_py_dep_per_model: Switch = setting(False, "install each model's requirements file with pip")
    default_service_handler: OptionalName = setting(None, "handler of an archive that names none")
    service_envelope: OptionalName = setting(
        None, "[request envelope](rest-api.md#inference) of all models, instead of the archive's"
    )

    # Workers
    default_workers_per_model: Annotated[int, integer(0)] = setting(
        0, "workers of a start-up model; 0: one per GPU, without GPUs one per CPU"
    )
    number_of_gpu: Annotated[int | None, integer(0)] = setting(None, "GPUs used, at most", "all")
    default_startup_timeout: Seconds = setting(120, "how long a model may take to load")
    default_response_timeout: Seconds = setting(120, "how long an inference may take")
    unregister_model_timeout: Seconds = setting(
        120,
        "how long a worker may take to stop, accepted requests when their model is unregistered, and open sequences"
        " if another version stays",
    )
    worker_heartbeat_timeout: Seconds = setting(
        30, "a loaded worker that answers no ping for that long is killed and replaced"
    )
    worker_launcher: Name = setting("local", "where workers run: on this machine")  # `server_settings` adds launchers
    blacklist_env_vars: Annotated[re.Pattern[str] | None, kinds.REGEX] = setting(
        None, "variables whose whole name matches are hidden from workers"
    )
    initial_worker_port: NumberFrom0 = setting(9000, "first worker id; each new worker gets the next")
    initial_distribution_port: NumberFrom0 = setting(
        29500, "first id of torchrun's workers; the next is higher by the worker's processes"
    )
    decode_input_request: Switch = setting(True, "decode JSON and text in the worker, before the handler")
    limit_max_image_pixels: Switch = setting(True, "keep Pillow's limit on image sizes")
    ipex_enable: Switch = setting(False, "use the Intel extension for PyTorch in BaseHandler")
    ipex_gpu_enable: Switch = setting(False, "use the Intel extension for PyTorch in BaseHandler on Intel GPUs")
    cpu_launcher_enable: Switch = setting(False, "start workers through `torch.backends.xeon.run_cpu`")
    cpu_launcher_args: OptionalName = setting(None, "arguments for that launcher, separated by spaces")
    debug: Switch = setting(False, "one worker per model, which you start by hand as the log says; no time limits")

    # Requests
    job_queue_size: Number = setting(100, "requests that may wait for one model version")
    max_request_size: Bytes = setting(6553500, "the largest request body")
    max_response_size: Bytes = setting(6553500, "the largest response of a worker")
    max_connections: Number = setting(
        32768, "connections of one listener; all listeners share three quarters of the file descriptors"
    )
    max_connections_per_client: OptionalNumber = setting(
        None,
        "connections of one listener from one IP address; not for servers behind a proxy",
        "unlimited",
    )
    request_head_timeout: Annotated[float, POSITIVE] = setting(
        60.0, "seconds for the head of an HTTP request, from its first byte"
    )
    stream_buffer_size: Bytes = setting(1048576, "what the server holds of a stream for one slow reader")
    event_comment_interval: Annotated[int, integer(0, MAX_LONG, "seconds")] = setting(
        0,
        "how often a stream without its first event [gets a"
        " comment](operations.md#streams-and-websockets-through-a-proxy); 0: never",
    )
    drain_delay: Annotated[int, integer(0, MAX_LONG, "seconds")] = setting(
        0, "how long a stopping server [still accepts new work](operations.md#stopping-and-rolling-restarts)"
    )
    drain_timeout: Annotated[int, integer(0, MAX_LONG, "seconds")] = setting(
        10, "how long requests and open sequences have to finish when the server stops"
    )
    ts_header_key_sequence_id: Header = setting("ts_request_sequence_id", "has the id of a sequence")
    ts_header_key_sequence_start: Header = setting("ts_request_sequence_start", "starts a sequence")
    ts_header_key_sequence_end: Header = setting("ts_request_sequence_end", "ends a sequence")

    # Access
    disable_token_authorization: Annotated[bool, FLAG, Source(flag="--disable-token-auth", short="--dt")] = setting(
        False, "serve requests without a token"
    )
    cors_allowed_origin: OptionalName = setting(None, "origin whose pages may call the server, or `*`")
    cors_allowed_methods: OptionalName = setting(None, "methods that pages of that origin may use", "all methods")
    cors_allowed_headers: OptionalName = setting(None, "headers that pages of that origin may send", "all headers")

    # Metrics and logs
    metrics_mode: Annotated[Literal["log", "prometheus", "legacy"], choice("log", "prometheus", "legacy")] = setting(
        "log",
        "where metrics go besides `/metrics`: [metric logs](metrics.md#metric-logs) (`log`, `legacy`) or nowhere",
    )
    metric_log_lines: Annotated[Literal["requests", "summary"], choice("requests", "summary")] = setting(
        "requests",
        "what [`ts_metrics.log`](metrics.md#metric-logs) has: lines for each request, or once a second",
    )
    access_log: Switch = setting(True, "log each request")
    log_format: Annotated[Literal["text", "json"], choice("text", "json"), Source(env_always=True)] = setting(
        "text", "format of log files and standard output: TorchServe's lines, or JSON objects"
    )
    enable_envvars_config: SwitchWithoutVariable = setting(
        False, "let `TS_...` environment variables override this file"
    )

    # No keys of config.properties
    log_location: Annotated[Path, kinds.PATH, Source(env="LOG_LOCATION", env_always=True, in_file=False)] = setting(
        Path("logs"), "directory of the logs"
    )
    metrics_location: Annotated[Path, kinds.PATH, Source(env="METRICS_LOCATION", env_always=True, in_file=False)] = (
        setting(Path("logs"), "directory of the metric logs")
    )
    temp_dir: Annotated[Path, kinds.DIRECTORY, Source(env="TEMP", env_always=True, in_file=False)] = Field(
        default_factory=lambda: Path(tempfile.gettempdir()),
        description="each server's folder for archives and its workers' socket; at most 82 bytes, not shared with other"
        " machines: a start removes the folders of servers that do not run",
        json_schema_extra={"x-default": "the system's temporary directory"},
    )
    log_config: Annotated[
        Path | None, kinds.LOG_CONFIG, Source(env=None, in_file=False, flag="--log-config", metavar="FILE")
    ] = setting(
        None, "[configuration of Python's logging](logging.md#a-configuration-of-your-own), JSON or YAML", "built in"
    )
    no_config_snapshots: Annotated[
        bool, FLAG, Source(env=None, in_file=False, flag="--no-config-snapshots", short="--ncs")
    ] = setting(False, "neither read nor write [snapshots](#snapshots)")


#: Keys of config.properties that configure the Java virtual machine or the C++ backend of TorchServe: never acted on.
JVM_KEYS = (
    "async_logging",
    "cpp_log_config",
    "io_ratio",
    "netty_client_threads",
    "number_of_netty_threads",
    "plugins_path",
    "prefer_direct_buffer",
    "use_native_io",
    "vmargs",
)

#: Keys that TorchServe writes into its snapshots for itself: never acted on either.
INTERNAL_KEYS = ("model_server_home", "python", "tsConfigFile", "version")
