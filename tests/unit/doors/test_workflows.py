"""The doors of workflows, where no workflow is needed."""


async def test_options_runs_no_workflow(serving):
    assert (await serving.request("POST", "/wfpredict/any")).status == 404
    answer = await serving.request("OPTIONS", "/wfpredict/any")
    assert (answer.status, answer.json()["type"]) == (405, "MethodNotAllowedException")
