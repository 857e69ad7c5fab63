"""model-config.yaml: what is accepted, what is refused, and what the refusal says."""

from pathlib import Path

import pytest
import yaml

from torchserve_py.apis.open_inference.open_inference_keys import OpenInferenceKeys
from torchserve_py.base.settings.schemas import model_config as schema
from torchserve_py.base.settings.schemas.plugin_keys import PluginKeys
from torchserve_py.contracts.computing.computing_keys import ComputingKeys
from torchserve_py.core.plans.config import InvalidModelConfig, ModelConfig, read_model_config
from torchserve_py.core.torchrun.torchrun_keys import TorchrunConfig, TorchrunKeys
from torchserve_py.sequences.steps.handler_keys import HandlerKeys, HandlerMap

TORCHRUN = TorchrunConfig(
    nnodes=1, nproc_per_node=4, rdzv_backend="c10d", rdzv_endpoint="localhost:29400", omp_num_threads=2
)
TENSORS = OpenInferenceKeys.model_validate(
    {
        "inputs": [{"name": "image", "datatype": "FP32", "shape": [-1, 3]}],
        "outputs": [{"name": "label", "datatype": "BYTES", "shape": []}],
        "decoupled": False,
    }
)

COMPLETE = """\
minWorkers: 1
maxWorkers: 2
batchSize: 8
maxBatchDelay: 50
responseTimeout: 60
startupTimeout: 90
deviceType: GPU
deviceIds: [0, 1, 2, 3]
parallelType: pp
parallelLevel: 4
torchrun: {nnodes: 1, nproc-per-node: 4, rdzv-backend: c10d, rdzv-endpoint: "localhost:29400", OMP_NUMBER_THREADS: 2}
maxRetryTimeoutInSec: 10
clientTimeoutInMills: 2000
jobQueueSize: 500
useJobTicket: false
continuousBatching: true
sequenceBatching: true
sequenceMaxIdleMSec: 60000
sequenceTimeoutMSec: 600000
maxSequenceJobQueueSize: 10
maxNumSequence: 32
deadlineSafety: 20
onExpiredSequence: restart
requireStart: true
rememberEndedSec: 600
asyncCommunication: false
inputs: [{name: image, datatype: FP32, shape: [-1, 3]}]
outputs: [{name: label, datatype: BYTES, shape: []}]
decoupled: false
concurrencyTarget: 50
useVenv: true
autocast: bfloat16
channelsLast: true
handler:
  model_path: /models/llama
"""


def read(tmp_path: Path, text: str | bytes) -> ModelConfig:
    path = tmp_path / "model-config.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_model_config(path)


def problems(tmp_path: Path, text: str | bytes) -> list[str]:
    with pytest.raises(InvalidModelConfig) as error:
        read(tmp_path, text)
    assert str(error.value).startswith("model-config.yaml: ")
    return list(error.value.problems)


EVERYTHING = """\
batchSize: 4
continuousBatching: true
sequenceBatching: true
sequenceMaxIdleMSec: 60000
parallelType: tp
torchrun: {nproc-per-node: 2}
inputs: [{name: image, datatype: FP32, shape: [-1, 3]}]
decoupled: true
autocast: bfloat16
channelsLast: true
warmup: [{file: sample.json}]
micro_batching: {micro_batch_size: 2}
handler:
  cache: {store: file, path: /var/lib/sequences.db}
"""


@pytest.mark.parametrize("contract", ["truss", "mlserver"])
def test_what_a_contract_cannot_do_is_refused_all_at_once(tmp_path: Path, contract: str) -> None:
    path = tmp_path / "model-config.yaml"
    path.write_text(EVERYTHING)
    with pytest.raises(InvalidModelConfig) as refused:
        read_model_config(path, contract)
    told = [problem for problem in refused.value.problems if f"the model's contract is {contract}: " in problem]
    keys = [
        *("batchSize is 4", "continuousBatching is true", "sequenceBatching is true"),
        *("parallelType is tp", "inputs is set", "decoupled is set"),
        *("handler.cache is set", "torchrun is set", "warmup is set"),
        *("autocast is bfloat16", "channelsLast is true"),
        "micro_batching is set",
    ]
    assert [problem.split(" but ")[0] for problem in told] == keys


@pytest.mark.parametrize("contract", ["torchserve", "truss", "mlserver"])
def test_what_every_contract_can_do_is_accepted(tmp_path: Path, contract: str) -> None:
    path = tmp_path / "model-config.yaml"
    path.write_text(
        "minWorkers: 1\nmaxWorkers: 2\nbatchSize: 1\nresponseTimeout: 60\nstartupTimeout: 60\ndeviceType: cpu\n"
        "parallelType: custom\nparallelLevel: 2\nmaxRetryTimeoutInSec: 1\nclientTimeoutInMills: 1\njobQueueSize: 1\n"
        "useJobTicket: true\nasyncCommunication: true\nconcurrencyTarget: 2\nuseVenv: true\n"
    )
    assert read_model_config(path, contract).warnings == ()


