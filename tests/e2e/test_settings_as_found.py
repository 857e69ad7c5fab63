"""A server starts with what TorchServe's image and SageMaker's toolkit write into config.properties."""

import requests
from tests.e2e.running_server import DEADLINE, HANDLERS, RunningServer


def test_no_workflow_store_and_a_line_glued_to_the_one_before() -> None:
    properties = {
        "workflow_store": "/home/model-server/no-such-store",
        "enable_model_api": "truedefault_response_timeout=60",
    }
    with RunningServer({"echo": HANDLERS / "echo"}, properties, flags=("--disable-token-auth",)) as server:
        server.wait_ready()
        assert server.predict("echo", "x").text == "x"
        assert server.describe("echo")[0]["responseTimeout"] == 60
        assert server.register(HANDLERS / "echo", model_name="other").status_code == 200
        answer = requests.post(f"{server.management}/workflows?url=w.war", timeout=DEADLINE)
        assert (answer.status_code, answer.json()["type"]) == (404, "WorkflowNotFoundException")
        assert "The workflow store does not exist" in answer.json()["message"]
        assert "workflows cannot be registered until there is" in server.log()
