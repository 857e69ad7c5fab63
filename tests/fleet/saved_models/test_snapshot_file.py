"""Snapshots at rest: what is written is read back, TorchServe's are understood, and the newest is the one restored."""

import json
import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchserve_py.base.settings.flags import parse_flags
from torchserve_py.base.settings.model_spec import ModelSpec
from torchserve_py.base.settings.properties import parse_properties, properties_text
from torchserve_py.base.settings.resolution import Resolution
from torchserve_py.base.settings.schemas.versions import SavedModel
from torchserve_py.base.settings.snapshot_files import newest_snapshot
from torchserve_py.fleet.saved_models.saved_models_settings import SavedModelsSettings
from torchserve_py.fleet.saved_models.snapshot_file import Snapshot, parse_snapshot

# As TorchServe's documentation shows one.
TORCHSERVE = r"""
inference_address=http\://127.0.0.1\:9080
load_models=noop.mar
model_snapshot={\n  "name"\: "20200429132324374-startup.cfg",\n  "modelCount"\: 1,\n  "created"\: 1588191804374,\n  \
  "models"\: {\n    "noop"\: {\n      "1.0"\: {\n        "defaultVersion"\: true,\n        "marName"\: "noop.mar",\n \
  "minWorkers"\: 1,\n "maxWorkers"\: 2,\n "batchSize"\: 4,\n "maxBatchDelay"\: 100,\n "responseTimeout"\: 120,\n \
  "runtimeType"\: "python"\n      }\n    }\n  }\n}
tsConfigFile=config.properties
version=0.12.0
model_store=store
"""


