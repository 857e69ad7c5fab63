"""Settings: precedence, provenance, and what is said about wrong and unknown values."""

from pathlib import Path

import pytest

from torchserve_py.base.settings.addresses import Address
from torchserve_py.base.settings.flags import parse_flags
from torchserve_py.base.settings.model_spec import ModelSpec
from torchserve_py.base.settings.resolution import Resolution, SettingsError
from torchserve_py.base.settings.schemas.versions import VersionSettings
from torchserve_py.base.settings.server_settings import server_settings, sources
from torchserve_py.base.settings.table import JVM_KEYS
from torchserve_py.base.settings.value_kinds import DIRECTORY, PATH
from torchserve_py.endpoints.binding import HTTP_ADDRESSES
from torchserve_py.tools.operator_tools.print_config import report

FLAGS = ("--model-store", "store")


@pytest.fixture
def home(tmp_path):
    """A current directory with a model store."""
    (tmp_path / "store").mkdir()
    return tmp_path


def configure(home, text="", argv=("--model-store", "store"), environ=None):
    """Resolve ``text`` as config.properties of ``home``."""
    if text:
        (home / "config.properties").write_text(text)
    return Resolution(parse_flags(argv), environ or {}, home)


def value(resolution, name):
    effective = resolution.effective[name]
    return effective.value, effective.origin


# Precedence and provenance


def test_defaults(home):
    resolution = configure(home)
    folders = {"data_folder": home / "data", "log_location": home / "logs", "metrics_location": home / "logs"}
    expected = server_settings()(model_store=home / "store", **folders)
    settings = resolution.settings()
    assert (type(settings), vars(settings)) == (type(expected), vars(expected))
    assert {name: each.origin for name, each in resolution.effective.items() if each.origin != "default"} == {
        "model_store": "flag --model-store"
    }
    assert not resolution.warnings


def test_file_beats_default_flag_beats_file_environment_beats_flag(home):
    for name in ("of_flag", "of_env"):
        (home / name).mkdir()
    text = "\nmodel_store=store\n"
    assert value(configure(home, text, argv=[]), "model_store") == (home / "store", "config.properties:2")
    flag = ["--model-store", "of_flag"]
    assert value(configure(home, text, argv=flag), "model_store") == (home / "of_flag", "flag --model-store")
    environ = {"TS_MODEL_STORE": "of_env"}
    assert value(configure(home, text, flag, environ), "model_store") == (home / "of_flag", "flag --model-store")
    assert value(configure(home, text + "enable_envvars_config=true", flag, environ), "model_store") == (
        home / "of_env",
        "environment variable TS_MODEL_STORE",
    )


def test_the_file_of_the_environment_beats_that_of_the_flag_beats_that_of_the_directory(home):
    for size, name in enumerate(("config.properties", "flag.properties", "env.properties"), start=1):
        (home / name).write_text(f"job_queue_size={size}")
    argv = ["--model-store", "store"]
    assert value(configure(home), "job_queue_size") == (1, "config.properties:1")
    argv += ["--ts-config", "flag.properties"]
    assert value(configure(home, argv=argv), "job_queue_size") == (2, "flag.properties:1")
    environ = {"TS_CONFIG_FILE": "env.properties"}
    assert value(configure(home, argv=argv, environ=environ), "job_queue_size") == (3, "env.properties:1")


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("job_queue_size", "TS_JOB_QUEUE_SIZE"),
        ("token_expiration_min", "TS_TOKEN_EXPIRATION_TIME_MIN"),
        ("ts_header_key_sequence_id", "TS_HEADER_KEY_SEQUENCE_ID"),
        ("ts_header_key_sequence_start", "TS_HEADER_KEY_SEQUENCE_START"),
        ("ts_header_key_sequence_end", "TS_HEADER_KEY_SEQUENCE_END"),
        ("ts_open_inference_protocol", "TS_OPEN_INFERENCE_PROTOCOL"),
        ("drain_timeout", "TS_DRAIN_TIMEOUT"),
        ("log_location", "LOG_LOCATION"),
        ("temp_dir", "TEMP"),
        ("models", None),
        ("model_snapshot", None),
        ("system_metrics_cmd", None),
        ("metric_time_interval", None),
        ("enable_envvars_config", None),
        ("use_env_allowed_urls", None),
        ("no_config_snapshots", None),
    ],
)
def test_the_environment_variable_of_a_setting(name, variable):
    assert sources()[name].env == variable


