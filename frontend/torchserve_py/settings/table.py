"""Every setting of the server: its name, kind, default and meaning, and where its value may come from.

`Settings` is the schema of config.properties, of the `TS_...` environment variables and of the flags of settings; its
field names are the keys. `torchserve_py.settings.resolution` fills it, and the tables of docs/configuration.md follow
from it.
"""

import re
import tempfile
from dataclasses import dataclass, replace
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, GetJsonSchemaHandler
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema

from torchserve_py.settings import value_kinds as kinds
from torchserve_py.settings.addresses import Address
from torchserve_py.settings.model_spec import ModelSpec
from torchserve_py.settings.properties import written
from torchserve_py.settings.schemas.schema import ClosedSchema, key
from torchserve_py.settings.schemas.values import (
    ANY_TEXT,
    FLAG,
    MAX_LONG,
    NAME,
    POSITIVE,
    JsonText,
    Nested,
    choice,
    integer,
)
from torchserve_py.settings.schemas.versions import VersionSettings
from torchserve_py.settings.snapshot_file import Snapshot

DEFAULT_ORIGIN = "default"
_BY_RULE = "TS_<KEY>"


class Effective(NamedTuple):
    """The value of one setting and where it came from, for people: ``default``, ``flag --models``, ``file:line``, …"""

    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class Source:
    """Where the value of a setting may come from, if not only from the file and from the variable `TS_<KEY>`."""

    env: str | None = _BY_RULE  # the environment variable that overrides the setting
    env_always: bool = False  # that variable counts without enable_envvars_config=true
    in_file: bool = True  # the setting is a key of config.properties
    flag: str | None = None  # the command line flag that sets it
    short: str | None = None  # a second name of the flag
    metavar: str | None = None  # stands for the value in the flag's help
    secret: bool = False  # the value must never be shown; `repr` does not show it either
    kind: Any = None  # of the value


def _setting(default: Any, meaning: str, shown: str = "", **more: Any) -> Any:
    """Return the field of a setting; `shown` tells its default where the value itself does not."""
    return key(None, meaning, shown, default, **more)


_Version = Annotated[VersionSettings, Nested('a JSON object of settings, such as {"batchSize": 4}')]
_Versions = Annotated[dict[str, _Version], Nested("a JSON object with an object of settings for each version")]

Switch = Annotated[bool, FLAG]
SwitchWithoutVariable = Annotated[bool, FLAG, Source(env=None)]
Name = Annotated[str, NAME]
OptionalName = Annotated[str | None, NAME]
Port = Annotated[int, integer(0, 65535)]
Number = Annotated[int, integer(1, MAX_LONG)]
NumberFrom0 = Annotated[int, integer(0, MAX_LONG)]
OptionalNumber = Annotated[int | None, integer(1, MAX_LONG)]
Bytes = Annotated[int, integer(1, MAX_LONG, "bytes")]
Seconds = Annotated[int, integer(1, MAX_LONG, "seconds")]
Milliseconds = Annotated[int | None, integer(1, MAX_LONG, "milliseconds")]
MillisecondsFrom0 = Annotated[int | None, integer(0, MAX_LONG, "milliseconds")]
OptionalPath = Annotated[Path | None, kinds.PATH]
OptionalRoute = Annotated[str | None, kinds.ROUTE]


