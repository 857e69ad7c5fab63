"""``handler: cache:`` of model-config.yaml: strict, and told to the workers whole."""

import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from torchserve_py.base.settings.schemas.yaml_mapping import parse_yaml_mapping
from torchserve_py.base.settings.state_folders import StateFolders
from torchserve_py.core.plans.config import InvalidModelConfig, ModelConfig, parse_model_config
from torchserve_py.core.serving.errors import InvalidModel
from torchserve_py.core.workers.confinement import Confinement
from torchserve_py.sequences.steps.cache_config import CacheConfig
from torchserve_py.sequences.steps.handler_keys import HandlerKeys
from torchserve_py.sequences.steps.kept_states import KeptStates, cache_message, make_folder, sequence_file

STATEFUL = "sequenceBatching: true\nsequenceMaxIdleMSec: 60000\n"


def read(cache: str, rest: str = STATEFUL) -> ModelConfig:
    return parse_model_config(parse_yaml_mapping(f"{rest}handler:\n  anything: 1\n  cache: {cache}\n".encode()))


def cache_of(config: ModelConfig) -> CacheConfig | None:
    return config.plugin_keys.of(HandlerKeys).handler.cache


@pytest.mark.parametrize(
    ("cache", "meant"),
    [
        ("{}", CacheConfig()),
        ("{capacity: 7}", CacheConfig(capacity=7)),
        ("{store: file}", CacheConfig(store="file")),
        ("{store: file, path: a.db, fsync: true}", CacheConfig(store="file", path="a.db", fsync=True)),
        ("{store: redis, url: 'rediss://me:x@h:1/2'}", CacheConfig(store="redis", url="rediss://me:x@h:1/2")),
        (
            "{store: redis, url: 'redis://h', replicas: 2}",
            CacheConfig(store="redis", url="redis://h", replicas=2),
        ),
        ("{store: redis, url: 'unix:///run/r.sock'}", CacheConfig(store="redis", url="unix:///run/r.sock")),
        ("{store: redis, url: 'redis://h', lease: 2.5}", CacheConfig(store="redis", url="redis://h", lease=2.5)),
        (
            "{store: redis, url: 'redis+sentinel://me:x@h,[::1]:1/main/2?sentinel_password=y'}",
            CacheConfig(store="redis", url="redis+sentinel://me:x@h,[::1]:1/main/2?sentinel_password=y"),
        ),
    ],
)
def test_what_can_be_said(cache: str, meant: CacheConfig) -> None:
    assert cache_of(read(cache)) == meant


@pytest.mark.parametrize(
    ("cache", "problem"),
    [
        ("5", "line 3: handler.cache is 5 (int), it must be a map"),
        ("{store: disk}", "handler.cache.store is 'disk' (str), it must be one of memory, file, redis"),
        ("{capacity: 0}", "handler.cache.capacity is 0 (int), it must be an integer from 1"),
        ("{store: redis}", "handler.cache.store is redis but handler.cache.url is not set"),
        ("{store: file, path: a, fsynk: true}", "handler.cache.fsynk is not known; known are store, capacity"),
        ("{store: redis, url: 'redis://h', fsync: true}", "handler.cache.fsync has no meaning for store: redis"),
        (
            "{store: redis, url: 'http://h'}",
            "line 3: handler.cache.url is 'http://h', it must be redis://host:port/number",
        ),
        ("{store: redis, url: 'redis//me:secret@h'}", "handler.cache.url is 'redis//…@h', it must be redis://"),
        ("{store: redis, url: 'me:secret@h:6379'}", "handler.cache.url is '…@h:6379', it must be redis://"),
        (
            "{store: redis, url: 'redis://me:secret@h:x'}",
            "handler.cache.url is 'redis://…@h:x', which has no usable port",
        ),
        (
            "{store: redis, url: 'redis://me:secret/x@h'}",
            "is 'redis://…@h', which has no usable port; /, ?, #, [ and ]",
        ),
        ("{store: redis, url: 'redis://h/main'}", "is 'redis://h/main', but Redis' databases have numbers"),
        (
            "{store: redis, url: 'redis://h/0?connection_class=os.system'}",
            "is 'redis://h/0?…', and its option 'connection_class' names code, which no URL may do: leave it out",
        ),
        (
            "{store: redis, url: 'redis+sentinel://me:secret@h:1,h:x/main'}",
            "is 'redis+sentinel://…@h:1,h:x/main', but each Sentinel needs a host and, unless it is 26379, a port",
        ),
        (
            "{store: redis, url: 'redis+sentinel://h1,h2'}",
            "is 'redis+sentinel://h1,h2', it must name the service that the Sentinels watch: redis+sentinel://host",
        ),
        (
            "{store: redis, url: 'redis+sentinel://me:1/secret@h/main'}",
            "is 'redis+sentinel://…@h/main', it must name the service",
        ),
        (
            "{store: redis, url: 'redis+sentinel://h/main/x?sentinel_password=secret'}",
            "is 'redis+sentinel://h/main/x?…', but Redis' databases have numbers",
        ),
        ("{store: redis, url: 'unix://'}", "handler.cache.url is 'unix://', it must name the socket"),
        ("{store: file, replicas: 1}", "handler.cache.replicas has no meaning for store: file"),
        ("{store: redis, url: 'redis://h', replicas: -1}", "handler.cache.replicas is -1 (int), it must be an integer"),
        ("{lease: 5}", "handler.cache.lease has no meaning for store: memory"),
        ("{stateVersion: a}", "handler.cache.stateVersion has no meaning for store: memory"),
        ("{keepCheckpoints: 5}", "handler.cache.keepCheckpoints has no meaning for store: memory"),
        ("{store: file, path: a, lease: 0}", "handler.cache.lease is 0 (int), it must be a number of seconds"),
    ],
)
def test_what_is_refused(cache: str, problem: str) -> None:
    with pytest.raises(InvalidModelConfig) as refused:
        read(cache)
    assert any(problem in each for each in refused.value.problems), refused.value.problems
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("rest", "problem"),
    [
        ("batchSize: 2\n", "sequenceBatching is not true"),
        (f"{STATEFUL}parallelType: tp\nparallelLevel: 2\n", "several processes, each with a part of the state"),
    ],
)
def test_what_contradicts_a_store(rest: str, problem: str) -> None:
    with pytest.raises(InvalidModelConfig, match=problem):
        read("{store: file, path: a.db}", rest)
    assert cache_of(read("{store: memory}", rest)) == CacheConfig()


