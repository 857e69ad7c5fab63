"""``--check-config``: what it says of a configuration and of models, and with which exit code."""

import json
import zipfile

import pytest

from torchserve_py.cli import main
from torchserve_py.core.gpus import visible_devices
from torchserve_py.tools.operator_tools import check_config, model_check


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A current directory with a model store, on a host without GPUs."""
    (tmp_path / "store").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TS_CONFIG_FILE", raising=False)
    monkeypatch.delenv("LOG_LOCATION", raising=False)
    monkeypatch.setattr(visible_devices, "list_gpus", list)
    monkeypatch.setattr(check_config, "problems_of_opening", _opens)  # the default ports may be taken
    return tmp_path


async def _opens(settings):
    return []


def add_model(home, name, config=None, handler="handler.py", files=("handler.py",), **manifest):
    folder = home / "store" / name
    (folder / "MAR-INF").mkdir(parents=True)
    for file in files:
        (folder / file).touch()
    model = {"modelName": name, "handler": handler, **manifest.pop("model", {})}
    if config is not None:
        (folder / "model-config.yaml").write_text(config)
        model["configFile"] = "model-config.yaml"
    content = {"createdOn": "x", "archiverVersion": "x", "runtime": "python", **manifest, "model": model}
    (folder / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(content))


def run(home, capsys, text="", *argv):
    """Check a configuration; returns the exit code and the lines under each title."""
    (home / "config.properties").write_text(text)
    code = main(["--check-config", "--model-store", "store", *argv])
    sections: dict[str, list[str]] = {}
    lines = capsys.readouterr().out.splitlines()
    for line in lines:
        if line.endswith(":") and not line.startswith(" "):
            current = sections.setdefault(line.split(" in ")[0].rstrip(":"), [])
        elif line.startswith("  "):
            current.append(line[2:])
    return code, sections


def test_every_key_is_accounted_for(home, capsys):
    text = "vmargs=-Xmx4g\njob_queue_size=5\njob_queue_sise=5\nkeystore_pass=secret\nmodel_snapshots=1"
    code, sections = run(home, capsys, text)
    assert code == 0
    assert sections["Acted on"] == [
        f"model_store = {home}/store  (flag --model-store)",
        "job_queue_size = 5  (config.properties:2)",
        "keystore_pass = ********  (config.properties:4)",
    ]
    unknown, other, ignored = sections["Ignored, unknown or doubtful"]
    assert unknown.startswith("config.properties:3: job_queue_sise is no key")
    assert other.startswith("config.properties:5: model_snapshots is no key")
    assert "vmargs (config.properties:1)" in ignored


def test_wrong_values_are_refused_and_no_model_is_looked_at(home, capsys):
    code, sections = run(home, capsys, "job_queue_size=many\ndebug=perhaps")
    assert code == 1
    assert len(sections["Refused: the server would not start"]) == 2
    assert "Models" not in sections


def test_an_unknown_envelope_is_refused(home, capsys):
    code, sections = run(home, capsys, "service_envelope=xml")
    assert code == 1
    assert sections["Refused"] == [
        "service_envelope = xml: there is no such envelope; it must be one of body, json, kserve, kservev2"
    ]
    assert run(home, capsys, "service_envelope=kserve")[0] == 0


def test_what_is_different_here_is_told(home, capsys):
    _, sections = run(home, capsys, "enable_model_api=true\nmanagement_address=http://127.0.0.1:8080", "--ncs")
    first, second = sections["Different from TorchServe"]
    assert first.startswith("allowed_urls is not set")
    assert second.startswith("one listener for both APIs")
    assert "Different from TorchServe" not in run(home, capsys, "", "--ncs")[1]


def test_that_names_are_needed_is_told_to_those_who_serve_other_machines_without_tokens(home, capsys):
    others = "inference_address=http://0.0.0.0:8080"
    _, sections = run(home, capsys, others, "--ncs", "--disable-token-auth")
    (line,) = sections["Different from TorchServe"]
    assert line.startswith("tokens are off and allowed_hosts is not set")
    for text, flags in (
        (others, ()),
        (f"{others}\nallowed_hosts=torchserve", ("--disable-token-auth",)),
        ("", ("--disable-token-auth",)),
    ):
        assert "Different from TorchServe" not in run(home, capsys, text, "--ncs", *flags)[1]


def test_a_good_model_is_fine(home, capsys):
    add_model(home, "m", "minWorkers: 2\nmaxWorkers: 2\n")
    code, sections = run(home, capsys, "", "--models", "m")
    assert code == 0
    assert sections["Models"] == ['m: fine (model "m" version 1.0, 2 worker(s), handler handler.py)']


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ({"handler": "other.py"}, "there is no handler other.py: no other.py in the archive, and no built-in"),
        ({"handler": "trt_llm_handler"}, "the handler trt_llm_handler of TorchServe is not part of this server"),
        ({"handler": "vllm_handler"}, "the handler vllm_handler needs more packages: pip install vllm"),
        ({"handler": ""}, "No handler is known for model m: name one in the manifest, in the reg"),
        ({"runtime": "LSP"}, "Invalid RuntimeType value: LSP: the C++ backend is not run here"),
        ({"runtime": "perl"}, "Runtime is not defined or invalid."),
        ({"config": "sequenceBatching: true\n"}, "model-config.yaml: sequenceBatching is true but sequenceMaxIdle"),
        ({"config": "a: b: c"}, "model-config.yaml: "),
        ({"model": {"serializedFile": "m.pt"}}, "the manifest names the serializedFile m.pt, which is not there"),
        ({"config": "x: 1", "model": {"configFile": "c.yaml"}, "files": ["handler.py", "c.yaml"]}, None),
    ],
)
def test_a_model_that_would_not_be_served_is_told(home, capsys, model, problem):
    add_model(home, "m", **model)
    code, sections = run(home, capsys)
    label, *found = sections["Models"]
    if problem is None:
        assert (code, found) == (0, [])
        return
    assert code == 1
    assert label.startswith("m (not loaded at the start): NOT SERVED")
    assert found[0].startswith(f"  problem: {problem}")


@pytest.mark.parametrize(
    ("config", "text", "note"),
    [
        ("sequenceBatching: true\nsequenceMaxIdleMSec: 9", "", "a request for a sequence that has expired is refused"),
        ("maxBatchDelay: 0", "", "maxBatchDelay 0 means: do not wait"),
        ("batchSize: 1", "default_response_timeout=60", "responseTimeout is 60 s, from config.properties"),
        ("batchsize: 1", "", "batchsize is not a key that the server reads; did you mean batchSize?"),
        ("useVenv: true", "", "useVenv makes an environment that nothing is installed into"),
    ],
)
def test_what_concerns_a_model_is_told(home, capsys, config, text, note):
    add_model(home, "m", config)
    code, sections = run(home, capsys, text)
    assert code == 0
    assert any(line.startswith(f"  note: {note}") for line in sections["Models"])


@pytest.mark.parametrize(("text", "word"), [("", "not installed"), ("install_py_dep_per_model=true", "installed when")])
def test_the_requirements_of_a_model_are_told(home, capsys, text, word):
    files = ("handler.py", "requirements.txt")
    add_model(home, "m", files=files, model={"requirementsFile": "requirements.txt"})
    assert word in run(home, capsys, text)[1]["Models"][1]


@pytest.mark.parametrize("installed", [True, False])
def test_built_in_handlers_are_known_and_what_they_need(home, capsys, monkeypatch, installed):
    monkeypatch.setattr(model_check, "_is_installed", lambda module: installed)
    add_model(home, "m", handler="image_classifier", files=())
    code, sections = run(home, capsys)
    label, *problems = sections["Models"]
    assert "built-in handler image_classifier" in label
    needed = "the handler image_classifier needs more packages: pip install torchserve-py[torch] torchserve-py[vision]"
    assert (code, problems) == ((0, []) if installed else (1, [f"  problem: {needed}"]))


def test_a_remote_model_is_looked_at_only_if_it_was_downloaded(home, capsys):
    flags = ("--models", "m=https://h/m.mar")
    code, sections = run(home, capsys, "", *flags)
    assert code == 1
    assert "allowed_urls does not allow https://h/m.mar" in sections["Models"][1]
    code, sections = run(home, capsys, "allowed_urls=https://h/.*", *flags)
    assert (code, sections["Models"]) == (0, ["m=https://h/m.mar: fine (will be downloaded, was not looked at)"])
    (home / "store" / "m.mar").write_text("no archive")
    code, sections = run(home, capsys, "allowed_urls=https://h/.*", *flags)
    assert code == 1
    assert "it is neither a ZIP archive" in sections["Models"][1]


def test_nothing_is_unpacked_or_started(home, capsys, monkeypatch):
    monkeypatch.setenv("TEMP", str(home))
    add_model(home, "m")
    before = sorted(home.rglob("*"))
    run(home, capsys)
    assert sorted(home.rglob("*")) == sorted([*before, home / "config.properties"])


@pytest.mark.parametrize(
    ("config", "code", "line"),
    [
        ("", 0, 'mine: fine (model "mine" version 1.0, contract truss, 1 worker(s))'),
        ("runtime: {predict_concurrency: 0}", 1, "  problem: config.yaml: line 1: runtime.predict_concurrency is 0"),
    ],
)
def test_the_files_of_another_contract_are_checked(home, capsys, config, code, line):
    folder = home / "store" / "mine"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "model.py").touch()
    (folder / "config.yaml").write_text(config)
    found = run(home, capsys, "", "--models", "mine")
    assert found[0] == code
    assert any(each.startswith(line) for each in found[1]["Models"])


def add_mlserver_model(folder):
    folder.mkdir(parents=True)
    settings = {"name": "mnist-svm", "implementation": "model.Mine", "parameters": {"version": "v0.1.0"}}
    (folder / "model-settings.json").write_text(json.dumps(settings))
    (folder / "settings.json").write_text('{"debug": "true", "parallel_workers": "2"}')
    (folder / "model.py").touch()


def test_an_mlserver_model_has_the_name_and_version_of_its_settings(home, capsys):
    add_mlserver_model(home / "store" / "mnist_folder")
    code, sections = run(home, capsys, "", "--models", "mnist_folder")
    assert code == 0
    assert sections["Models"] == [
        'mnist_folder: fine (model "mnist-svm" version v0.1.0, contract mlserver, 2 worker(s))'
    ]


def test_an_mlserver_model_needs_the_package(home, capsys, monkeypatch):
    monkeypatch.setattr(model_check, "_is_installed", lambda module: module != "mlserver")
    add_mlserver_model(home / "store" / "mnist_folder")
    code, sections = run(home, capsys, "", "--models", "mnist_folder")
    assert code == 1
    assert "problem: mlserver models need the package mlserver: pip install 'torchserve-py[mlserver]'" in " ".join(
        sections["Models"]
    )


def test_the_settings_in_an_archive_count_as_well(home, capsys):
    add_mlserver_model(home / "svm")
    with zipfile.ZipFile(home / "store" / "svm.mar", "w") as archive:
        for file in (home / "svm").iterdir():
            archive.write(file, file.name)
    code, sections = run(home, capsys, "", "--models", "svm.mar")
    assert code == 0
    assert sections["Models"] == ['svm.mar: fine (model "mnist-svm" version v0.1.0, contract mlserver, 2 worker(s))']


def add_truss(home, config, code):
    folder = home / "store" / "mine"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "model.py").write_text(code)
    (folder / "config.yaml").write_text(config)


@pytest.mark.parametrize(("text", "word"), [("", "not installed"), ("install_py_dep_per_model=true", "installed when")])
def test_the_requirements_of_a_truss_are_told(home, capsys, text, word):
    add_truss(home, "requirements: [torch==2.13.0, transformers]", "class Model: ...")
    code, sections = run(home, capsys, text, "--models", "mine")
    assert code == 0
    (note,) = sections["Models"][1:]
    assert note.startswith(f"  note: requirements (torch==2.13.0, transformers): {word}")


def test_requirements_that_name_nothing_are_none(home, capsys):
    add_truss(home, 'requirements: ["", "  # later"]', "class Model: ...")
    _, sections = run(home, capsys, "", "--models", "mine")
    assert sections["Models"][1:] == []


def test_a_location_with_dots_gets_a_remedy(home, capsys):
    add_truss(home, "", "class Model: ...")
    (home / "two.py").touch()
    models = (f"a=../{home.name}/store/mine", "b=../nowhere", f"c=../{home.name}/two.py:one")
    code, sections = run(home, capsys, "", "--models", *models)
    assert code == 1
    refused, missing, function = (line for line in sections["Models"] if "problem" in line)
    assert refused == (
        f"  problem: Relative path is not allowed in url: ../{home.name}/store/mine; its absolute path is allowed:"
        f" {home / 'store' / 'mine'}"
    )
    assert missing.endswith(f"url: ../nowhere; and there is no {home.parent / 'nowhere'}")
    assert function.endswith(f"; its absolute path is allowed: {home / 'two.py'}:one")


#: The class of Truss's examples for TensorRT-LLM.
TRT_LLM = """
class Model:
    def __init__(self, trt_llm, **kwargs):
        self._engine = trt_llm["engine"]
