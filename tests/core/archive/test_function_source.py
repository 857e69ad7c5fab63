"""Files with a function or class decorated with `ts.serve`: read without running them, and served where they lie."""

from pathlib import Path
from typing import Any

import pytest

from torchserve_py.apis.openai.openai_keys import OpenAIKeys
from torchserve_py.contracts.computing.computing_keys import ComputingKeys
from torchserve_py.core.archive.contract import HANDLERS
from torchserve_py.core.archive.errors import InvalidArchive
from torchserve_py.core.archive.function_source import UNREAD, read_source
from torchserve_py.core.archive.model_files import open_model, outline
from torchserve_py.core.plans.contracts import configuration_of
from torchserve_py.core.serving.errors import InvalidModel
from torchserve_py.sequences.steps.handler_keys import HandlerKeys

STATEFUL = {"sequenceBatching": True, "sequenceMaxIdleMSec": 600_000, "maxNumSequence": 1000}


MONTH = 30 * 86_400


def stored(**cache: Any) -> dict[str, Any]:
    return {"handler": {"cache": cache}}


def source(folder: Path, decorated: str, heading: str = "from ts import serve") -> Path:
    file = folder / "shout.py"
    file.write_text(f"{heading}\n\n\n{decorated}\n")
    return file


@pytest.mark.parametrize(
    ("decorated", "config"),
    [
        ("@serve\ndef shout(text): ...", {}),
        ("@serve()\ndef shout(text): ...", {}),
        ("@serve(batch_size=8)\ndef shout(text): ...", {"batchSize": 8, "maxBatchDelay": 10}),
        ("@serve(batch_size=8, max_batch_delay=0)\ndef shout(text): ...", {"batchSize": 8, "maxBatchDelay": 0}),
        ("@serve\nasync def shout(text): ...", {"asyncCommunication": True}),
        ("@serve\ndef shout(text, state): ...", STATEFUL),
        ("@serve\ndef shout(text, *, state): ...", STATEFUL),
        ("@serve\nasync def shout(text, state): ...", {"asyncCommunication": True, **STATEFUL}),
        ("@serve(store='file')\ndef shout(state): ...", STATEFUL | stored(store="file", expireSec=MONTH)),
        (
            "@serve(store='redis://host:6379/0')\ndef shout(state): ...",
            STATEFUL | stored(store="redis", url="redis://host:6379/0", expireSec=MONTH),
        ),
        (
            "@serve(store='file:///var/lib/a%20b.db')\ndef shout(state): ...",
            STATEFUL | stored(store="file", path="/var/lib/a b.db", expireSec=MONTH),
        ),
        ("@serve(store='memory')\ndef shout(state): ...", STATEFUL | stored(store="memory")),
        (
            "@serve(idle=1.5, sequences=7)\ndef shout(state): ...",
            {"sequenceBatching": True, "sequenceMaxIdleMSec": 1500, "maxNumSequence": 7},
        ),
        ("@serve(threads=2)\ndef shout(text): ...", {"threads": 2}),
        ("@serve\nclass Shout:\n    async def predict(self, text): ...", {"asyncCommunication": True}),
        ("@serve\nclass Shout:\n    def predict(self, text, state): ...", STATEFUL),
    ],
)
def test_the_decorator_says_how_the_model_is_served(decorated: str, config: dict[str, Any], tmp_path: Path) -> None:
    found = read_source(source(tmp_path, decorated))
    assert found is not None
    assert (found.name.lower(), found.config) == ("shout", config)


@pytest.mark.parametrize(
    ("heading", "decorator"),
    [("import ts", "@ts.serve"), ("import ts as t", "@t.serve(batch_size=1)"), ("from ts import serve as s", "@s")],
)
def test_the_decorator_is_found_under_each_name(heading: str, decorator: str, tmp_path: Path) -> None:
    assert read_source(source(tmp_path, f"{decorator}\ndef shout(text): ...", heading)) is not None


@pytest.mark.parametrize(
    ("decorated", "heading"),
    [
        ("def shout(text): ...", "from ts import serve"),
        ("@serve\ndef shout(text): ...", "from bentoml import serve"),
        ("@serve\ndef shout(text): ...", "from .ts import serve"),
        ("@serve\ndef shout(text: ...", "from ts import serve"),
        ("# serve\0", ""),
        pytest.param(
            f"x = {'-' * 50_000}1\n@serve\ndef shout(text): ...", "from ts import serve", id="nested too deep"
        ),
    ],
)
def test_other_files_are_left_to_the_worker(decorated: str, heading: str, tmp_path: Path) -> None:
    assert read_source(source(tmp_path, decorated, heading)) is None


@pytest.mark.parametrize(
    ("decorated", "told"),
    [
        ("@serve(batch=8)\ndef shout(text): ...", "shout.py:4: serve has no argument batch; it has batch_size, "),
        ("@serve(**more)\ndef shout(text): ...", "shout.py:4: serve has no argument **"),
        ("@serve(batch_size=SIZE)\ndef shout(text): ...", "shout.py:4: batch_size is to be written out"),
        ("@serve(batch_size={[]: 1})\ndef shout(text): ...", "shout.py:4: batch_size is to be written out"),
        ("@serve\nclass Shout:\n    pass", "shout.py:5: the class Shout needs a method predict"),
        ("@serve(batch_size=8)\nasync def shout(text): ...", "shout.py:5: shout is async, .*: batch_size needs def"),
        (
            "@serve(store='s3://bucket')\ndef shout(state): ...",
            "shout.py:5: store is s3://…; it is memory, file, redis, or",
        ),
        (
            "@serve(store='fil')\ndef shout(state): ...",
            "shout.py:5: store is 'fil'; it is memory, file, redis, or a URL",
        ),
        (
            "@serve(store='file', idle=3)\ndef shout(text): ...",
            "shout has no parameter state, so store, idle in @serve",
        ),
        (
            "@serve\ndef one(): ...\n\n@serve\ndef two(): ...",
            "shout.py:8: this file has 2 models: one, two; choose one, such as shout.py:two",
        ),
    ],
)
def test_what_cannot_work_is_told_with_file_and_line(decorated: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArchive, match=told.replace("**", r"\*\*")):
        open_model(source(tmp_path, decorated), tmp_path)