def test_an_environment_variable_without_the_switch_is_told_of(home):
    resolution = configure(home, environ={"TS_JOB_QUEUE_SIZE": "5", "PATH": "/bin"})
    assert value(resolution, "job_queue_size") == (100, "default")
    assert resolution.warnings == [
        "No effect without enable_envvars_config=true in config.properties: TS_JOB_QUEUE_SIZE"
    ]


def test_allowed_urls_of_the_environment_need_a_switch_of_their_own(home):
    environ = {"TS_ALLOWED_URLS": "https://a/.*, https://b/.*"}
    resolution = configure(home, "enable_envvars_config=true", environ=environ)
    assert value(resolution, "allowed_urls")[1] == "default"
    assert "use_env_allowed_urls=true" in resolution.warnings[0]
    resolution = configure(home, "enable_envvars_config=true\nuse_env_allowed_urls=true", environ=environ)
    patterns, origin = value(resolution, "allowed_urls")
    assert [pattern.pattern for pattern in patterns] == ["https://a/.*", "https://b/.*"]
    assert origin == "environment variable TS_ALLOWED_URLS"
    assert patterns[0].fullmatch("HTTPS://A/x.mar")


@pytest.mark.parametrize(("text", "expected"), [("oip", True), ("true", False), ("OIP", False), ("", False)])
def test_the_open_inference_protocol_of_the_environment(home, text, expected):
    resolution = configure(home, "ts_open_inference_protocol=true", environ={"TS_OPEN_INFERENCE_PROTOCOL": text})
    assert resolution.settings().ts_open_inference_protocol is expected


def test_directories_of_the_environment_need_no_switch(home):
    environ = {"LOG_LOCATION": "l", "METRICS_LOCATION": str(home / "m"), "TEMP": "store"}
    settings = configure(home, environ=environ).settings()
    assert (settings.log_location, settings.metrics_location) == (home / "l", home / "m")
    assert settings.temp_dir == home / "store"


def test_switches_of_the_command_line(home):
    argv = ["--model-store", "store", "--ncs", "--dt", "--enable-model-api", "--models", "a.mar", "b=x.mar,c.mar"]
    settings = configure(home, "load_models=all", argv=argv).settings()
    assert settings.no_config_snapshots
    assert settings.disable_token_authorization
    assert settings.enable_model_api
    assert settings.load_models == (ModelSpec(None, "a.mar"), ModelSpec("b", "x.mar"), ModelSpec(None, "c.mar"))


# Values


def test_values_are_typed(home):
    settings = configure(
        home,
        """
        inference_address=http://0.0.0.0
        management_address=unix:/tmp/m.sock
        metrics_address=HTTP://0.0.0.0
        default_response_timeout= 300
        token_expiration_min=0.5
        decode_input_request=FALSE
        number_of_gpu=0
        load_models=a.mar, b=b.mar
        models={\\
          "noop": {"1.0": {"batchSize": 4}}\\
        }
        metrics_mode=Prometheus
        blacklist_env_vars=.*USERNAME.*|.*PASSWORD.*
        service_envelope=
        system_metrics_cmd=my_metrics.py --gpu 0
        certificate_file=tls/cert.pem
        grpc_inference_max_connection_age_ms=4294967296
        """,
    ).settings()
    assert settings.inference_address == Address("http", "0.0.0.0", 80)
    assert settings.management_address == Address("unix", path="/tmp/m.sock")
    assert settings.metrics_address == Address("http", "0.0.0.0", 8082)
    assert settings.default_response_timeout == 300
    assert settings.token_expiration_min == 0.5
    assert settings.decode_input_request is False
    assert settings.number_of_gpu == 0
    assert settings.load_models == (ModelSpec(None, "a.mar"), ModelSpec("b", "b.mar"))
    assert settings.models == {"noop": {"1.0": VersionSettings(batch_size=4)}}
    assert settings.metrics_mode == "prometheus"
    assert settings.blacklist_env_vars.fullmatch("MY_PASSWORD_X")
    assert settings.service_envelope is None
    assert settings.system_metrics_cmd == "my_metrics.py --gpu 0"
    assert settings.certificate_file == home / "tls/cert.pem"
    assert settings.grpc_inference_max_connection_age_ms == 2**32