@pytest.fixture
def home(tmp_path):
    """A current directory with a model store and a folder of snapshots."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "noop.mar").touch()
    (tmp_path / "logs" / "config").mkdir(parents=True)
    return tmp_path


def write(home, name, text, age=0):
    path = home / "logs" / "config" / name
    path.write_text(text)
    seconds = 1_700_000_000 - age
    os.utime(path, (seconds, seconds))
    return path


texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)
numbers = st.none() | st.integers(1, 1000)
models = st.builds(
    lambda **values: SavedModel(**values),  # noqa: PLW0108 - the class itself would get a marName besides the location
    name=texts,
    version=texts,
    location=texts,
    default=st.booleans(),
    min_workers=st.none() | st.integers(0, 9),
    max_workers=numbers,
    batch_size=numbers,
    max_batch_delay=st.none() | st.integers(0, 9),
    response_timeout=numbers,
    startup_timeout=numbers,
    runtime=st.none() | st.sampled_from(["python", "python3"]),
    handler=st.none() | texts,
    chosen=st.booleans(),
)
snapshots = st.builds(
    Snapshot,
    name=texts,
    created=st.integers(0, 2**42),
    models=st.lists(models, max_size=4, unique_by=lambda model: (model.name, model.version)).map(
        lambda found: tuple(sorted(found, key=lambda model: [each.name for each in found].index(model.name)))
    ),
    not_loaded=st.lists(st.builds(ModelSpec, st.none() | st.just("a"), st.just("x.mar")), max_size=2).map(tuple),
)


@given(snapshots)
def test_a_snapshot_reads_back_as_it_was(snapshot):
    (entry,) = parse_properties(properties_text([("model_snapshot", str(snapshot))]))
    assert parse_snapshot(entry.value) == snapshot


@given(
    st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.text(st.characters(exclude_categories=["Cs"])))
)
def test_properties_read_back_as_they_were(values):
    assert {each.key: each.value for each in parse_properties(properties_text(values.items()))} == values


def test_a_snapshot_of_torchserve_is_restored(home):
    write(home, "20200429132324374-startup.cfg", TORCHSERVE)
    resolution = Resolution(parse_flags([]), {}, home)
    assert not resolution.errors
    settings = resolution.settings()
    assert settings.inference_address.port == 9080
    assert settings.model_snapshot == Snapshot(
        "20200429132324374-startup.cfg",
        1588191804374,
        (
            SavedModel(
                name="noop",
                version="1.0",
                location="noop.mar",
                default=True,
                min_workers=1,
                max_workers=2,
                batch_size=4,
                max_batch_delay=100,
                response_timeout=120,
                runtime="python",
            ),
        ),
    )
    (warning,) = resolution.warnings
    assert "that of the snapshot logs/config/20200429132324374-startup.cfg; --no-config-snapshots" in warning


def test_numbers_that_say_nothing_do_not_count():
    values = {"marName": "x.mar", "minWorkers": 0, "batchSize": 0, "maxBatchDelay": -10000}
    snapshot = parse_snapshot(json.dumps({"models": {"m": {"1.0": values}}}))
    assert snapshot.models == (SavedModel(name="m", version="1.0", location="x.mar", min_workers=0),)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[]", "no JSON object but a list"),
        ("{", "no valid JSON"),
        ('{"models": []}', "models is \\[\\] \\(list\\), it must be"),
        ('{"models": {"m": 1}}', "models.m is 1 \\(int\\), it must be"),
        ('{"models": {"m": {"1.0": 1}}}', "models.m.1.0 is 1 \\(int\\), it must be"),
        ('{"models": {"m": {"1.0": {}}}}', "models.m.1.0.marName is missing"),
        (
            '{"models": {"m": {"1.0": {"marName": "m.mar", "responseTimeout": "9"}}}}',
            "models.m.1.0.responseTimeout is '9' \\(str\\), it must be an integer",
        ),
        ('{"notLoaded": "x.mar"}', "notLoaded is 'x.mar' \\(str\\), it must be a list of texts"),
    ],
)
def test_what_is_no_snapshot_is_refused(home, text, problem):
    with pytest.raises(ValueError, match=problem):
        parse_snapshot(text)
    write(home, "20200429132324374-startup.cfg", f"model_store=store\nmodel_snapshot={text}")
    (error,) = Resolution(parse_flags([]), {}, home).errors
    assert error.startswith("Invalid configuration: logs/config/20200429132324374-startup.cfg:2: model_snapshot = ")
    assert re.search(problem, error)


def test_the_newest_snapshot_goes_before_the_file_of_the_directory_and_behind_one_that_is_named(home):
    (home / "config.properties").write_text("model_store=store\njob_queue_size=1")
    write(home, "20240101000000000-shutdown.cfg", "model_store=store\njob_queue_size=2", age=10)
    write(home, "20230101000000000-snapshot.cfg", "model_store=store\njob_queue_size=3")
    write(home, "notes.cfg", "job_queue_size=4")
    (home / "named.properties").write_text("model_store=store\njob_queue_size=5")

    def size(*argv, **environ):
        resolution = Resolution(parse_flags(argv), environ, home)
        return resolution.effective["job_queue_size"].value

    assert size() == 3
    assert size("--ncs") == 1
    assert size("--ts-config", "named.properties") == 5
    assert size(TS_CONFIG_FILE="named.properties") == 5
    assert size(LOG_LOCATION="elsewhere") == 1
    (warning,) = Resolution(parse_flags([]), {}, home).warnings
    assert "20230101000000000-snapshot.cfg instead of config.properties" in warning


def test_there_is_no_newest_snapshot_where_there_is_none(tmp_path):
    assert newest_snapshot(tmp_path) is None
    (tmp_path / "config").mkdir()
    assert newest_snapshot(tmp_path) is None


def test_only_regular_files_are_snapshots(home):
    folder = home / "logs" / "config"
    write(home, "20240101000000000-shutdown.cfg", "job_queue_size=2", age=10)
    os.mkfifo(folder / "20250101000000000-shutdown.cfg")
    (folder / "20250101000000001-shutdown.cfg").symlink_to("nowhere")
    (folder / "20250101000000002-shutdown.cfg").mkdir()
    assert newest_snapshot(home / "logs") == folder / "20240101000000000-shutdown.cfg"


def test_a_snapshot_that_is_too_large_is_not_read(home):
    write(home, "20240101000000000-shutdown.cfg", "")
    os.truncate(home / "logs" / "config" / "20240101000000000-shutdown.cfg", 600 << 20)
    (error,) = Resolution(parse_flags([]), {}, home).errors
    assert "20240101000000000-shutdown.cfg cannot be read: the file is larger than" in error


def test_a_missing_archive_is_an_error_with_torchserves_words(home):
    (home / "store" / "noop.mar").unlink()
    write(home, "20200429132324374-startup.cfg", TORCHSERVE)
    assert Resolution(parse_flags([]), {}, home).errors == [
        "Model archive file for model :noop, version :1.0 not found in model store"
    ]


def test_the_models_of_the_command_line_win_and_that_is_told(home):
    write(home, "20200429132324374-startup.cfg", TORCHSERVE)
    resolution = Resolution(parse_flags(["--models", "other.mar"]), {}, home)
    assert resolution.warnings[-1].startswith("flag --models says which models are loaded, so those of logs/config/")
    assert resolution.settings().of(SavedModelsSettings).model_snapshot is None
