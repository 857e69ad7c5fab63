"""What a Truss is given, how it loads, and what probes say meanwhile."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.conformance.truss.serving import Serving, Truss, is_error
from tests.e2e.running_server import eventually

NOT_READY = "Model with name {} is not ready."
ENVIRONMENT = {"TRUSS_DYNAMIC_CONFIG_DIR": "{here}", "TRUSS_ENVIRONMENT_POLL_SECONDS": "0.05"}
STAGING = {"environment": '{"name": "staging"}'}

TRUSSES = {
    "secrets": Truss(
        "basics:SecretReader",
        {
            "secrets": {"mounted": None, "absent": None, "one": "default", "two": "default", "three": "default"},
            "environment_variables": {
                "TRUSS_SECRETS_DIR": "{here}/secrets",
                "TRUSS_SECRET_two": "variable",
                "TRUSS_SECRET_three": "variable",
            },
        },
        files={"secrets/mounted": "from a file", "secrets/three": "file", "secrets/undeclared": "there"},
    ),
    "staging": Truss("basics:EnvironmentReader", {"environment_variables": ENVIRONMENT}, files=STAGING),
    "nowhere": Truss("basics:EnvironmentReader", {"environment_variables": ENVIRONMENT}),
    "hook": Truss("basics:EnvironmentHook", {"environment_variables": ENVIRONMENT}, files=STAGING),
    "late_hook": Truss("basics:EnvironmentHook", {"environment_variables": ENVIRONMENT}),
    "configured": Truss(
        "basics:Configured",
        {
            "own_key": [1],
            "environment_variables": {"MY_VARIABLE": True},
            "external_package_dirs": ["elsewhere"],
            "runtime": {"streaming_read_timeout": 7},
        },
        files={"elsewhere/outside.py": "WHO = 'from outside'\n"},
    ),
    "fails_once": Truss("loading:FailsOnce"),
    "reloaded": Truss("loading:FailsOnce", options={"truss": {"hotReload": True}}),
    "async_load": Truss("loading:AsyncLoad"),
    "counting": Truss("answers:Counting", options={"minWorkers": 2, "maxWorkers": 2}),
    "falsy": Truss("loading:Falsy"),
    "health": Truss("loading:Health", {"environment_variables": {"GATE": "{here}/gate"}}),
}
LATE = ["health"]


def test_row_5_a_secret_that_is_mounted(serving: Serving) -> None:
    assert serving.predict("secrets", "mounted").json() == "from a file"


@pytest.mark.parametrize("name", ["absent", "undeclared"])
def test_row_6_a_secret_that_is_not_there(name: str, serving: Serving) -> None:
    start = len(serving.log())
    told = is_error(serving.predict("secrets", name), 500, 600)
    assert told == "Internal Server Error (in model/chainlet)."
    assert "SecretNotFound" in serving.wait_for_log(f"The secret '{name}'", start)


def test_row_7_where_a_secret_comes_from(serving: Serving) -> None:
    values = [serving.predict("secrets", name).json() for name in ("one", "two", "three")]
    assert values == ["default", "variable", "file"]


def test_secrets_are_a_mapping_like_any_other(serving: Serving) -> None:
    assert serving.predict("secrets", "safely").json() == ["nothing", False, True]


def test_row_8_the_environment(serving: Serving) -> None:
    assert serving.predict("staging").json() == "staging"
    assert serving.predict("nowhere").json() is None
    assert serving.predict("nowhere", "given").json() == ["config", "data_dir", "lazy_data_resolver", "secrets"]


def test_row_9_the_environment_is_set_up_before_the_model_loads(serving: Serving) -> None:
    assert serving.predict("hook").json() == [["setup_environment", {"name": "staging"}], ["load", None]]


def test_row_10_a_change_of_the_environment_is_told(serving: Serving) -> None:
    assert serving.predict("late_hook").json() == [["load", None]]
    file = serving.folders["late_hook"] / "environment"
    calls: list[Any] = [["load", None]]
    for text, environment in (('{"name": "one"}', {"name": "one"}), ("null", None)):
        replacement = file.with_name("new")
        replacement.write_text(text)
        replacement.rename(file)
        calls.append(["setup_environment", environment])
        eventually(lambda: serving.predict("late_hook").json() == calls, f"it is told of {text}")


def test_the_configuration_is_complete_and_the_packages_are_found(serving: Serving) -> None:
    assert serving.predict("configured").json() == {
        "concurrency": 1,
        "timeout": 7,
        "own": [1],
        "data": ["data", True],
        "variable": "true",
        "packages": "from outside",
    }


def test_row_11_a_load_that_fails_is_tried_again(serving: Serving) -> None:
    assert serving.predict("fails_once").json() == 2
    (warning,) = (line for line in serving.log().splitlines() if "-fails_once_" in line and "load() has failed" in line)
    assert "the first attempt fails" in warning


def test_row_62_a_load_that_is_a_coroutine_is_awaited(serving: Serving) -> None:
    assert serving.predict("async_load").json() is True


def test_a_model_may_be_falsy(serving: Serving) -> None:
    assert serving.predict("falsy").json() == "served"


def test_rows_13_24_25_26_probes(serving: Serving) -> None:
    start = len(serving.log())
    for path in ("", "/loaded"):
        assert is_error(serving.get("health", path), 503, 600) == NOT_READY.format("health")
    assert is_error(serving.predict("health", content=b"nope"), 503, 600) == NOT_READY.format("health")
    assert is_error(serving.call("health", "completions"), 503, 600) == NOT_READY.format("health")
    assert serving.client.get("/live").status_code == 200
    assert "health" not in serving.log()[start:]  # nothing asked the model
    (serving.folders["health"] / "gate").touch()
    serving.wait_loaded("health")
    _check_healthy(serving)
    _check_unhealthy(serving)


def _check_healthy(serving: Serving) -> None:
    for value in (True, "yes", 34, {"a": 1}, None):
        assert serving.predict("health", value).status_code == 200
        response = serving.get("health")
        assert (response.status_code, response.json()) == (200, {})


def _check_unhealthy(serving: Serving) -> None:
    for value in (False, "", 0, {}):
        assert serving.predict("health", value).json() == value  # still served
        before = serving.log().count("not healthy")
        for warnings in (before + 1, before + 2):
            assert is_error(serving.get("health"), 503, 600) == NOT_READY.format("health")
            _wait_for_count(serving, "not healthy", warnings)
    assert serving.get("health", "/loaded").status_code == 200
    assert serving.predict("health", "raise").status_code == 200
    start = len(serving.log())
    assert serving.get("health").status_code == 503
    serving.wait_for_log("the engine is on fire", start)


def _wait_for_count(serving: Serving, text: str, count: int) -> None:
    eventually(lambda: serving.log().count(text) >= count, f"the log has {text!r} {count} times")
    assert serving.log().count(text) == count


@pytest.mark.parametrize("retries", [None, 0])
def test_row_12_a_load_that_fails_again_is_given_up(retries: int | None, serving: Serving) -> None:
    variables = {} if retries is None else {"NUM_LOAD_RETRIES_TRUSS": retries}
    source = "loading:FailsAlways" if retries is None else "loading:FailsOnce"
    start = len(serving.log())
    name = f"gives_up_{retries}"
    response = serving.register(name, Truss(source, {"environment_variables": variables}))
    assert response.status_code == 500
    assert ("no weights here" if retries is None else "the first attempt fails") in response.json()["message"]
    assert serving.log()[start:].count("load() has failed") == (1 if retries is None else 0)


def test_rows_15_68_a_model_that_cannot_be_loaded_is_not_ready_and_the_log_says_why(serving: Serving) -> None:
    start = len(serving.log())
    assert serving.register("hopeless", Truss("loading:FailsAlways"), wait=False).status_code == 202
    serving.wait_for_log("no weights here", start)
    for path in ("", "/loaded", "/schema"):
        is_error(serving.get("hopeless", path), 503, 600)
    is_error(serving.predict("hopeless", 1), 503, 600)
    serving.unregister("hopeless")


def test_a_load_that_ends_the_process_is_a_failure(serving: Serving) -> None:
    response = serving.register("exits", Truss("loading:Exits"))
    assert response.status_code == 500
    assert "SystemExit" in response.json()["message"]


@pytest.mark.parametrize(
    ("row", "class_name", "told"),
    [
        (16, "SecondIsNoRequest", ["predict", "other"]),
        (17, "RequestFirst", ["predict", "request"]),
        (18, "ThreeArguments", ["predict", "more"]),
        (19, "PreprocessInVain", ["preprocess", "predict"]),
        (20, "PostprocessInVain", ["postprocess"]),
        (21, "OnlyPreprocess", ["predict", "websocket"]),
        (21, "Empty", ["predict", "websocket"]),
        (22, "PredictAndWebsocket", ["predict", "websocket"]),
        (22, "PreprocessAndWebsocket", ["preprocess", "websocket"]),
        (23, "HealthWithArgument", ["is_healthy"]),
    ],
)
def test_rows_16_to_23_a_class_that_breaks_a_rule_is_not_served(
    row: int, class_name: str, told: list[str], serving: Serving
) -> None:
    response = serving.register(class_name, Truss(f"definitions:{class_name}"))
    assert response.status_code == 500
    message = response.json()["message"]
    assert all(word in message for word in told), message
    assert is_unknown(serving, class_name)


def is_unknown(serving: Serving, name: str) -> bool:
    return serving.get(name, "/loaded").status_code == 404


@pytest.mark.parametrize(
    ("runtime", "told"),
    [
        ({"predict_concurrency": 0}, "config.yaml: line 3: runtime.predict_concurrency is 0 (int)"),
        ({"num_workers": 2}, "runtime.num_workers is 2 (int)"),
        ({"transport": {"kind": "grpc"}}, "runtime.transport.kind is 'grpc' (str)"),
    ],
)
def test_a_configuration_that_cannot_be_acted_on_is_refused(
    runtime: dict[str, Any], told: str, serving: Serving
) -> None:
    name = f"refused_{next(iter(runtime))}"
    response = serving.register(name, Truss("basics:Echo", {"runtime": runtime}))
    assert (response.status_code, response.json()["type"]) == (400, "InvalidModelException")
    assert told in response.json()["message"]


def test_a_packed_truss_is_served(serving: Serving, tmp_path: Path) -> None:
    from torchserve_py.archives.archiver.pack import PackOptions, pack

    folder = Truss("basics:Echo", {"external_package_dirs": ["../outside"]}).write(tmp_path, "packed")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "tool.py").write_text("")
    store = serving.running.model_store
    pack(PackOptions("packed", None, "2.0", extra_files=str(folder), export_path=str(store)))
    assert serving.running.register("packed.mar").status_code == 200
    assert serving.predict("packed", [1]).json() == [1]
    described = serving.running.describe("packed")[0]
    assert (described["modelVersion"], described["minWorkers"]) == ("2.0", 1)


def test_predictions_answer_as_well(serving: Serving) -> None:
    response = httpx.post(f"{serving.running.inference}/predictions/falsy", content=json.dumps({"a": 1}))
    assert (response.status_code, response.json()) == (200, "served")


def test_row_84_code_is_taken_anew_where_that_is_allowed(serving: Serving) -> None:
    assert is_error(serving.call("fails_once", "hot-reload"), 404, 700).startswith("Hot reload is off.")
    file = serving.folders["reloaded"] / "model" / "model.py"
    source = file.read_text()
    assert serving.predict("reloaded").json() == 2
    file.write_text(source.replace("return self.attempts", "return [self.attempts]"))
    assert serving.call("reloaded", "hot-reload").json() == {"msg": "Hot reload complete"}
    assert serving.predict("reloaded").json() == [2]  # its state is kept, load did not run again
    file.write_text("class FailsOnce(:\n")
    response = serving.call("reloaded", "hot-reload")
    assert response.status_code == 422
    assert response.json()["error"].startswith("SyntaxError: ")
    file.write_text("class FailsOnce:\n    def predict(self, inputs, other):\n        return 1\n")
    response = serving.call("reloaded", "hot-reload")
    assert response.json()["error"].startswith("ModelDefinitionError: ")
    assert serving.predict("reloaded").json() == [2]
    assert is_error(serving.get("reloaded", "/schema"), 404, 600) == "No schema found"
    typed = "import pydantic\n\nclass In(pydantic.BaseModel):\n    a: int\n\nclass FailsOnce:\n"
    file.write_text(typed + "    def predict(self, inputs: In):\n        return inputs.a\n")
    assert serving.call("reloaded", "hot-reload").status_code == 200
    assert serving.get("reloaded", "/schema").json()["input_schema"]["title"] == "In"


def test_row_81_metrics_are_those_of_all_workers(serving: Serving) -> None:
    def series() -> dict[str, float]:
        lines = serving.get("counting", "/metrics").text.splitlines()
        return {line.split(" ")[0]: float(line.split(" ")[1]) for line in lines if not line.startswith("#")}

    eventually(lambda: len(series()) == 2, "both workers tell what they count")
    for _ in range(5):
        assert serving.predict("counting").json() == "hello"
    told = series()
    assert sum(told.values()) == 5
    assert all(name.startswith('greetings_total{ts_worker="') for name in told)


def test_the_management_api_shows_what_a_truss_declares(serving: Serving) -> None:
    declared = serving.running.describe("hook", "?customized=true")[0]["customizedMetadata"]
    assert (declared["platform"], declared["endpoints"]) == ("truss", ["predict"])