class Settings(ClosedSchema):
    """The effective configuration of one server. Paths are absolute where `resolution` has made it."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the JSON Schema of config.properties: its keys only, and texts as the file writes them."""
        schema = handler.resolve_ref_schema(handler(core))
        schema["description"] = "config.properties"
        keys = {name: schema["properties"][name] for name, source in SOURCES.items() if source.in_file}
        for name, each in keys.items():
            default = written(default_of(name, Path()))
            if default == "" or name == "model_store":
                del each["default"]
            elif each.get("type") == "string":
                each["default"] = default
        return {**schema, "properties": keys}

    # Listeners
    inference_address: Annotated[Address, kinds.address(http_port=80, https_port=443)] = _setting(
        Address("http", "127.0.0.1", 8080), "where the inference API listens"
    )
    management_address: Annotated[Address, kinds.address(http_port=8081, https_port=8444)] = _setting(
        Address("http", "127.0.0.1", 8081),
        "where the management API listens; the same as `inference_address` makes one listener serve both",
    )
    metrics_address: Annotated[Address, kinds.address(http_port=8082, https_port=8445)] = _setting(
        Address("http", "127.0.0.1", 8082), "where `/metrics` listens"
    )
    enable_metrics_api: Switch = _setting(True, "whether the metrics listener is started")
    health_route: OptionalRoute = _setting(None, "one more path of `/ready`")
    predict_route: OptionalRoute = _setting(
        None, "one more path of `/v1/models/{model}:predict`, for the only model loaded at start-up"
    )
    enable_console: Switch = _setting(
        True, "whether the management listener has the console, a page for browsers at `/console`"
    )
    grpc_inference_address: Name = _setting("127.0.0.1", "host that the gRPC inference API binds to")
    grpc_management_address: Name = _setting("127.0.0.1", "host that the gRPC management API binds to")
    grpc_inference_port: Port = _setting(7070, "port of the gRPC inference API")
    grpc_management_port: Port = _setting(7071, "port of the gRPC management API")
    grpc_stream_envelope: Annotated[Literal["auto", "triton", "mlserver"], choice("auto", "triton", "mlserver")] = (
        _setting("auto", "whose messages `ModelStreamInfer` answers with; `auto`: as its first request tells")
    )
    grpc_inference_max_connection_age_ms: Milliseconds = _setting(
        None, "age at which a gRPC inference connection is closed", "unlimited"
    )
    grpc_management_max_connection_age_ms: Milliseconds = _setting(
        None, "age at which a gRPC management connection is closed", "unlimited"
    )
    grpc_inference_max_connection_age_grace_ms: MillisecondsFrom0 = _setting(
        None, "how long running calls may go on after the maximum age of an inference connection", "unlimited"
    )
    grpc_management_max_connection_age_grace_ms: MillisecondsFrom0 = _setting(
        None, "how long running calls may go on after the maximum age of a management connection", "unlimited"
    )

    # Models
    model_store: Annotated[Path, kinds.DIRECTORY, Source(flag="--model-store", metavar="DIR")] = _setting(
        Path(), "directory of the model archives", "none, mandatory"
    )
    workflow_store: Annotated[Path | None, kinds.PATH, Source(flag="--workflow-store", metavar="DIR")] = _setting(
        None,
        "directory of the workflow archives; while it does not exist, no workflow can be registered",
        "the model store",
    )
    load_models: Annotated[tuple[ModelSpec, ...], kinds.MODELS, Source(flag="--models", metavar="[NAME=]LOCATION")] = (
        _setting((), "models to load at start-up; `all` loads the whole model store", "none")
    )
    models: Annotated[
        dict[str, _Versions],
        JsonText('a JSON object: {"model": {"version": {"batchSize": 4, ...}}}'),
        Source(env=None),
    ] = _setting({}, "settings per model and version, as JSON", "none")
    model_snapshot: Annotated[Snapshot | None, kinds.SNAPSHOT, Source(env=None)] = _setting(
        None, "models to serve instead of `load_models`; the server writes it into its snapshots"
    )
    snapshots_kept: Number = _setting(10, "how many snapshots are kept; each new one replaces the oldest beyond that")
    enable_model_api: Annotated[bool, FLAG, Source(flag="--enable-model-api")] = _setting(
        False, "whether models can be registered and unregistered over the APIs"
    )
    allowed_urls: Annotated[tuple[re.Pattern[str], ...], kinds.REGEXES] = _setting(
        (re.compile("file://.*", re.IGNORECASE),),  # TorchServe's default allows every URL
        "the whole URL of an archive must match one of these; case does not count",
    )
    allowed_url_networks: Annotated[tuple[IPv4Network | IPv6Network, ...], kinds.NETWORKS] = _setting(
        (), "networks beyond the public internet that archives may be downloaded from", "none"
    )
    use_env_allowed_urls: SwitchWithoutVariable = _setting(False, "whether `TS_ALLOWED_URLS` overrides `allowed_urls`")
    install_py_dep_per_model: Switch = _setting(
        False, "whether the requirements file of each model is installed with pip"
    )
    default_service_handler: OptionalName = _setting(None, "handler of an archive that names none")
    service_envelope: OptionalName = _setting(
        None, "request envelope of all models; replaces the one that an archive names"
    )

    # Workers
    default_workers_per_model: NumberFrom0 = _setting(
        0, "workers of a model loaded at start-up; 0 means one per GPU, or one per CPU where there is no GPU"
    )
    number_of_gpu: Annotated[int | None, integer(0)] = _setting(None, "upper bound on the GPUs used", "all")
    default_startup_timeout: Seconds = _setting(120, "how long a model may take to load")
    default_response_timeout: Seconds = _setting(120, "how long an inference may take")
    unregister_model_timeout: Seconds = _setting(
        120,
        "how long stopping a worker may take, and how long accepted requests have when the repository unloads their"
        " model",
    )
    worker_heartbeat_timeout: Seconds = _setting(
        30, "a loaded worker without a sign of life for that long is killed and replaced"
    )
    worker_user: OptionalName = _setting(
        None, "user that workers run as; the server must then be started by root", "the server's own"
    )
    worker_memory_limit: Annotated[int | None, integer(64, MAX_LONG, "megabytes")] = _setting(
        None, "memory that each process of a worker may allocate (Linux); allocations beyond it fail", "unlimited"
    )
    fork_workers: Switch = _setting(
        True, "whether workers of models that use torch are forked from a process that has imported it (Linux)"
    )
    worker_launcher: Annotated[Literal["local", "ray"], choice("local", "ray")] = _setting(
        "local", "where workers run: on this machine, or on the nodes of a [Ray cluster](ray.md)"
    )
    ray_address: Name = _setting("auto", "the Ray cluster; `auto`: the one that this machine belongs to")
    ray_worker_host: OptionalName = _setting(
        None, "an address of this machine that Ray's nodes reach; workers connect to it", "Ray's"
    )
    blacklist_env_vars: Annotated[re.Pattern[str] | None, kinds.REGEX] = _setting(
        None, "environment variables whose whole name matches are hidden from workers"
    )
    initial_worker_port: NumberFrom0 = _setting(
        9000, "first worker id; every new worker takes the next one, and no id is used twice"
    )
    initial_distribution_port: NumberFrom0 = _setting(
        29500, "first id of workers that torchrun starts; the next is higher by the number of the worker's processes"
    )
    decode_input_request: Switch = _setting(True, "whether workers decode JSON and text for the handler")
    limit_max_image_pixels: Switch = _setting(
        True, "whether vision handlers keep Pillow's limit on the size of an image"
    )
    ipex_enable: Switch = _setting(False, "whether BaseHandler uses the Intel extension for PyTorch")
    ipex_gpu_enable: Switch = _setting(False, "whether BaseHandler uses the Intel extension for PyTorch on Intel GPUs")
    cpu_launcher_enable: Switch = _setting(False, "whether workers are started through `torch.backends.xeon.run_cpu`")
    cpu_launcher_args: OptionalName = _setting(None, "further arguments of that launcher, separated by spaces")
    debug: Switch = _setting(
        False, "one worker per model, no time limits, and no worker is started: the log says how to start one by hand"
    )

    # Requests
    job_queue_size: Number = _setting(100, "requests that may wait for one model version")
    max_request_size: Bytes = _setting(6553500, "the largest request body")
    shared_memory_keys: Annotated[tuple[str, ...], kinds.WORDS] = _setting(
        (), "shared memory objects that clients may register for tensors: names, `*` stands for any text", "none"
    )
    max_response_size: Bytes = _setting(6553500, "the largest response of a worker")
    max_connections: Number = _setting(
        32768, "connections that one listener holds at once; all listeners share three quarters of the file descriptors"
    )
    max_connections_per_client: OptionalNumber = _setting(
        None,
        "how many of these connections may come from one IP address; set it only where clients come without a proxy",
        "unlimited",
    )
    grpc_max_message_length: Annotated[int | None, integer(1, MAX_LONG, "bytes")] = _setting(
        None, "the largest gRPC message with tensors", "`max_request_size` if set, else unlimited"
    )
    grpc_max_concurrent_streams: Number = _setting(
        1000, "calls that one gRPC connection may have open at once; further ones wait at the client"
    )
    request_head_timeout: Annotated[float, POSITIVE] = _setting(
        60.0, "seconds that the head of an HTTP request may take from its first byte on"
    )
    stream_buffer_size: Bytes = _setting(1048576, "what the server holds for one slow reader of a streamed response")
    drain_timeout: Annotated[int, integer(0, MAX_LONG, "seconds")] = _setting(
        10, "how long accepted requests and open sequences have to finish when the server stops"
    )
    ts_header_key_sequence_id: Name = _setting(
        "ts_request_sequence_id", "name of the header that carries the id of a sequence"
    )
    ts_header_key_sequence_start: Name = _setting(
        "ts_request_sequence_start", "name of the header that starts a sequence"
    )
    ts_header_key_sequence_end: Name = _setting("ts_request_sequence_end", "name of the header that ends a sequence")
    response_compression_min_size: Annotated[int, integer(0, MAX_LONG, "bytes")] = _setting(
        1024, "smallest Open Inference response that is compressed for a client that accepts gzip or deflate"
    )
    ts_open_inference_protocol: Annotated[bool, FLAG, Source(env_always=True)] = _setting(
        False,
        "whether `GET /v2` answers as TorchServe does; in the environment the value `oip` means yes, any other no",
    )

    # Access
    disable_token_authorization: Annotated[bool, FLAG, Source(flag="--disable-token-auth", short="--dt")] = _setting(
        False, "whether requests need no token"
    )
    token_expiration_min: Annotated[float, POSITIVE, Source(env="TS_TOKEN_EXPIRATION_TIME_MIN")] = _setting(
        60.0, "minutes that a token is valid"
    )
    cors_allowed_origin: OptionalName = _setting(None, "value of the header access-control-allow-origin")
    cors_allowed_methods: OptionalName = _setting(None, "value of the header access-control-allow-methods")
    cors_allowed_headers: OptionalName = _setting(None, "value of the header access-control-allow-headers")
    keystore: OptionalPath = _setting(None, "key store with the TLS key and certificate")
    keystore_pass: Annotated[str, ANY_TEXT] = _setting("changeit", "password of the key store", repr=False)
    keystore_type: Name = _setting("PKCS12", "format of the key store")
    private_key_file: OptionalPath = _setting(None, "private key for TLS, PEM")
    certificate_file: OptionalPath = _setting(None, "certificate chain for TLS, PEM")
    enable_grpc_ssl: Switch = _setting(False, "whether gRPC uses TLS")

    # Metrics and logs
    metrics_mode: Annotated[Literal["log", "prometheus", "legacy"], choice("log", "prometheus", "legacy")] = _setting(
        "log",
        "where metrics go besides `/metrics`: `log` and `legacy` write and print metric logs, `prometheus` does not",
    )
    metrics_config: Annotated[Path | None, kinds.METRICS_CONFIG] = _setting(
        None, "YAML file that lists the metrics there are", "built in"
    )
    model_metrics_auto_detect: Switch = _setting(
        False, "whether handlers may add metrics that this file does not list; without a file they may"
    )
    disable_system_metrics: Switch = _setting(False, "whether metrics of the host are left out")
    system_metrics_cmd: Annotated[str | None, kinds.COMMAND, Source(env=None)] = _setting(
        None, "Python script and arguments that print metrics of the host", "built in"
    )
    metric_time_interval: Annotated[int, integer(1, MAX_LONG, "seconds"), Source(env=None)] = _setting(
        60, "how long after one collection of host metrics the next begins"
    )
    access_log: Switch = _setting(True, "whether each request is logged")
    traces: OptionalName = _setting(
        None, "where OpenTelemetry traces go: `otlp`, or a file with a span in JSON per line"
    )
    log_format: Annotated[Literal["text", "json"], choice("text", "json")] = _setting(
        "text", "how the log files and standard output are written: TorchServe's lines, or a JSON object for each"
    )
    enable_envvars_config: SwitchWithoutVariable = _setting(
        False, "whether `TS_...` environment variables override this file"
    )

    # No keys of config.properties
    log_location: Annotated[Path, kinds.PATH, Source(env="LOG_LOCATION", env_always=True, in_file=False)] = _setting(
        Path("logs"), "directory of the logs"
    )
    metrics_location: Annotated[Path, kinds.PATH, Source(env="METRICS_LOCATION", env_always=True, in_file=False)] = (
        _setting(Path("logs"), "directory of the metric logs")
    )
    temp_dir: Annotated[Path, kinds.DIRECTORY, Source(env="TEMP", env_always=True, in_file=False)] = Field(
        default_factory=lambda: Path(tempfile.gettempdir()),
        description="where each server has a folder for unpacked archives and its workers' socket; the path has at "
        "most 82 bytes. Not to be shared with other machines: a start removes the folders of servers that do not run "
        "on its own",
        json_schema_extra={"x-default": "the system's temporary directory"},
    )
    log_config: Annotated[
        Path | None, kinds.LOG_CONFIG, Source(env=None, in_file=False, flag="--log-config", metavar="FILE")
    ] = _setting(None, "configuration of Python's logging, JSON or YAML, in place of the built-in one", "built in")
    no_config_snapshots: Annotated[
        bool, FLAG, Source(env=None, in_file=False, flag="--no-config-snapshots", short="--ncs")
    ] = _setting(False, "whether no snapshot of the configuration is read or written")


def _source(name: str, field: FieldInfo) -> Source:
    source = next((each for each in field.metadata if isinstance(each, Source)), Source())
    env = f"TS_{name.removeprefix('ts_').upper()}" if source.env == _BY_RULE else source.env
    return replace(
        source, env=env, secret=not field.repr, kind=next(each for each in field.metadata if hasattr(each, "from_text"))
    )


#: Every setting by name, in the order of the documentation.
SOURCES: dict[str, Source] = {name: _source(name, field) for name, field in Settings.model_fields.items()}

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


def default_of(name: str, cwd: Path) -> Any:
    """Return the default of a setting; relative paths start from ``cwd``."""
    default = Settings.model_fields[name].get_default(call_default_factory=True)
    return cwd / default if isinstance(default, Path) else default