"""


@pytest.mark.parametrize(
    "code",
    [
        TRT_LLM,
        """
class Model:
    def __init__(self, **options):
        self._engine = options["trt_llm"]["engine"]
""",
    ],
)
def test_a_truss_whose_class_needs_what_it_does_not_get_is_told(home, capsys, code):
    add_truss(home, "trt_llm: {build: {base_model: llama}}", code)
    code, sections = run(home, capsys, "", "--models", "mine")
    assert code == 1
    assert any(
        line.startswith(
            "  problem: config.yaml: the class Model of model/model.py needs the argument trt_llm, which it does not"
            " get: no engine is built"
        )
        for line in sections["Models"]
    )


@pytest.mark.parametrize(
    "signature",
    [
        "self, config, data_dir, secrets, environment, lazy_data_resolver",
        "self, **kwargs",
        "self, *args, trt_llm=None, other=1, **kwargs",
        "self, config, *, secrets",
    ],
)
def test_a_truss_whose_class_gets_what_it_needs_is_fine(home, capsys, signature):
    add_truss(home, "", f"class Model:\n    def __init__({signature}): ...\n")
    assert run(home, capsys, "", "--models", "mine")[0] == 0


@pytest.mark.parametrize(
    "statement",
    [
        'self.engine = kwargs["trt_llm"] if "trt_llm" in kwargs else None',
        'self.engine = kwargs.get("trt_llm")',
        """if "trt_llm" in kwargs:
            self.engine = kwargs["trt_llm"]""",
    ],
)
def test_a_truss_that_can_do_without_an_engine_is_fine(home, capsys, statement):
    code = f"class Model:\n    def __init__(self, **kwargs):\n        {statement}\n"
    add_truss(home, "trt_llm: {build: {base_model: llama}}", code)
    code, sections = run(home, capsys, "", "--models", "mine")
    assert code == 0
    assert (
        "  note: trt_llm has no effect: no engine is built, and the class gets no argument trt_llm"
        in sections["Models"]
    )


@pytest.mark.parametrize(
    "line", ["from _truss_shared.secrets_resolver import SecretsResolver", "import _truss_common.x"]
)
def test_a_truss_that_imports_the_server_of_truss_is_told(home, capsys, line):
    add_truss(home, "", f"{line}\nclass Model: ...")
    code, sections = run(home, capsys, "", "--models", "mine")
    assert code == 1
    assert any("model/model.py imports modules of Truss's own server" in each for each in sections["Models"])


def test_a_truss_that_is_an_engine_is_told_so(home, capsys):
    folder = home / "store" / "mine"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("trt_llm: {build: {base_model: llama}}")
    code, sections = run(home, capsys, "", "--models", "mine")
    assert code == 1
    (problem,) = [line for line in sections["Models"] if "problem" in line]
    assert problem.startswith("  problem: config.yaml: trt_llm is given and there is no model class")


def test_code_that_is_none_is_left_to_the_worker(home, capsys):
    add_truss(home, "", "class Model(:")
    assert run(home, capsys, "", "--models", "mine")[0] == 0


def test_a_handler_that_is_no_python_is_told_with_its_line(home, capsys):
    add_model(home, "m")
    (home / "store" / "m" / "handler.py").write_text("import os\ndef handle(data, context)\n    return data\n")
    code, sections = run(home, capsys)
    assert code == 1
    assert any("handler.py cannot be loaded: line 2: expected ':'" in line for line in sections["Models"])


@pytest.mark.parametrize(("more", "afterwards"), [("", "gets 410"), ("onExpiredSequence: restart", "begins a new one")])
def test_the_idle_limit_of_torchserves_stateful_example_is_told(home, capsys, more, afterwards):
    config = f"minWorkers: 2\nmaxWorkers: 2\nsequenceMaxIdleMSec: 10\nsequenceBatching: true\n{more}"
    add_model(home, "stateful", config)
    code, sections = run(home, capsys)
    assert code == 0
    told = [line for line in sections["Models"] if "sequenceMaxIdleMSec is 10" in line]
    assert len(told) == 1
    assert f"the next request of most clients comes too late and {afterwards}" in told[0]


READS_JSON = """
def handle(data, context):
    return [sum(row["body"]["inputs"][0]["data"]) for row in data]
