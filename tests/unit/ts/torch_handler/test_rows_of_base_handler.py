"""The default handler: one malformed row of a batch fails only itself, with 400, and never as the model's failure."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.ts.frontend_stub import row

pytestmark = pytest.mark.torch

torch = pytest.importorskip("torch")

#: Takes two numbers.
PAIRS = """
    import torch

    class Pairs(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(2, 1, bias=False)
            torch.nn.init.ones_(self.linear.weight)

        def forward(self, pairs):
            if (pairs > 1e6).any():
                raise RuntimeError("a defect of the model")
            return self.linear(pairs)
"""

#: Takes indexes below three.
LOOKUP = """
    import torch

    class Lookup(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding.from_pretrained(torch.tensor([[1.0], [2.0], [3.0]]))

        def forward(self, indexes):
            return self.table(indexes)
"""

BAD_BODIES = [
    b"",
    b"{broken",
    b"\xff\xd8\xff\xe0 no JSON",
    b"null",
    b'"text"',
    b'{"a": 1}',
    b"[1.0, null]",
    b'["1", "2"]',
    b"[[1.0, 2.0], [3.0]]",
    b"[1.0, 2.0, 3.0]",
    b"[]",
    b"1.0",
    b"[[1.0], [2.0]]",
    b"[1" + b"0" * 400 + b", 2]",
    b"[" * 5000 + b"]" * 5000,
]


def ask(served: Any, *bodies: bytes, content_type: str = "application/json") -> list[tuple[int, Any]]:
    rows = [row(str(index), body, content_type) for index, body in enumerate(bodies)]
    results = sorted(served._results(rows), key=lambda result: int(result[0]))
    return [(status, message or json.loads(body)) for _, _, status, _, _, body, message, _ in results]


@pytest.mark.parametrize("content_type", ["application/json", "", "text/plain"])
def test_a_malformed_row_fails_alone_wherever_it_stands(
    serve: Callable[..., Any], model: Callable[..., str], content_type: str
) -> None:
    served = serve("base_handler", modelFile=model(PAIRS))
    good, other = b"[1.0, 2.0]", b"[3.0, 4.0]"
    assert ask(served, good) == [(200, [3.0])]

    for bad in BAD_BODIES:
        for bodies in ((bad, good, other), (good, other, bad)):
            answers = ask(served, *bodies, content_type=content_type)
            status, message = answers.pop(bodies.index(bad))
            assert status == 400, (bad[:20], message)
            assert message.startswith(("The request's body ", "The model does not take "))
            assert answers == [(200, [3.0]), (200, [7.0])], bad[:20]
        assert [status for status, _ in ask(served, bad)] == [400], bad[:20]
        assert [status for status, _ in ask(served, bad, bad)] == [400, 400], bad[:20]


def test_a_model_that_has_answered_nothing_yet_may_be_at_fault_itself(
    serve: Callable[..., Any], model: Callable[..., str]
) -> None:
    served = serve("base_handler", modelFile=model(PAIRS))
    assert ask(served, b"[1.0, 2.0, 3.0]")[0][0] == 503
    assert [status for status, _ in ask(served, b"[1.0, 2.0, 3.0]", b"[1.0, 2.0]")] == [503, 200]
    assert ask(served, b"[1.0, 2.0, 3.0]")[0][0] == 400


def test_a_defect_of_the_model_stays_its_own_and_its_neighbours_are_answered(
    serve: Callable[..., Any], model: Callable[..., str]
) -> None:
    served = serve("base_handler", modelFile=model(PAIRS))
    assert ask(served, b"[1.0, 2.0]", b"[1e7, 2.0]", b"[3.0, 4.0]") == [
        (200, [3.0]),
        (503, "Prediction failed"),
        (200, [7.0]),
    ]


def test_an_index_that_the_model_does_not_have_is_the_clients_fault(
    serve: Callable[..., Any], model: Callable[..., str]
) -> None:
    served = serve("base_handler", modelFile=model(LOOKUP))
    assert ask(served, b"[0]", b"[7]", b"[2]")[::2] == [(200, [[1.0]]), (200, [[3.0]])]
    [(status, message)] = ask(served, b"[7]")
    assert status == 400
    assert message.endswith("index out of range in self.")


def test_requests_of_an_envelope_fail_alone(serve: Callable[..., Any], model: Callable[..., str]) -> None:
    served = serve("base_handler", modelFile=model(PAIRS), changes={"envelope": "json"})
    good = b'{"instances": [[1.0, 2.0], [3.0, 4.0]]}'

    answers = ask(served, b"no JSON", good, b'{"instances": [[5.0, 6.0], "x"]}', good, b'{"instances": [[1.0]]}')

    assert [status for status, _ in answers] == [400, 200, 400, 200, 400]
    assert answers[1][1] == answers[3][1] == {"predictions": [[3.0], [7.0]]}
    assert [status for status, _ in ask(served, b"no JSON", b'{"instances": [null]}')] == [400, 400]
    assert [status for status, _ in ask(served, b"no JSON", b'{"instances": [[1.0]]}')] == [400, 400]


def test_a_subclass_whose_hook_raises_fails_the_rows_that_it_raises_for(
    serve: Callable[..., Any], model: Callable[..., str]
) -> None:
    handler = model(
        """
        import torch
        from ts.torch_handler.base_handler import BaseHandler

        class Own(BaseHandler):
            def preprocess(self, data):
                return torch.tensor([row["body"]["pair"] for row in data])
        """
    )
    served = serve(handler, modelFile=model(PAIRS))

    answers = ask(served, b'{"pair": [1.0, 2.0]}', b"{}", b'{"pair": [3.0, 4.0]}')

    assert [status for status, _ in answers] == [200, 503, 200]


def test_micro_batches_fail_the_right_row(serve: Callable[..., Any], model: Callable[..., str]) -> None:
    handler = model(
        """
        from ts.handler_utils.micro_batching import MicroBatching
        from ts.torch_handler.base_handler import BaseHandler

        class Small(BaseHandler):
            def __init__(self):
                super().__init__()
                self.handle = MicroBatching(self, 2)
        """
    )
    served = serve(handler, modelFile=model("import torch\nclass Same(torch.nn.Identity): ..."))

    answers = ask(served, b"[1.0]", b"[2.0]", b"[3.0]", b"null", b"[5.0]", b"[6.0, 7.0]")

    assert [status for status, _ in answers] == [200, 200, 200, 400, 200, 200]
    assert answers[5][1] == [6.0, 7.0]
