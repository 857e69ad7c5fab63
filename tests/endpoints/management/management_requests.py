"""Requests of the management API, and the texts that it answers."""


async def manage(serving, method, target, **more):
    return await serving.request(method, target, endpoint="management", **more)


def status_text(answer):
    assert list(answer.json()) == ["status"]
    return answer.json()["status"]
