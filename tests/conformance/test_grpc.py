"""gRPC of a running server, spoken to by grpcio's clients."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distribution
from pathlib import Path

import grpc
import pytest
from google.protobuf.empty_pb2 import Empty
from google.rpc.error_details_pb2 import ErrorInfo
from grpc import StatusCode
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tests.conformance.grpc_client import Client, target
from tests.e2e.gate import WAITING, Gate
from tests.e2e.running_server import DEADLINE, HANDLERS, ROOT, RunningServer, eventually, model_folder

from torchserve_py.apis.grpc.protos import inference_pb2_grpc, management_pb2
from torchserve_py.apis.grpc.protos.inference_pb2 import PredictionsRequest

PROTOS = ROOT / "frontend" / "torchserve_py" / "apis" / "grpc" / "protos"

#: Shows what a handler is given for its row.
SHOW = """
def handle(data, context):
    if data is None:
        return None
    return [{name: [type(value).__name__, bytes(value).decode()] for name, value in row.items()} for row in data]
"""

#: Streams the numbers below the one it is sent.
COUNT = """
from ts.handler_utils.utils import send_intermediate_predict_response


def handle(data, context):
    if data is None:
        return None
    count = int(data[0]["data"])
    for number in range(count - 1):
        send_intermediate_predict_response([str(number)], context.request_ids, "ok", 200, context)
    return [str(count - 1)]
"""

#: Keeps what each sequence was sent, and answers with all of it; `wait NAME` waits at a gate, `raise` raises.
REMEMBER = (
    WAITING
    + """
class Remember:
    def initialize(self, context):
        self.directory = context.system_properties["model_dir"]
        self.sent = {}

    def handle(self, data, context):
        return [self.answer(index, row["data"].decode(), context) for index, row in enumerate(data)]

    def answer(self, index, text, context):
        sent = self.sent.setdefault(context.get_sequence_id(index), [])
        if text == "raise":
            raise ValueError("as it was told")
        if text.startswith("wait "):
            wait_for(f"{self.directory}/{text.removeprefix('wait ')}")
        sent.append(text)
        return ",".join(sent)
"""
)

#: Continuous batching: streams until a second request of its sequence says `stop`, or the job is cancelled.
ENDLESS = """
import time


class Endless:
    def initialize(self, context):
        self.ids = {}
        self.stopped = set()

    def handle(self, data, context):
        time.sleep(0.005)
        answers, criteria = [], []
        for index, row in enumerate(data):
            request_id = context.get_request_id(index)
            sequence_id = context.get_sequence_id(index)
            if row.get("data") == b"stop":
                self.stopped.add(sequence_id)
                self.ids[request_id] = "stopping"
            elif row:
                self.ids[request_id] = "streaming"
            if self.ids[request_id] == "stopping":
                answers.append("stopped")
                criteria.append(lambda value: None)
            else:
                over = sequence_id in self.stopped
                answers.append("the end" if over else "part")
                criteria.append(lambda value, over=over: over)
        context.stopping_criteria = criteria
        return answers