@pytest.mark.parametrize(
    ("contract", "text", "told"),
    [
        ("truss", "truss: {hotReload: true}", None),
        ("mlserver", "truss: {hotReload: true}", "only code of the contract truss reads it"),
        ("torchserve", "truss: {hotReload: true}", "only code of the contract truss reads it"),
        ("truss", "handler: {model_path: here}", "only code of the contract torchserve reads it"),
        ("truss", "asyncCommunication: false", "each request is a call of its own"),
    ],
)
def test_keys_for_the_code_of_another_contract_are_refused(
    tmp_path: Path, contract: str, text: str, told: str | None
) -> None:
    path = tmp_path / "model-config.yaml"
    path.write_text(text)
    if told is None:
        assert read_model_config(path, contract).warnings == ()
    else:
        with pytest.raises(InvalidModelConfig, match=told):
            read_model_config(path, contract)


def test_every_key_is_read(tmp_path: Path) -> None:
    config = read(tmp_path, COMPLETE)
    assert config == ModelConfig.model_construct(
        min_workers=1,
        max_workers=2,
        batch_size=8,
        max_batch_delay_ms=50,
        response_timeout=60,
        startup_timeout=90,
        device_type="gpu",
        device_ids=(0, 1, 2, 3),
        parallel_type="pp",
        parallel_level=4,
        plugin_keys=PluginKeys(
            (
                TENSORS,
                HandlerKeys(handler=HandlerMap(cache=None)),
                TorchrunKeys(torchrun=TORCHRUN),
                ComputingKeys(autocast="bfloat16", channels_last=True),
            )
        ),
        max_retry_timeout=10,
        client_timeout_ms=2000,
        job_queue_size=500,
        use_job_ticket=False,
        continuous_batching=True,
        sequence_batching=True,
        sequence_max_idle_ms=60000,
        sequence_timeout_ms=600000,
        max_sequence_job_queue_size=10,
        max_num_sequence=32,
        deadline_safety=20,
        on_expired_sequence="restart",
        require_start=True,
        remember_ended=600,
        async_communication=False,
        concurrency_target=50,
        use_venv=True,
        raw=yaml.safe_load(COMPLETE),
        warnings=("concurrencyTarget has no effect because asyncCommunication is not true",),
    )
    # threads contradicts torchrun, and has tests of its own.
    assert all(getattr(config, name) is not None for name in schema.ModelConfigFile.model_fields.keys() - {"threads"})


@pytest.mark.parametrize("text", ["", "# nothing but a comment\n", "---\n", "null\n", "minWorkers:\n"])
def test_nothing_said_means_nothing_set(tmp_path: Path, text: str) -> None:
    config = read(tmp_path, text)
    attributes = ModelConfig.model_fields.keys() - {"source", "raw", "warnings", "plugin_keys"}
    assert all(getattr(config, name) is None for name in attributes)
    assert (config.warnings, config.plugin_keys) == ((), PluginKeys())