def test_a_worker_that_is_one_process_on_several_gpus_has_a_store() -> None:
    rest = f"{STATEFUL}parallelType: custom\nparallelLevel: 2\nasyncCommunication: true\n"
    assert cache_of(read("{store: file, path: a.db}", rest)) == CacheConfig(store="file", path="a.db")


def test_a_handler_may_have_keys_of_its_own() -> None:
    assert cache_of(parse_model_config(parse_yaml_mapping(b"handler: {cachet: 1}"))) is None
    assert cache_of(parse_model_config(parse_yaml_mapping(b"handler: mine"))) is None


def effective(**changes: Any) -> Any:
    values = {
        "stateful": True,
        "max_num_sequence": 5,
        "max_workers": 2,
        "batch_size": 8,
        "sequence_max_idle_ms": 1500,
        "max_sequence_job_queue_size": 4,
        "restart_expired_sequences": False,
        "require_start": False,
        "remember_ended": 86_400.0,
    }
    return SimpleNamespace(**{**values, **changes})


def test_what_a_worker_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    message = cache_message(CacheConfig(store="file", path="a.db"), effective(), tmp_path / "default.db")
    assert message is not None
    assert (message["path"], message["capacity"], message["lifetime"]) == (str(tmp_path / "a.db"), 16, 1.5)
    assert message["kept"] == 6
    assert message["owner"]


def test_the_file_of_a_model_that_names_none(tmp_path: Path) -> None:
    default = sequence_file(StateFolders(tmp_path, tmp_path / "logs"), "tally")
    message = cache_message(CacheConfig(store="file"), effective(), default)
    assert message is not None
    assert message["path"] == str(tmp_path / "sequences" / "tally.db")


def test_every_model_has_a_file_of_its_own(tmp_path: Path) -> None:
    names = ["a", "a@1", "..", "a%401", "ä" * 100, "ä" * 99 + "b"]
    files = {sequence_file(StateFolders(tmp_path, tmp_path / "logs"), name) for name in names}
    assert len(files) == len(names)
    assert not any("@" in file.name for file in files), "which separated the versions of older files"
    assert {file.parent for file in files} == {tmp_path / "sequences"}
    assert all(len(file.name.encode()) < 250 for file in files)


@pytest.mark.parametrize("name", ["tally.db", "tally@1.0.db"])
def test_a_file_of_an_earlier_release_is_used_where_it_is_and_told_how_to_move(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folders, states = StateFolders(tmp_path / "data", tmp_path / "logs"), KeptStates(CacheConfig(store="file"))
    (tmp_path / "logs" / "sequences").mkdir(parents=True)
    (tmp_path / "logs" / "sequences" / "other.db").touch()
    states.prepare(folders, "tally", Confinement())
    assert (sequence_file(folders, "tally").parent, caplog.text) == (tmp_path / "data" / "sequences", "")
    (tmp_path / "logs" / "sequences" / name).touch()
    states.prepare(folders, "tally", Confinement())
    assert sequence_file(folders, "tally") == tmp_path / "logs" / "sequences" / "tally.db"
    assert f"mv {tmp_path}/logs/sequences {tmp_path}/data/sequences" in caplog.text
    (tmp_path / "data" / "sequences" / "tally.db").touch()  # moved
    assert sequence_file(folders, "tally") == tmp_path / "data" / "sequences" / "tally.db"


def test_the_folder_is_for_its_owner_alone_and_a_path_needs_none(tmp_path: Path) -> None:
    make_folder(CacheConfig(store="file", path="a.db"), tmp_path, Confinement())
    make_folder(CacheConfig(), tmp_path, Confinement())
    assert list(tmp_path.iterdir()) == []
    for _ in range(2):
        make_folder(CacheConfig(store="file"), tmp_path / "logs", Confinement())
    assert stat.S_IMODE((tmp_path / "logs").stat().st_mode) == 0o700


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "logs").touch()
    with pytest.raises(InvalidModel, match=r"handler\.cache\.path is not set, and the folder .* cannot be made"):
        make_folder(CacheConfig(store="file"), tmp_path / "logs", Confinement())