def test_an_empty_list_of_allowed_urls_allows_none(home):
    assert configure(home, "allowed_urls=").settings().allowed_urls == ()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("job_queue_size=abc", "job_queue_size = abc: it must be an integer from 1"),
        ("job_queue_size=0", "job_queue_size = 0: it must be an integer from 1"),
        ("job_queue_size=", "job_queue_size = : it must be an integer from 1"),
        (
            "default_response_timeout=2147483648",
            "default_response_timeout = 2147483648: it must be an integer from 1 (seconds), at most 2147483647",
        ),
        (
            "default_workers_per_model=2147483648",
            "default_workers_per_model = 2147483648: it must be an integer from 0, at most 2147483647",
        ),
        (
            "grpc_inference_port=http://10.0.0.1:7070",
            "grpc_inference_port = http://10.0.0.1:7070: it must be an integer from 0 to 65535",
        ),
        ("grpc_inference_port=70000", "grpc_inference_port = 70000: it must be an integer from 0 to 65535"),
        ("debug=yes", "debug = yes: it must be true or false"),
        ("token_expiration_min=-1", "token_expiration_min = -1: it must be a number above 0"),
        ("token_expiration_min=nan", "token_expiration_min = nan: it must be a number above 0"),
        ("metrics_mode=loud", "metrics_mode = loud: it must be one of log, prometheus, legacy"),
        (
            "metrics_config=no.yaml",
            "metrics_config = no.yaml: no such file, it must be a file as docs/metrics.md describes it",
        ),
        (
            "inference_address=127.0.0.1:8080",
            "inference_address = 127.0.0.1:8080: Invalid binding address: 127.0.0.1:8080, it must be "
            "http://host[:port], https://host[:port] or unix:/path, with a port below 65535, IPv6 in brackets",
        ),
        (
            "blacklist_env_vars=(",
            "blacklist_env_vars = (: ( is no regular expression: missing ), unterminated subpattern at position 0, "
            "it must be a regular expression",
        ),
        (
            'models={"a": 1}',
            "models.a is 1 (int), it must be a JSON object with an object of settings for each version",
        ),
        (
            'models={"a": {"1.0": []}}',
            'models.a.1.0 is [] (list), it must be a JSON object of settings, such as {"batchSize": 4}',
        ),
        ('models={"a": {"1.0": {"batchSize": "4"}}}', "models.a.1.0.batchSize is '4' (str), it must be an integer"),
        (
            'models={"a": {"1.0": {"minWorkers": 3, "maxWorkers": 2}}}',
            "models.a.1.0.minWorkers is 3 but maxWorkers is 2; maxWorkers must be at least 3",
        ),
        (
            "models={",
            "models = {: no valid JSON: Expecting property name enclosed in double quotes at character 2, "
            'it must be a JSON object: {"model": {"version": {"batchSize": 4, ...}}}',
        ),
        (
            'models={"a": {"1.0": {"batchSize": 4}}, "a": {}}',
            'models = {"a": {"1.0": {"batchSize": 4}}, "a": {}}: no valid JSON: the name \'a\' is there 2 times, '
            'it must be a JSON object: {"model": {"version": {"batchSize": 4, ...}}}',
        ),
        ("ts_header_key_sequence_id=", "ts_header_key_sequence_id = : it must be a header's name"),
        ("ts_header_key_sequence_end=a b", "ts_header_key_sequence_end = a b: it must be a header's name"),
        (
            "load_models=x.mar, a=",
            'load_models = x.mar, a=: "a=" has no location behind its "=", it must be all, or [name=]location with '
            "commas between them, a location being an archive, a directory or a URL",
        ),
        (
            "job_queue_size=$$NO_SUCH$$",
            "job_queue_size = $$NO_SUCH$$: Invalid Environment Variable NO_SUCH (it is not set)",
        ),
    ],
)
def test_a_wrong_value_names_file_line_key_value_and_what_would_be_right(home, line, message):
    resolution = configure(home, f"# a comment\n{line}\n")
    assert resolution.errors == [f"Invalid configuration: config.properties:2: {message}"]
    with pytest.raises(SettingsError, match="Invalid configuration"):
        resolution.settings()


