"""What the look-up of a path prepares for its requests."""

from typing import Any

from torchserve_py.endpoints.responses import Answer
from torchserve_py.endpoints.routing import Handler, PathValues, Prepared, Route, Router


def test_the_handler_of_a_path_is_prepared_once() -> None:
    prepared: list[str] = []

    def prepare(values: PathValues) -> Handler:
        prepared.append(values["name"])
        return lambda request, _: Answer(200, values["name"].encode())

    router = Router([Route("/named/{name}", Prepared(prepare))])
    request: Any = None
    bodies = []
    for path in ("/named/a", "/named/b", "/named/a"):
        (match,) = router.find(path)
        answer: Any = match.handler(request, match.values)
        bodies.append(answer.body)
    assert bodies == [b"a", b"b", b"a"]
    assert prepared == ["a", "b"]