"""


@pytest.mark.parametrize(
    ("text", "config", "told"),
    [
        ("", None, True),
        ("", "openInferenceRows: body", False),
        ("open_inference_rows=body", None, False),
        ("open_inference_rows=body", "openInferenceRows: tensors", True),
        ("service_envelope=kservev2", None, False),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_handler_that_reads_open_inference_requests_itself_is_named(home, capsys, text, config, told, encoding):
    add_model(home, "totals", config)
    (home / "store" / "totals" / "handler.py").write_text(READS_JSON, encoding=encoding)
    code, sections = run(home, capsys, text)
    assert code == 0
    notes = [line for line in sections["Models"] if "handler.py reads Open Inference requests itself" in line]
    assert len(notes) == told
    assert all("(line 3)" in line and "openInferenceRows: body" in line for line in notes)


def test_weights_must_fit_the_models_that_will_be_served(home, capsys):
    add_model(home, "m", model={"modelVersion": "1"})
    add_model(home, "other")
    flags = ("--models", "m", "--traffic", "m=1:90,2:10,other=1.0:100")
    code, sections = run(home, capsys, "", *flags)
    assert code == 1
    assert sections["Refused: the server would not start"] == [
        "traffic (flag --traffic) has a weight for version 2 of model m, which has 1",
        "traffic (flag --traffic) has weights for model other, which is not served",
    ]
    assert run(home, capsys, "", "--models", "m", "other", "--traffic", "m=1:100")[0] == 0
    # What is not known is not complained of.
    assert "Refused: the server would not start" not in run(home, capsys, "", "--models", "gone", *flags[1:])[1]