def test_no_header_has_two_meanings(home):
    resolution = configure(home, "ts_header_key_sequence_end=Ts_Request_Sequence_Start")
    assert resolution.errors == [
        "Invalid configuration: ts_header_key_sequence_id is ts_request_sequence_id, ts_header_key_sequence_start is"
        " ts_request_sequence_start, ts_header_key_sequence_end is Ts_Request_Sequence_Start;"
        " each must be another header"
    ]


def test_a_wrong_value_of_the_environment_names_the_variable(home):
    resolution = configure(home, "enable_envvars_config=true", environ={"TS_JOB_QUEUE_SIZE": "x"})
    assert resolution.errors == [
        "Invalid configuration: environment variable TS_JOB_QUEUE_SIZE = x: it must be an integer from 1"
    ]


def test_a_wrong_model_of_the_command_line_is_told(home):
    (error,) = configure(home, argv=["--model-store", "store", "--models", "a.mar", "=b.mar"]).errors
    assert error.startswith(
        'Invalid configuration: --models a.mar =b.mar: "=b.mar" has no name before its "=", it must be'
    )


def test_every_mistake_is_told_at_once(home):
    assert len(configure(home, "job_queue_size=x\ndebug=y\nmetrics_mode=z", argv=[]).errors) == 4


@pytest.mark.parametrize(
    ("argv", "environ", "message"),
    [
        ([], {}, "Missing mandatory parameter --model-store"),
        (["--model-store", "no"], {}, "--model-store directory not found: no"),
        (
            ["--model-store", "store", "--workflow-store", "no"],
            {},
            "--workflow-store directory not found: no",
        ),
        (["--ts-config", "no"], {}, "--ts-config file not found: no"),
        ([], {"TS_CONFIG_FILE": "no"}, "--ts-config file not found: no"),
        (["--model-store", "store", "--log-config", "no"], {}, "--log-config file not found: no"),
        (["--model-store", "store", "--cpp-log-config", "no"], {}, "--cpp-log-config file not found: no"),
        (
            ["--model-store", "store"],
            {"TEMP": "no"},
            "Invalid temp directory: no, please check TEMP environment variable.",
        ),
    ],
)
def test_the_sentences_of_torchserve(home, argv, environ, message):
    assert configure(home, argv=argv, environ=environ).errors == [message]


def test_variables_in_values_are_replaced_before_anything_else(home):
    resolution = configure(home, "model_store=$$ROOT$$/$$DIR$$", argv=[], environ={"ROOT": str(home), "DIR": "store"})
    assert resolution.settings().model_store == home / "store"


def test_a_malformed_file_names_its_line(home):
    assert configure(home, "a=1\nb=\\uzz").errors[0].startswith("Invalid configuration: config.properties:2: ")


@pytest.mark.parametrize("text", ["n" * 256, "é" * 128, "/".join(["folder"] * 600), "a\\u0000b"])
def test_a_path_that_no_system_takes_is_refused(home, text):
    paths = [name for name, source in sources().items() if source.in_file and source.kind in (PATH, DIRECTORY)]
    for name in (*paths, "fleet_state"):
        (error,) = configure(home, f"{name}={text}\n", argv=[] if name == "model_store" else FLAGS).errors
        assert error.startswith(f"Invalid configuration: config.properties:1: {name} = ")
        assert error.endswith(f", it must be {sources()[name].kind.words}")


def test_a_flag_or_variable_with_a_name_that_no_system_takes_names_nothing(home):
    long = "n" * 256
    for flag in ("--model-store", "--workflow-store", "--ts-config", "--log-config"):
        argv = [*([] if flag == "--model-store" else FLAGS), flag, long]
        (error,) = configure(home, argv=argv).errors
        assert error.endswith(f"not found: {long}")
    (error,) = configure(home, environ={"TEMP": long}).errors
    assert error.startswith("Invalid temp directory: ")
    for variable in ("LOG_LOCATION", "METRICS_LOCATION"):
        (error,) = configure(home, environ={variable: long}).errors
        assert "each name in it 255" in error


# Keys


