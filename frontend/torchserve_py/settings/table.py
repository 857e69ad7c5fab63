"""Every setting there is: its name, type, default, meaning, and where its value may come from.

`Settings` is the table. Each attribute is one key of config.properties, except the last few, which have no key.
`torchserve_py.settings.resolution` fills it; nothing else reads files or the environment for configuration.
"""

# ruff: noqa: RUF009  (`setting` is a dataclass field with its source attached, evaluated once as a field should be)
from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass, field, fields
from pathlib import Path

from torchserve_py.settings import value_kinds as kinds
from torchserve_py.settings.addresses import Address
from torchserve_py.settings.model_spec import ModelSpec
from torchserve_py.settings.networks import Network
from torchserve_py.settings.snapshot_file import Snapshot
from torchserve_py.settings.source import Source, from_source, setting
from torchserve_py.settings.value_kinds import ModelsMap

_LOCAL_FILES = "file://.*"  # TorchServe's default allows every URL


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The effective configuration of one server. Paths are absolute where `resolution` has made it."""

    # Listeners
    inference_address: Address = setting(
        kinds.address(http_port=80, https_port=443),
        Address("http", "127.0.0.1", 8080),
        "where the inference API listens",
    )
    management_address: Address = setting(
        kinds.address(http_port=8081, https_port=8444),
        Address("http", "127.0.0.1", 8081),
        "where the management API listens; the same as `inference_address` makes one listener serve both",
    )
    metrics_address: Address = setting(
        kinds.address(http_port=8082, https_port=8445),
        Address("http", "127.0.0.1", 8082),
        "where `/metrics` listens",
    )
    enable_metrics_api: bool = setting(kinds.boolean, True, "whether the metrics listener is started")
    grpc_inference_address: str = setting(kinds.text, "127.0.0.1", "host that the gRPC inference API binds to")
    grpc_management_address: str = setting(kinds.text, "127.0.0.1", "host that the gRPC management API binds to")
    grpc_inference_port: int = setting(kinds.integer(0, 65535), 7070, "port of the gRPC inference API")
    grpc_management_port: int = setting(kinds.integer(0, 65535), 7071, "port of the gRPC management API")
    grpc_stream_envelope: str = setting(
        kinds.choice("auto", "triton", "mlserver"),
        "auto",
        "whose messages `ModelStreamInfer` answers with; `auto`: its first request tells",
    )
    grpc_inference_max_connection_age_ms: int | None = setting(
        kinds.integer(1),
        None,
        "milliseconds after which a gRPC inference connection is closed",
        default_text="unlimited",
    )
    grpc_management_max_connection_age_ms: int | None = setting(
        kinds.integer(1),
        None,
        "milliseconds after which a gRPC management connection is closed",
        default_text="unlimited",
    )
    grpc_inference_max_connection_age_grace_ms: int | None = setting(
        kinds.integer(0),
        None,
        "milliseconds that running calls have after the maximum age of an inference connection",
        default_text="unlimited",
    )
    grpc_management_max_connection_age_grace_ms: int | None = setting(
        kinds.integer(0),
        None,
        "milliseconds that running calls have after the maximum age of a management connection",
        default_text="unlimited",
    )

    # Models
    model_store: Path = field(
        metadata=from_source(
            kinds.existing_directory,
            "directory of the model archives",
            flag="--model-store",
            default_text="none, mandatory",
        )
    )
    workflow_store: Path | None = setting(
        kinds.path,
        None,
        "directory of the workflow archives; where it does not exist, no workflow can be registered",
        flag="--workflow-store",
        default_text="the model store",
    )
    load_models: tuple[ModelSpec, ...] = setting(
        kinds.model_list, (), "models to load at start-up; `all` loads the whole model store", flag="--models"
    )
    models: ModelsMap = field(
        default_factory=dict,
        metadata=from_source(kinds.models_map, "settings per model and version, as JSON", env=None),
    )
    model_snapshot: Snapshot | None = setting(
        kinds.snapshot,
        None,
        "models to serve instead of `load_models`; the server writes it into its snapshots",
        env=None,
        default_text="none",
    )
    snapshots_kept: int = setting(
        kinds.integer(1), 10, "how many snapshots are kept; each new one replaces the oldest beyond that"
    )
    enable_model_api: bool = setting(
        kinds.boolean,
        False,
        "whether models can be registered and unregistered over the APIs",
        flag="--enable-model-api",
    )
    allowed_urls: tuple[re.Pattern[str], ...] = setting(
        kinds.regexes,
        (re.compile(_LOCAL_FILES, re.IGNORECASE),),
        "regular expressions, one of which the whole URL of an archive must match; case does not count",
    )
    allowed_url_networks: tuple[Network, ...] = setting(
        kinds.networks,
        (),
        "networks beyond the public internet that archives may be downloaded from",
    )
    use_env_allowed_urls: bool = setting(
        kinds.boolean, False, "whether `TS_ALLOWED_URLS` overrides `allowed_urls`", env=None
    )
    install_py_dep_per_model: bool = setting(
        kinds.boolean, False, "whether the requirements file of each model is installed with pip"
    )
    default_service_handler: str | None = setting(
        kinds.text, None, "handler of an archive that names none", default_text="none"
    )
    service_envelope: str | None = setting(
        kinds.text,
        None,
        "request envelope of all models; replaces the one that an archive names",
        default_text="none",
    )

    # Workers
    default_workers_per_model: int = setting(
        kinds.integer(0),
        0,
        "workers of a model loaded at start-up; 0 means one per GPU, or one per CPU where there is no GPU",
    )
    number_of_gpu: int | None = setting(kinds.integer(0), None, "upper bound on the GPUs used", default_text="all")
    default_startup_timeout: int = setting(kinds.integer(1), 120, "seconds that a model may take to load")
    default_response_timeout: int = setting(kinds.integer(1), 120, "seconds that an inference may take")
    unregister_model_timeout: int = setting(
        kinds.integer(1),
        120,
        "seconds that stopping a worker may take, and that accepted requests have when the repository unloads their"
        " model",
    )
    worker_heartbeat_timeout: int = setting(
        kinds.integer(1), 30, "seconds without a sign of life after which a loaded worker is killed and replaced"
    )
    worker_user: str | None = setting(
        kinds.text,
        None,
        "user that workers run as; the server must then be started by root",
        default_text="the server's own",
    )
    worker_memory_limit: int | None = setting(
        kinds.integer(64),
        None,
        "megabytes that each process of a worker may allocate (Linux); beyond them its allocations fail",
        default_text="unlimited",
    )
    blacklist_env_vars: re.Pattern[str] | None = setting(
        kinds.regex,
        None,
        "regular expression; environment variables whose whole name matches are hidden from workers",
        default_text="none",
    )
    initial_worker_port: int = setting(
        kinds.integer(0), 9000, "first worker id; every new worker takes the next one, none is used twice"
    )
    initial_distribution_port: int = setting(
        kinds.integer(0),
        29500,
        "first id of workers that torchrun starts; the next is higher by the number of its processes",
    )
    decode_input_request: bool = setting(kinds.boolean, True, "whether workers decode JSON and text for the handler")
    limit_max_image_pixels: bool = setting(
        kinds.boolean, True, "whether vision handlers keep Pillow's limit on the size of an image"
    )
    ipex_enable: bool = setting(kinds.boolean, False, "whether BaseHandler uses the Intel extension for PyTorch")
    ipex_gpu_enable: bool = setting(kinds.boolean, False, "whether it uses that extension on Intel GPUs")
    cpu_launcher_enable: bool = setting(
        kinds.boolean, False, "whether workers are started through `torch.backends.xeon.run_cpu`"
    )
    cpu_launcher_args: str | None = setting(
        kinds.text, None, "further arguments of that launcher, separated by spaces", default_text="none"
    )
    debug: bool = setting(
        kinds.boolean,
        False,
        "one worker per model, no time limits, and no worker is started: the log says how to start one by hand",
    )

    # Requests
    job_queue_size: int = setting(kinds.integer(1), 100, "requests that may wait for one model version")
    max_request_size: int = setting(kinds.integer(1), 6553500, "bytes that a request body may have")
    max_response_size: int = setting(kinds.integer(1), 6553500, "bytes that a worker's response may have")
    max_connections: int = setting(
        kinds.integer(1),
        32768,
        "connections that one listener holds at once; all listeners share three quarters of the file descriptors",
    )
    max_connections_per_client: int | None = setting(
        kinds.integer(1),
        None,
        "how many of them may come from one IP address; set it only where clients come without a proxy before them",
        default_text="unlimited",
    )
    grpc_max_message_length: int | None = setting(
        kinds.integer(1),
        None,
        "bytes that a gRPC message with tensors may have",
        default_text="`max_request_size` if set, else unlimited",
    )
    grpc_max_concurrent_streams: int = setting(
        kinds.integer(1), 1000, "calls that one gRPC connection may have open at once; further ones wait at the client"
    )
    request_head_timeout: float = setting(
        kinds.positive_number, 60.0, "seconds that the head of an HTTP request may take from its first byte on"
    )
    stream_buffer_size: int = setting(
        kinds.integer(1), 1048576, "bytes that the server holds for one slow reader of a streamed response"
    )
    drain_timeout: int = setting(
        kinds.integer(0), 10, "seconds that accepted requests and open sequences have to finish when the server stops"
    )
    ts_header_key_sequence_id: str = setting(
        kinds.text,
        "ts_request_sequence_id",
        "name of the header that carries the id of a sequence",
        env="TS_HEADER_KEY_SEQUENCE_ID",
    )
    ts_header_key_sequence_start: str = setting(
        kinds.text,
        "ts_request_sequence_start",
        "name of the header that starts a sequence",
        env="TS_HEADER_KEY_SEQUENCE_START",
    )
    ts_header_key_sequence_end: str = setting(
        kinds.text,
        "ts_request_sequence_end",
        "name of the header that ends a sequence",
        env="TS_HEADER_KEY_SEQUENCE_END",
    )
    response_compression_min_size: int = setting(
        kinds.integer(0),
        1024,
        "bytes from which on an Open Inference response is compressed for a client that accepts gzip or deflate",
    )
    ts_open_inference_protocol: bool = setting(
        kinds.boolean,
        False,
        "whether `GET /v2` answers as TorchServe does; in the environment the value `oip` means yes, any other no",
        env="TS_OPEN_INFERENCE_PROTOCOL",
        env_always=True,
    )

    # Access
    disable_token_authorization: bool = setting(
        kinds.boolean, False, "whether requests need no token", flag="--disable-token-auth"
    )
    token_expiration_min: float = setting(
        kinds.positive_number, 60.0, "minutes that a token is valid", env="TS_TOKEN_EXPIRATION_TIME_MIN"
    )
    cors_allowed_origin: str | None = setting(
        kinds.text, None, "value of the header access-control-allow-origin", default_text="none"
    )
    cors_allowed_methods: str | None = setting(
        kinds.text, None, "value of the header access-control-allow-methods", default_text="none"
    )
    cors_allowed_headers: str | None = setting(
        kinds.text, None, "value of the header access-control-allow-headers", default_text="none"
    )
    keystore: Path | None = setting(kinds.path, None, "key store with the TLS key and certificate", default_text="none")
    keystore_pass: str = setting(kinds.any_text, "changeit", "password of the key store", secret=True)
    keystore_type: str = setting(kinds.text, "PKCS12", "format of the key store")
    private_key_file: Path | None = setting(kinds.path, None, "private key for TLS, PEM", default_text="none")
    certificate_file: Path | None = setting(kinds.path, None, "certificate chain for TLS, PEM", default_text="none")
    enable_grpc_ssl: bool = setting(kinds.boolean, False, "whether gRPC uses TLS")

    # Metrics and logs
    metrics_mode: str = setting(
        kinds.choice("log", "prometheus", "legacy"),
        "log",
        "where metrics go besides `/metrics`: `log` and `legacy` write and print metric logs, `prometheus` does not",
    )
    metrics_config: Path | None = setting(
        kinds.metrics_config, None, "YAML file that lists the metrics there are", default_text="built in"
    )
    model_metrics_auto_detect: bool = setting(
        kinds.boolean, False, "whether handlers may add metrics that this file does not list; without a file they may"
    )
    disable_system_metrics: bool = setting(kinds.boolean, False, "whether metrics of the host are left out")
    system_metrics_cmd: str | None = setting(
        kinds.command,
        None,
        "Python script and arguments that print metrics of the host",
        env=None,
        default_text="built in",
    )
    metric_time_interval: int = setting(
        kinds.integer(1), 60, "seconds from one collection of host metrics to the next", env=None
    )
    access_log: bool = setting(kinds.boolean, True, "whether each request is logged")
    traces: str | None = setting(
        kinds.text,
        None,
        "where OpenTelemetry traces go: `otlp`, or a file with a span in JSON per line",
        default_text="none",
    )
    log_format: str = setting(
        kinds.choice("text", "json"),
        "text",
        "how the log files and standard output are written: TorchServe's lines, or a JSON object for each",
    )
    enable_envvars_config: bool = setting(
        kinds.boolean, False, "whether `TS_...` environment variables override this file", env=None
    )

    # No keys of config.properties
    log_location: Path = setting(
        kinds.path, Path("logs"), "directory of the logs", env="LOG_LOCATION", env_always=True, in_file=False
    )
    metrics_location: Path = setting(
        kinds.path, Path("logs"), "directory of the metric logs", env="METRICS_LOCATION", env_always=True, in_file=False
    )
    temp_dir: Path = field(
        default_factory=lambda: Path(tempfile.gettempdir()),
        metadata=from_source(
            kinds.existing_directory,
            "root of the directories that archives are unpacked to and worker sockets lie in",
            env="TEMP",
            env_always=True,
            in_file=False,
            default_text="the system's temporary directory",
        ),
    )
    log_config: Path | None = setting(
        kinds.log_config,
        None,
        "configuration of Python's logging, JSON or YAML, in place of the built-in one",
        env=None,
        in_file=False,
        flag="--log-config",
        default_text="built in",
    )
    no_config_snapshots: bool = setting(
        kinds.boolean,
        False,
        "whether no snapshot of the configuration is read or written",
        env=None,
        in_file=False,
        flag="--no-config-snapshots",
    )


#: Every setting by name, in the order of the documentation.
SOURCES: dict[str, Source] = {each.name: each.metadata["source"] for each in fields(Settings)}

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
