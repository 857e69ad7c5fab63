"""A server that keeps states in memory, and was restarted: it says that a sequence is lost, and begins no other one."""

import textwrap
from pathlib import Path

import grpc
import pytest
from tests.e2e.running_server import DEADLINE, RunningServer, eventually, model_folder
from tests.e2e.step_counter import HANDLER
from tests.ports import free_ports

from torchserve_py.apis.grpc.protos.inference_pb2 import PredictionsRequest
from torchserve_py.apis.grpc.protos.inference_pb2_grpc import InferenceAPIsServiceStub

CONFIG = textwrap.dedent("""
    minWorkers: 1
    maxWorkers: 1
    sequenceBatching: true
    sequenceMaxIdleMSec: 60000
    maxNumSequence: 10
    handler:
      cache: {store: memory}
""")


def test_a_later_step_of_a_sequence_from_before_a_restart_is_refused(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "steps", HANDLER, CONFIG)
    (port,) = free_ports(1)
    with (
        RunningServer({"steps": folder}, {"grpc_inference_port": port, "drain_timeout": 0}) as server,
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        stub = InferenceAPIsServiceStub(channel)

        def claim(number: int) -> dict[str, str]:
            return {"ts_request_step": str(number), "ts_request_sequence_token": "a token"}

        def over_http(number: int) -> tuple[int, str, str]:
            answer = server.predict("steps", "x", sequence="http", headers=claim(number))
            return answer.status_code, answer.headers.get("ts-error-cause", ""), answer.text

        def over_grpc(number: int) -> str:
            request = PredictionsRequest(model_name="steps", sequence_id="grpc", input={"body": b"x"})
            metadata = tuple(claim(number).items())
            answer = stub.Predictions(request, metadata=metadata, wait_for_ready=True, timeout=DEADLINE)
            return str(answer.prediction, "utf-8")

        server.wait_ready()
        for number in (1, 2):
            assert over_http(number) == (200, "", str(number))
            assert over_grpc(number) == str(number)
        server.server.kill()
        assert server.process is not None
        server.process.wait(DEADLINE)
        server.launch()
        eventually(lambda: server.log().count("Model server started.") == 2, "it was restarted")
        server.wait_ready()
        status, cause, _ = over_http(3)
        assert (status, cause) == (410, "sequence_unknown")
        with pytest.raises(grpc.RpcError) as refused:
            over_grpc(3)
        assert dict(refused.value.trailing_metadata())["ts-error-cause"] == "sequence_unknown"
        assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert over_http(1) == (200, "", "1"), "its client may begin it anew"
        assert over_grpc(1) == "1"