def test_every_key_is_known(home):
    text = "\n".join(f"{key}=1" for key in JVM_KEYS) + "\nversion=0.12.0\npython=python3\ntsConfigFile=x"
    resolution = configure(home, text, argv=["--model-store", "store", "--plugins-path", "p"])
    assert not resolution.errors
    (warning,) = resolution.warnings
    assert warning.startswith("No effect, because only the Java virtual machine")
    assert all(key in warning for key in (*JVM_KEYS, "--plugins-path"))


def test_an_unknown_key_names_the_closest_known_one(home):
    resolution = configure(home, "job_queue_sze=5\nxyzzy=1")
    assert resolution.warnings == [
        "config.properties:1: job_queue_sze is no key of config.properties and has no effect; "
        "did you mean job_queue_size?",
        "config.properties:2: xyzzy is no key of config.properties and has no effect",
    ]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("TS_INFERENCE_KEY", "TS_INFERENCE_KEYS"),
        ("TS_KEY_FILE", "TS_KEYS_FILE"),
        ("TS_inference_keys", "TS_INFERENCE_KEYS"),
        ("TS_CONFIGFILE", "TS_CONFIG_FILE"),
    ],
)
def test_a_misspelt_variable_names_the_closest_known_one_and_keeps_its_value_to_itself(home, given, meant):
    resolution = configure(home, environ={given: "secret-key"})
    assert resolution.warnings == [f"environment variable {given} has no effect; did you mean {meant}?"]


def test_variables_of_the_server_itself_and_of_other_programs_are_no_misspellings(home):
    own = ("TS_WORKER_CLAIMS", "TS_REQUEST_SEQUENCE_ID", "TS_WORKER_TOKEN", "TS_DEVELOPMENT", "TS_CONFIG_FILE")
    (home / "other.properties").touch()
    others = ("TS_INFERENCE_PORT", "TS_SERVICE_HOST", "TSLINT", "LOGS_LOCATION", "TS_")
    environ = dict.fromkeys((*own, *others), "other.properties")
    assert configure(home, environ=environ).warnings == []


def test_a_setting_without_a_key_cannot_stand_in_the_file(home):
    resolution = configure(home, "log_location=/tmp")
    assert value(resolution, "log_location") == (home / "logs", "default")
    assert "log_location is no key" in resolution.warnings[0]


def test_the_last_of_two_equal_keys_counts_and_is_told_of(home):
    resolution = configure(home, "job_queue_size=5\njob_queue_size=6")
    assert value(resolution, "job_queue_size") == (6, "config.properties:2")
    assert resolution.warnings == ["config.properties:2: job_queue_size replaces its value of line 1; keep one of them"]


@pytest.mark.parametrize(
    ("lines", "errors"),
    [
        (["inference_address=https://h"], []),
        (["certificate_file=no.pem"], []),
        (["inference_address=https://h", "certificate_file=here.pem", "private_key_file=here.pem"], []),
        (["inference_address=https://h", "certificate_file=no.pem", "private_key_file=here.pem"], ["no.pem: no such"]),
        (["metrics_address=https://h", "private_key_file=here.pem"], ["needs both"]),
        (["metrics_address=https://h", "keystore=here.pem", "certificate_file=no.pem"], []),
        (["management_address=https://h", "keystore=no.p12"], ["no.p12: no such file"]),
    ],
)
def test_files_for_tls_are_missed_when_an_https_listener_needs_them(home, lines, errors):
    (home / "here.pem").touch()
    found = configure(home, "\n".join(lines)).errors
    assert len(found) == len(errors)
    assert all(part in line for line, part in zip(found, errors, strict=True))


@pytest.mark.parametrize("mode", ["log", "prometheus", "legacy"])
def test_every_mode_of_metrics_is_supported(home, mode):
    assert not configure(home, f"metrics_mode={mode}").warnings


def test_a_metrics_file_is_read_for_its_mistakes(home):
    (home / "metrics.yaml").write_text("mode: log")
    (error,) = configure(home, "metrics_config=metrics.yaml").errors
    assert error.startswith(
        "Invalid configuration: config.properties:1: metrics_config = metrics.yaml: line 1: mode is not known"
    )