"""

SEQUENCES = "sequenceBatching: true\nsequenceMaxIdleMSec: 600000\nmaxNumSequence: 100\n"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {
        "show": model_folder(folder, "show", SHOW),
        "count": model_folder(folder, "count", COUNT),
        "remember": model_folder(folder, "remember", REMEMBER, SEQUENCES + "batchSize: 4\nmaxBatchDelay: 1\n"),
        "endless": model_folder(folder, "endless", ENDLESS, SEQUENCES + "continuousBatching: true\nbatchSize: 2\n"),
        "echo": HANDLERS / "echo",
    }


@pytest.fixture(scope="module")
def server(models: dict[str, Path]) -> Iterator[RunningServer]:
    properties = {"drain_timeout": 1, "max_request_size": 20_000_000, "max_response_size": 20_000_000}
    with RunningServer(models, properties) as running:
        running.wait_ready()
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    with Client(server) as connected:
        yield connected


def test_ping(client: Client) -> None:
    assert json.loads(client.inference.Ping(Empty()).health) == {"status": "Healthy"}


def test_unary(client: Client) -> None:
    shown = json.loads(client.predict("show", first=b"1", second=b'{"json": "is not decoded"}'))
    assert shown == {"first": ["bytearray", "1"], "second": ["bytearray", '{"json": "is not decoded"}']}


def test_many_at_a_time(client: Client) -> None:
    with ThreadPoolExecutor(16) as pool:
        texts = [str(number).encode() for number in range(200)]
        assert list(pool.map(lambda text: client.predict("echo", data=text), texts)) == texts


def test_stream(client: Client) -> None:
    request = PredictionsRequest(model_name="count", input={"data": b"100"})
    parts = [answer.prediction for answer in client.inference.StreamPredictions(request, timeout=DEADLINE)]
    assert parts == [str(number).encode() for number in range(100)]


def test_a_stream_through_the_unary_method(client: Client) -> None:
    assert client.predict("count", data=b"10") == b"0123456789"


def test_a_message_of_more_than_4_mib(server: RunningServer) -> None:
    body = bytes(8 * 2**20)
    options = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(target(server), options=options) as channel:
        stub = inference_pb2_grpc.InferenceAPIsServiceStub(channel)
        request = PredictionsRequest(model_name="echo", input={"data": body})
        assert stub.Predictions(request, timeout=DEADLINE).prediction == body
        request.input["data"] = bytes(20_000_001)
        with pytest.raises(grpc.RpcError) as caught:
            stub.Predictions(request, timeout=DEADLINE)
        assert caught.value.code() is StatusCode.RESOURCE_EXHAUSTED


def test_a_handler_that_raises(client: Client) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        client.predict("count", data=b"not a number")
    error = caught.value
    assert error.code() is StatusCode.UNAVAILABLE
    assert error.details() == "Prediction failed\norg.pytorch.serve.http.InternalServerException"
    assert dict(error.trailing_metadata())["ts-error-cause"] == "handler_error"


def test_two_sequences_over_one_call(client: Client) -> None:
    talk = client.conversation()
    answers: dict[str, list[bytes]] = {"a": [], "b": []}
    for round_ in range(3):
        for sequence_id in "ab":
            talk.send("remember", sequence_id, f"{sequence_id}{round_}")
        for _ in range(2):
            answer = talk.receive()
            answers[answer.sequence_id].append(answer.prediction)
    assert list(talk.rest()) == []
    assert talk.call.code() is StatusCode.OK
    assert answers == {"a": [b"a0", b"a0,a1", b"a0,a1,a2"], "b": [b"b0", b"b0,b1", b"b0,b1,b2"]}


def test_a_client_may_send_ahead_and_half_close(client: Client) -> None:
    talk = client.conversation()
    for number in range(50):
        for sequence_id in ("c", "d"):
            talk.send("remember", sequence_id, str(number))
    answers = list(talk.rest())
    for sequence_id in ("c", "d"):
        own = [answer.prediction for answer in answers if answer.sequence_id == sequence_id]
        assert own == [",".join(map(str, range(number + 1))).encode() for number in range(50)]


def test_a_sequence_goes_on_in_another_call(client: Client) -> None:
    for expected in (b"x", b"x,x"):
        talk = client.conversation()
        talk.send("remember", "e", "x")
        assert [answer.prediction for answer in talk.rest()] == [expected]
    unary = PredictionsRequest(model_name="remember", sequence_id="e", input={"data": b"y"})
    assert client.inference.Predictions(unary, timeout=DEADLINE).prediction == b"x,x,y"


def test_a_sequence_ends_with_its_marker(client: Client, server: RunningServer) -> None:
    closed = server.metric("ts_sequences_closed_total", model_name="remember", reason="ended")
    talk = client.conversation()
    talk.send("remember", None, "1", ts_request_sequence_start=b"true")
    first = talk.receive()
    assert first.sequence_id.startswith("ts-seq-")
    talk.send("remember", first.sequence_id, "2", ts_request_sequence_end=b"true")
    assert talk.receive().prediction == b"1,2"
    assert list(talk.rest()) == []
    eventually(
        lambda: server.metric("ts_sequences_closed_total", model_name="remember", reason="ended") == closed + 1,
        "the sequence has ended",
    )


def test_a_unary_request_of_a_stateful_model_is_answered(client: Client) -> None:
    request = PredictionsRequest(model_name="remember", input={"data": b"1", "ts_request_sequence_end": b"true"})
    answer = client.inference.Predictions(request, timeout=DEADLINE)
    assert answer.prediction == b"1"
    assert answer.sequence_id.startswith("ts-seq-")


def test_errors_are_for_one_request_and_the_sequence_goes_on(client: Client) -> None:
    talk = client.conversation()
    talk.send("remember", "f", "1")
    talk.send("remember", "f", "raise")
    talk.send("remember", "f", "2")
    first, failed, last = talk.rest()
    assert (first.prediction, last.prediction) == (b"1", b"1,2")
    assert (failed.status.code, failed.status.message) == (StatusCode.UNAVAILABLE.value[0], "Prediction failed")
    assert failed.sequence_id == "f"
    info = ErrorInfo()
    assert failed.status.details[0].Unpack(info)
    assert info.reason == "org.pytorch.serve.http.InternalServerException"


def test_requests_that_are_wrong(client: Client) -> None:
    talk = client.conversation()
    talk.send("remember", None, "1")
    talk.send("nothing", "g", "1")
    answers = list(talk.rest())
    assert {answer.status.message for answer in answers} == {
        "Parameter sequenceId is required.",
        "Model not found: nothing",
    }
    assert {answer.status.code for answer in answers} == {13}


def test_a_request_joins_one_that_streams(client: Client) -> None:
    talk = client.conversation()
    talk.send("endless", "h", "go")
    assert talk.receive().prediction == b"part"
    talk.send("endless", "h", "stop")
    answers = [answer.prediction for answer in talk.rest()]
    assert sorted(set(answers) - {b"part"}) == [b"stopped", b"the end"]


def test_cancelling_a_call_frees_the_worker(client: Client, server: RunningServer) -> None:
    streams = [client.conversation() for _ in range(2)]
    for number, talk in enumerate(streams):
        talk.send("endless", f"i{number}", "go")
        assert talk.receive().prediction == b"part"
    for talk in streams:
        talk.cancel()
    # Both places of the batch were taken; they are free again when two others stream.
    others = [client.conversation() for _ in range(2)]
    for number, talk in enumerate(others):
        talk.send("endless", f"j{number}", "go")
    for number, talk in enumerate(others):
        assert talk.receive().prediction == b"part"
        talk.send("endless", f"j{number}", "stop")
        assert b"the end" in [answer.prediction for answer in talk.rest()]


def test_cancelling_a_unary_call_drops_its_job(client: Client, models: dict[str, Path], server: RunningServer) -> None:
    gate = Gate(models["remember"], "unary")
    waiting = PredictionsRequest(model_name="remember", sequence_id="k", input={"data": b"wait unary"})
    running = client.inference.Predictions.future(waiting, timeout=DEADLINE)
    gate.wait_until_reached()
    queued = PredictionsRequest(model_name="remember", sequence_id="k", input={"data": b"never"})
    dropped = client.inference.Predictions.future(queued, timeout=DEADLINE)
    eventually(lambda: server.metric("ts_queue_depth", model_name="remember") == 1, "the request waits")
    dropped.cancel()
    eventually(lambda: server.metric("ts_queue_depth", model_name="remember") == 0, "the request is gone")
    gate.open()
    assert running.result().prediction == b"wait unary"


async def test_an_aio_client(server: RunningServer) -> None:
    async with grpc.aio.insecure_channel(target(server)) as channel:
        stub = inference_pb2_grpc.InferenceAPIsServiceStub(channel)

        async def sequence(name: str) -> list[bytes]:
            call = stub.StreamPredictions2(timeout=DEADLINE)
            answers = []
            for number in range(20):
                request = PredictionsRequest(model_name="remember", sequence_id=name)
                request.input["data"] = b"%d" % number
                if number == 19:
                    request.input["ts_request_sequence_end"] = b"true"
                await call.write(request)
                answers.append((await call.read()).prediction)
            await call.done_writing()
            assert await call.read() is grpc.aio.EOF
            return answers

        found = await asyncio.gather(*(sequence(f"aio-{number}") for number in range(4)))
    assert found == [[",".join(map(str, range(number + 1))).encode() for number in range(20)]] * 4


def test_management(client: Client, server: RunningServer, tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "extra", SHOW)
    stub = client.management
    register = management_pb2.RegisterModelRequest(
        url=str(folder), model_name="extra", initial_workers=1, synchronous=True
    )
    assert stub.RegisterModel(register).msg == 'Model "extra" Version: 1.0 registered with 1 initial workers'
    with pytest.raises(grpc.RpcError) as caught:
        stub.RegisterModel(register)
    assert caught.value.code() is StatusCode.ALREADY_EXISTS
    assert json.loads(client.predict("extra", a=b"b")) == {"a": ["bytearray", "b"]}

    describe = management_pb2.DescribeModelRequest(model_name="extra")
    assert json.loads(stub.DescribeModel(describe).msg) == server.describe("extra")
    names = [
        each["modelName"] for each in json.loads(stub.ListModels(management_pb2.ListModelsRequest()).msg)["models"]
    ]
    assert names == ["count", "echo", "endless", "extra", "remember", "show"]

    scale = management_pb2.ScaleWorkerRequest(model_name="extra", min_worker=0, max_worker=0, synchronous=True)
    assert stub.ScaleWorker(scale).msg == "Workers scaled to 0 for model: extra"
    with pytest.raises(grpc.RpcError) as caught:
        client.predict("extra", a=b"b")
    assert caught.value.code() is StatusCode.INTERNAL
    assert dict(caught.value.trailing_metadata())["ts-error-cause"] == "no_worker"

    default = management_pb2.SetDefaultRequest(model_name="extra", model_version="1.0")
    assert stub.SetDefault(default).msg == 'Default version successfully updated for model "extra" to "1.0"'
    unregister = management_pb2.UnregisterModelRequest(model_name="extra")
    assert stub.UnregisterModel(unregister).msg == 'Model "extra" unregistered'
    with pytest.raises(grpc.RpcError) as caught:
        stub.DescribeModel(describe)
    assert caught.value.code() is StatusCode.NOT_FOUND


def test_reflection(client: Client) -> None:
    database = ProtoReflectionDescriptorDatabase(client.inference_channel)
    service = "org.pytorch.serve.grpc.inference.InferenceAPIsService"
    assert service in database.get_services()
    file = database.FindFileContainingSymbol(service)
    assert [method.name for method in file.service[0].method] == [
        "Ping",
        "Predictions",
        "StreamPredictions",
        "StreamPredictions2",
    ]


def test_a_client_with_stubs_of_its_own(server: RunningServer, tmp_path: Path) -> None:
    """As docs/grpc.md tells: copy the definitions, make stubs of them, call."""
    for definition in PROTOS.glob("*.proto"):
        (tmp_path / definition.name).write_text(definition.read_text())
    google = distribution("googleapis-common-protos").locate_file("")
    protoc = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"-I{google}", "--python_out=.", "--grpc_python_out=."]
    subprocess.run([*protoc, "inference.proto", "management.proto"], cwd=tmp_path, check=True)
    (tmp_path / "client.py").write_text(
        "import sys, grpc, inference_pb2 as messages, inference_pb2_grpc as stubs\n"
        "with grpc.insecure_channel(sys.argv[1]) as channel:\n"
        "    stub = stubs.InferenceAPIsServiceStub(channel)\n"
        '    request = messages.PredictionsRequest(model_name="echo", input={"data": b"hello"})\n'
        "    print(stub.Predictions(request).prediction.decode())\n"
    )
    command = [sys.executable, "client.py", target(server)]
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=DEADLINE)
    assert done.stdout == "hello\n"


def test_tokens_and_health(models: dict[str, Path]) -> None:
    with RunningServer({"echo": models["echo"]}, flags=()) as server, Client(server) as client:
        health = health_pb2_grpc.HealthStub(client.inference_channel)
        request = health_pb2.HealthCheckRequest(service="org.pytorch.serve.grpc.inference.InferenceAPIsService")
        serving = health_pb2.HealthCheckResponse.SERVING
        eventually(lambda: health.Check(request).status == serving, "the server is ready")
        keys = json.loads((server.directory / "key_file.json").read_text())
        prediction = PredictionsRequest(model_name="echo", input={"data": b"x"})
        with pytest.raises(grpc.RpcError) as caught:
            client.inference.Predictions(prediction)
        assert caught.value.code() is StatusCode.PERMISSION_DENIED
        metadata = (("authorization", f"Bearer {keys['inference']['key']}"),)
        assert client.inference.Predictions(prediction, metadata=metadata).prediction == b"x"
        metadata = (("authorization", f"Bearer {keys['management']['key']}"),)
        assert client.management.ListModels(management_pb2.ListModelsRequest(), metadata=metadata).msg


def test_tls(models: dict[str, Path], tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*make, *names, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    properties = {"enable_grpc_ssl": "true", "private_key_file": key, "certificate_file": certificate}
    with RunningServer({"echo": models["echo"]}, properties) as server:
        server.wait_ready()
        credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
        request = PredictionsRequest(model_name="echo", input={"data": b"x"})
        with grpc.secure_channel(target(server), credentials) as channel:
            stub = inference_pb2_grpc.InferenceAPIsServiceStub(channel)
            assert stub.Predictions(request, timeout=DEADLINE).prediction == b"x"
        with Client(server) as plain, pytest.raises(grpc.RpcError) as caught:
            plain.inference.Predictions(request, timeout=DEADLINE)
        assert caught.value.code() is StatusCode.UNAVAILABLE


def test_a_shutdown_lets_running_calls_and_open_sequences_finish(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "remember", REMEMBER, SEQUENCES)
    gate = Gate(folder)
    with RunningServer({"remember": folder}, {"drain_timeout": 30}) as server, Client(server) as client:
        server.wait_ready()
        talk = client.conversation()
        talk.send("remember", "a", "wait gate")
        gate.wait_until_reached()
        assert server.process is not None
        server.process.send_signal(signal.SIGTERM)
        health = health_pb2_grpc.HealthStub(client.inference_channel)
        not_serving = health_pb2.HealthCheckResponse.NOT_SERVING
        eventually(lambda: health.Check(health_pb2.HealthCheckRequest()).status == not_serving, "the server drains")
        talk.send("remember", "b", "too late")
        refused = talk.receive()
        assert (refused.sequence_id, refused.status.code) == ("b", StatusCode.UNAVAILABLE.value[0])
        talk.send("remember", "a", "last", ts_request_sequence_end=b"true")
        gate.open()
        assert talk.receive().prediction == b"wait gate"
        assert talk.receive().prediction == b"wait gate,last"
        with pytest.raises(grpc.RpcError) as caught:
            talk.receive()
        assert caught.value.code() is StatusCode.UNAVAILABLE
        assert server.process.wait(DEADLINE) == 0


def test_a_port_in_use_keeps_the_server_from_starting(server: RunningServer, models: dict[str, Path]) -> None:
    port = target(server).rpartition(":")[2]
    second = RunningServer({"echo": models["echo"]}, {"grpc_inference_port": port})
    try:
        with pytest.raises(AssertionError, match="the server exited") as caught:
            second.start()
        assert f"grpc_inference_port: cannot listen at 127.0.0.1:{port}: Address already in use" in str(caught.value)
        assert second.process is not None
        assert second.process.wait(DEADLINE) == 1
    finally:
        second.__exit__()