def test_a_file_is_a_model_with_what_lies_beside_it(tmp_path: Path) -> None:
    file = source(tmp_path, "@serve(batch_size=8)\ndef shout(text): ...")
    (tmp_path / "model-config.yaml").write_text("batchSize: 2\nresponseTimeout: 5\n")
    for name in ("one.pt", "two.pt", "other_handler.py", "third_handler.py"):  # of other models
        (tmp_path / name).write_text("")
    files = open_model(file, tmp_path)
    assert (files.name, files.model_dir, files.manifest.handler) == ("shout", tmp_path, "shout.py")
    config = configuration_of(files).config
    assert (config.batch_size, config.max_batch_delay_ms, config.response_timeout) == (2, 10, 5)


@pytest.mark.parametrize(
    ("yaml", "cache"),
    [
        ("responseTimeout: 5", ("file", None, MONTH)),
        ("handler: {cache: {path: /var/lib/mine.db}}", ("file", "/var/lib/mine.db", MONTH)),
        ("handler: {cache: {store: memory}, mine: 1}", ("memory", None, None)),
        ("handler: {mine: 1}", ("file", None, MONTH)),
    ],
)
def test_a_file_beside_it_adds_keys_of_the_store_or_names_another(
    yaml: str, cache: tuple[str, str | None, int | None], tmp_path: Path
) -> None:
    file = source(tmp_path, "@serve(store='file')\ndef shout(state): ...")
    (tmp_path / "model-config.yaml").write_text(yaml)
    found = configuration_of(open_model(file, tmp_path)).config.plugin_keys.of(HandlerKeys).handler.cache
    assert found is not None
    assert (found.store, found.path, found.expire) == cache


def test_a_check_of_the_configuration_reads_a_file_as_a_registration_does(tmp_path: Path) -> None:
    with outline(source(tmp_path, "@serve(batch_size=8)\ndef shout(text): ..."), url="shout.py") as files:
        assert configuration_of(files).config.batch_size == 8


def test_an_option_out_of_range_is_refused_like_a_key_of_the_configuration(tmp_path: Path) -> None:
    files = open_model(source(tmp_path, "@serve(batch_size=0)\ndef shout(text): ..."), tmp_path)
    with pytest.raises(InvalidModel, match="batchSize"):
        configuration_of(files)


def test_a_handler_file_without_decorator_is_a_model_too(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def handle(data, context):\n    return data\n")
    files = open_model(tmp_path / "mine.py", tmp_path)
    assert (files.name, files.manifest.handler, files.source) == ("mine", "mine.py", None)


@pytest.mark.parametrize("text", ["@serve\ndef shout(text): ...", "serve(load())", "model = serve(load())"])
def test_a_key_that_only_handlers_read_is_told_with_who_reads_it(text: str, tmp_path: Path) -> None:
    file = source(tmp_path, text)
    (tmp_path / "model-config.yaml").write_text(
        "autocast: bfloat16\nchannelsLast: false\ndeepspeed: {config: x}\nmine: 1\n"
    )
    assert configuration_of(open_model(file, tmp_path)).config.warnings == (
        "autocast has no effect here: it is read by BaseHandler only",
        "deepspeed has no effect here: it is read by handlers of TorchServe's interface only",
    )


@pytest.mark.parametrize(
    ("decorated", "text", "told"),
    [
        (
            "@serve\ndef shout(text): ...",
            "batchSize: 8",
            "shout takes one request at a time; write batch_size in @serve",
        ),
        ("@serve(batch_size=8)\ndef shout(text): ...", "batchSize: 8", ""),
        ("@serve\ndef shout(text): ...", "batchSize: 1", ""),
        ("@serve\nclass Shout:\n    def predict(self, text): ...", "batchSize: 8", "predict takes one request"),
        ("@serve\ndef shout(text): ...", "continuousBatching: true", "calls have no steps between which requests"),
        ("serve(load())", "continuousBatching: true", "calls have no steps between which requests"),
        ("@serve\ndef shout(text): ...", "openai: true", "shout takes none of messages, prompt and input"),
        ("@serve\ndef shout(messages): ...", "openai: true", ""),
        ("@serve(openai=True)\ndef shout(messages): ...", "openai: true", ""),
    ],
)
def test_a_key_that_the_function_cannot_use_is_told_with_what_to_write(
    decorated: str, text: str, told: str, tmp_path: Path
) -> None:
    (tmp_path / "model-config.yaml").write_text(text)
    config = configuration_of(open_model(source(tmp_path, decorated), tmp_path)).config
    if not told:
        assert config.warnings == ()
        return
    (warning,) = config.warnings
    assert warning.startswith(f"{text.replace(':', '')} has no effect here: {told}")
    assert config.batch_size in (None, 1), "requests do not wait for others in vain"
    assert not config.continuous_batching
    assert not config.plugin_keys.of(OpenAIKeys).openai


def test_what_handlers_read_is_known() -> None:
    assert {*HANDLERS.own_keys, *ComputingKeys.key_names()} - {"handler"} == set(UNREAD)