def test_a_key_of_models_that_has_no_effect_is_told(home):
    resolution = configure(home, 'models={"m": {"1.0": {"batchsize": 4, "maxWorkers": 2, "marName": "m.mar"}}}')
    (warning,) = resolution.warnings
    assert "config.properties:1: models.m.1.0.batchsize is not known and has no effect; known are" in warning


def test_a_logging_configuration_is_read_for_its_mistakes(home):
    (home / "log.yaml").write_text("version: 3")
    (error,) = configure(home, argv=["--model-store", "store", "--log-config", "log.yaml"]).errors
    assert error.startswith("Invalid configuration: --log-config log.yaml: it must be a mapping with version: 1")
    (home / "log.yaml").write_text("version: 1")
    resolution = configure(home, argv=["--model-store", "store", "--log-config", "log.yaml"])
    assert resolution.settings().log_config == home / "log.yaml"
    assert not resolution.warnings


def test_a_log4j_file_is_named_as_one_without_effect(home):
    (home / "log4j2.xml").write_text("<Configuration/>")
    resolution = configure(home, argv=["--model-store", "store", "--log-config", "log4j2.xml"])
    assert not resolution.errors
    (warning,) = resolution.warnings
    assert "--log-config with a file of log4j2" in warning


@pytest.mark.parametrize(
    ("url", "allowed"),
    [("file:///models/x.mar", True), ("FILE:///x.mar", True), ("https://h/x.mar", False), ("http://h/x.mar", False)],
)
def test_remote_urls_are_refused_unless_they_are_allowed(home, url, allowed):
    settings = configure(home, "enable_model_api=true").settings()
    assert any(pattern.fullmatch(url) for pattern in settings.allowed_urls) is allowed


# What callers see


def test_what_other_origins_may_do_has_no_effect_without_an_origin(home):
    assert configure(home, "cors_allowed_origin=*").warnings == []
    assert configure(home, "cors_allowed_methods=GET").warnings == [
        "config.properties:1: cors_allowed_methods has no effect without cors_allowed_origin"
    ]


def test_the_report_shows_value_and_origin_and_no_secret(home):
    text = "keystore_pass=hunter2\njob_queue_size=7\ndebug=maybe\nvmargs=x\nload_models=a.mar,b=c"
    lines = list(report(configure(home, text)))
    rows = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines if line.split()[0] in sources()}
    assert list(rows) == list(sources())
    assert rows["job_queue_size"].split() == ["7", "config.properties:2"]
    assert rows["keystore_pass"].split() == ["********", "config.properties:1"]
    assert rows["load_models"].split() == ["a.mar,b=c", "config.properties:5"]
    assert rows["enable_metrics_api"].split() == ["true", "default"]
    assert rows["model_store"].split() == [str(home / "store"), "flag", "--model-store"]
    assert rows["debug"] == "(missing or wrong, see below)"
    assert lines[-2].startswith("Warning: No effect")
    assert lines[-1] == "Invalid configuration: config.properties:3: debug = maybe: it must be true or false"
    assert "hunter2" not in "\n".join(lines)
    origins = [
        line.rindex(line.split()[-1]) for line in lines if line.endswith((" default", ":2")) and str(home) not in line
    ]
    assert len(set(origins)) == 1


def test_settings_do_not_show_the_password():
    assert "hunter2" not in repr(server_settings()(model_store=Path("store"), keystore_pass="hunter2"))


@pytest.mark.parametrize("value", ["7072", "http://127.0.0.1:7072", "http://localhost:7072/"])
def test_a_port_may_be_written_as_the_url_of_this_machine(home, value):
    assert configure(home, f"grpc_inference_port={value}").effective["grpc_inference_port"].value == 7072


def test_every_address_of_a_listener_takes_ipv6_in_the_file_and_in_the_environment(home):
    listeners = [name for name in sources() if name.endswith("_address") and not name.startswith("ray")]
    assert len(listeners) > 4
    for name in listeners:
        own = "http://" if name in HTTP_ADDRESSES else ""
        file = f"enable_envvars_config=true\n{name}={own}[::1]{':81' if own else ''}\n"
        for environ in ({}, {f"TS_{name.upper()}": f"{own}[::]{':82' if own else ''}"}):
            found = getattr(configure(home, file, environ=environ).settings(), name)
            assert getattr(found, "host", found) == ("::" if environ else "::1")