def test_the_handlers_keys_stay_available(tmp_path: Path) -> None:
    config = read(tmp_path, "batchSize: 2\nmax_length: 64\nhandler: {profile: true}\n1: one\n")
    assert dict(config.raw) == {"batchSize": 2, "max_length": 64, "handler": {"profile": True}, 1: "one"}
    assert config.warnings == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("batchSize: '4'", "line 1: batchSize is '4' (str), it must be an integer from 1"),
        ("x: 1\nbatchSize: four", "line 2: batchSize is 'four' (str), it must be an integer from 1"),
        ("batchSize: 0", "line 1: batchSize is 0 (int), it must be an integer from 1"),
        ("batchSize: true", "line 1: batchSize is True (bool), it must be an integer from 1"),
        ("batchSize: 2.0", "line 1: batchSize is 2.0 (float), it must be an integer from 1"),
        (
            "jobQueueSize: 2147483648",
            "line 1: jobQueueSize is 2147483648 (int), it must be an integer from 0, at most 2147483647",
        ),
        ("responseTimeout: -1", "line 1: responseTimeout is -1 (int), it must be an integer from 1 (seconds)"),
        ("useVenv: 'yes'", "line 1: useVenv is 'yes' (str), it must be true or false"),
        ("deviceType: tpu", "line 1: deviceType is 'tpu' (str), it must be one of cpu, gpu, auto"),
        (
            "deviceIds: [0, '1']",
            "line 1: deviceIds is [0, '1'] (list), it must be a list of one or more GPU numbers, "
            "each an integer from 0, for example [0, 1]",
        ),
        (
            "onExpiredSequence: ignore\n",
            "line 1: onExpiredSequence is 'ignore' (str), it must be one of refuse, restart",
        ),
        (
            "torchrun: 4",
            "line 1: torchrun is 4 (int), it must be a map of torchrun options, for example {nproc-per-node: 4}",
        ),
        (
            "parallelType: pp\ntorchrun:\n  nproc-per-node: gpu",
            "line 2: torchrun.nproc-per-node is 'gpu' (str), it must be an integer from 1",
        ),
    ],
)
def test_a_wrong_value_is_named_with_what_is_right(tmp_path: Path, text: str, expected: str) -> None:
    assert problems(tmp_path, text) == [expected]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("sequenceBatching: true", ["sequenceBatching", "sequenceMaxIdleMSec is not set"]),
        ("sequenceBatching: true\nsequenceMaxIdleMSec: 0", ["sequenceBatching", "sequenceMaxIdleMSec is 0"]),
        ("minWorkers: 4\nmaxWorkers: 2", ["minWorkers is 4", "maxWorkers is 2"]),
        (
            "parallelType: tp\nparallelLevel: 2\nthreads: 3",
            ["threads is 3 but a worker is several processes: set torchrun.OMP_NUMBER_THREADS"],
        ),
        ("parallelLevel: 2", ["parallelLevel is 2", "parallelType is not set"]),
        ("torchrun: {nproc-per-node: 2}", ["torchrun.nproc-per-node is 2", "parallelType is not set"]),
        ("parallelType: tp", ["parallelType is tp", "parallelLevel is not set"]),
        (
            "parallelType: tp\nparallelLevel: 2\ntorchrun: {nproc-per-node: 4}",
            ["parallelLevel is 2", "torchrun.nproc-per-node is 4"],
        ),
        ("deviceType: cpu\ndeviceIds: [0]", ["deviceIds is [0]", "deviceType is cpu"]),
        ("parallelType: tp\nparallelLevel: 4\ndeviceIds: [0, 1]", ["parallelLevel is 4", "deviceIds names only 2"]),
        ("parallelType: pp\nparallelLevel: 2\ndeviceIds: [1, 1]", ["deviceIds is [1, 1]", "only once"]),
        ("continuousBatching: true\nasyncCommunication: true", ["continuousBatching", "asyncCommunication"]),
        (
            "parallelType: tp\nparallelLevel: 2\ncontinuousBatching: true",
            ["parallelType is tp", "continuousBatching is true", "use pp"],
        ),
        (
            "parallelType: pptp\nparallelLevel: 2\nasyncCommunication: true",
            ["parallelType is pptp", "asyncCommunication is true", "use pp"],
        ),
        (
            "parallelType: custom\ntorchrun: {nproc-per-node: 2}\ncontinuousBatching: true",
            ["parallelType is custom with torchrun", "continuousBatching is true"],
        ),
        (
            "parallelType: tp\ntorchrun: {nnodes: 2, nproc-per-node: 2}",
            ["torchrun.nnodes is 2", "run on the server's machine"],
        ),
    ],
)
def test_a_contradiction_names_both_keys(tmp_path: Path, text: str, named: list[str]) -> None:
    (problem,) = problems(tmp_path, text)
    assert all(name in problem for name in named), problem


def test_all_problems_are_reported_together(tmp_path: Path) -> None:
    found = problems(tmp_path, "batchSize: x\nminWorkers: 3\nmaxWorkers: 1\nsequenceBatching: true\nuseVenv: 1\n")
    assert [problem.split(" is ")[0] for problem in found] == [
        "line 1: batchSize",
        "line 5: useVenv",
        "minWorkers",
        "sequenceBatching",
    ]


def test_a_refused_value_is_not_reported_again_as_a_contradiction(tmp_path: Path) -> None:
    assert len(problems(tmp_path, "sequenceBatching: true\nsequenceMaxIdleMSec: soon\n")) == 1
    assert len(problems(tmp_path, "parallelType: tensor\nparallelLevel: 4\n")) == 1


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("batchsize: 4", "batchsize is not a key that the server reads; did you mean batchSize?"),
        ("max_workers: 4", "max_workers is not a key that the server reads; did you mean maxWorkers?"),
        (
            "sequenceMaxIdleMsec: 4",
            "sequenceMaxIdleMsec is not a key that the server reads; did you mean sequenceMaxIdleMSec?",
        ),
        ("deviceId: [0]", "deviceId is not a key that the server reads; did you mean deviceIds?"),
        ("maxNumSequence: 4", "maxNumSequence has no effect because sequenceBatching is not true"),
        (
            "sequenceBatching: true\nsequenceMaxIdleMSec: 60000",
            "maxNumSequence is not set: only 1 sequence can be open at a time for each worker, and a request that "
            "begins one more gets 503; 1000 would allow a thousand",
        ),
        (
            "sequenceBatching: true\nsequenceMaxIdleMSec: 60000\nmaxNumSequence: 2\nuseJobTicket: true",
            "useJobTicket is ignored for a model with sequenceBatching",
        ),
        (
            "useJobTicket: true\nbatchSize: 4",
            "batchSize 4 has no effect: useJobTicket takes a request only while a worker is idle",
        ),
        (
            "parallelType: tp\ntorchrun: {nproc-per-node: 2, nproc: 2}",
            "torchrun.nproc is not known and has no effect; known are nnodes, nproc-per-node, rdzv-backend, "
            "rdzv-endpoint, rdzv-conf, monitor-interval, node-rank, OMP_NUMBER_THREADS",
        ),
        (
            "clientTimeoutInMills: 50\nbatchSize: 4\nmaxBatchDelay: 100",
            "clientTimeoutInMills is 50 but maxBatchDelay is 100: "
            "a request that waits for its batch to fill expires first",
        ),
    ],
)
def test_what_is_probably_not_meant_is_a_warning(tmp_path: Path, text: str, warning: str) -> None:
    assert read(tmp_path, text).warnings == (warning,)


@pytest.mark.parametrize("key", ["pt2", "handler", "dali", "deepspeed", "pippy", "micro_batching", "max_new_tokens"])
def test_keys_of_handlers_are_no_misspellings(tmp_path: Path, key: str) -> None:
    assert read(tmp_path, f"{key}: 1").warnings == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("batchSize: [1", "not valid YAML"),
        ("- batchSize\n", "line 1: the file must hold 'key: value' lines, not a list"),
        ("batchSize", "line 1: the file must hold 'key: value' lines, not a single value"),
        ("batchSize: 1\nbatchSize: 2\n", "line 2: batchSize is already given on line 1; keep one"),
        (
            "torchrun:\n  nnodes: 1\n  nnodes: 2\n",
            "line 3: torchrun.nnodes is already given on line 2; keep one",
        ),
        (
            "handler:\n  cache:\n    store: file\n    store: redis\n",
            "line 4: handler.cache.store is already given on line 3; keep one",
        ),
        ("a: [{b: 1}, {c: 1, c: 2}]", "line 1: a[1].c is already given on line 1; keep one"),
        ("a: !!python/object/apply:os.system ['true']", "not valid YAML"),
        ("a: &a {b: *a}", "line 1: an alias makes this value contain itself"),
        ("a: " + "9" * 5000, "not valid YAML"),
        ("a: 2024-99-99", "not valid YAML"),
        ("!!null {batchSize: 4}", "not valid YAML"),
        (b"\xff\xfe\x00", "not valid YAML"),
        ("a: " + "[" * 200_000 + "]" * 200_000, "line 1: mappings and lists are nested more than 64 deep"),
        ("a: '" + "x" * (1 << 20) + "'", "the file is larger than 1048576 bytes, the most that is read"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(tmp_path: Path, text: str | bytes, said: str) -> None:
    (problem,) = problems(tmp_path, text)
    assert problem.startswith(said), problem


@pytest.mark.parametrize("use", ["[*a{0}, *a{0}]", "{{<<: [*a{0}, *a{0}], k{1}: 1}}"], ids=["list", "merge"])
def test_aliases_cannot_multiply_without_end(tmp_path: Path, use: str) -> None:
    first = "a0: &a0 " + ("[1]" if use.startswith("[") else "{k: 1}")
    lines = [first, *(f"a{n}: &a{n} {use.format(n - 1, n)}" for n in range(1, 40))]
    (problem,) = problems(tmp_path, "\n".join(lines))
    assert "more than 100000 values once the aliases are expanded" in problem


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidModelConfig, match=r"^gone\.yaml: the file cannot be read: No such file or directory$"):
        read_model_config(tmp_path / "gone.yaml")


@pytest.mark.parametrize(
    "text",
    [
        "parallelType: pp\nparallelLevel: 2\ncontinuousBatching: true",
        "parallelType: pp\nparallelLevel: 2\nasyncCommunication: true",
        "parallelType: custom\nparallelLevel: 2\ncontinuousBatching: true",
        "parallelType: custom\ntorchrun: {nproc-per-node: 2}\nasyncCommunication: true",
        "sequenceBatching: true\nsequenceMaxIdleMSec: 60000\nasyncCommunication: true",
    ],
)
def test_one_process_that_gets_the_requests_may_run_them_as_it_likes(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text).warnings == ()
