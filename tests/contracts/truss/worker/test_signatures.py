"""Which methods a model class may have, what they are called with, and what is said of those that cannot be called."""

from __future__ import annotations

import functools
import re
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import fastapi
import pytest
from starlette.requests import Request

from ts.contracts.truss.model_methods import describe
from ts.contracts.truss.signatures import Method, ModelDefinitionError, method_of, takes

if TYPE_CHECKING:
    from nowhere import Unknown  # type: ignore[import-not-found]


class Derived(Request):
    pass


class Methods:
    """One method for each form that is allowed."""

    def nothing(self) -> Any: ...

    def inputs(self, anything: Any) -> Any: ...

    def unannotated(self, anything):  # type: ignore[no-untyped-def]
        ...

    def many(self, *anything: Any) -> Any: ...

    def text(self, request: Unknown) -> Any: ...

    def optional(self, request: Request | None) -> Any: ...

    def request(self, r: Request) -> Any: ...

    def fastapis(self, r: fastapi.Request) -> Any: ...

    def derived(self, r: Derived) -> Any: ...

    def both(self, inputs: Any, r: Request) -> Any: ...

    async def coroutine(self, inputs: Any) -> Any: ...

    def generator(self, inputs: Any) -> Iterator[str]:
        yield ""

    async def async_generator(self, inputs: Any) -> AsyncIterator[str]:
        yield ""

    partial = functools.partial(lambda first, inputs: inputs, 1)


class Callable_:
    async def __call__(self, inputs: Any, request: Request) -> Any: ...


def method(name: str) -> Method:
    found = method_of(Methods(), name)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "takes"),  # inputs, and the request
    [
        ("nothing", (False, False)),
        ("inputs", (True, False)),
        ("unannotated", (True, False)),
        ("many", (True, False)),
        ("text", (True, False)),
        ("optional", (True, False)),
        ("request", (False, True)),
        ("fastapis", (False, True)),
        ("derived", (False, True)),
        ("both", (True, True)),
        ("partial", (True, False)),
    ],
)
def test_what_a_method_is_called_with(name: str, takes: tuple[bool, bool]) -> None:
    found = method(name)
    assert (found.takes_inputs, found.takes_request) == takes


def test_what_kind_of_function_a_method_is() -> None:
    assert method("inputs").is_function
    assert method("coroutine").is_coroutine
    assert method("generator").is_generator
    assert method("async_generator").is_generator
    model = Methods()
    model.predict = Callable_()  # type: ignore[attr-defined]
    found = method_of(model, "predict")
    assert found is not None
    assert (found.is_coroutine, found.takes_inputs, found.takes_request) == (True, True, True)
    assert method_of(model, "postprocess") is None


class Refused:
    def unannotated(self, inputs, request):  # type: ignore[no-untyped-def]
        ...

    def flag(self, inputs: Any, flag: bool = True) -> Any: ...

    def keywords(self, inputs: Any, **kw: Any) -> Any: ...

    def unknown(self, inputs: Any, request: Unknown) -> Any: ...

    def first(self, request: Request, inputs: Any) -> Any: ...

    def three(self, inputs: Any, request: Request, more: Any) -> Any: ...

    attribute = "text"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("unannotated", "unannotated(self, inputs, request): the second of two arguments must be the request"),
        ("flag", "the second of two arguments must be the request, and annotated so. Right is flag(self)"),
        ("keywords", "**kw"),
        ("unknown", "its annotation 'Unknown' cannot be resolved"),
        ("first", "of two arguments the first may not be the request"),
        ("three", "it takes 3 arguments, and two are the most"),
        ("attribute", "attribute of the model is a str"),
    ],
)
def test_the_form_of_a_method_that_is_refused(name: str, told: str) -> None:
    with pytest.raises(ModelDefinitionError, match=re.escape(told)):
        method_of(Refused(), name)


def predict(self: Any, inputs: Any) -> Any: ...
def predict_request(self: Any, request: Request) -> Any: ...
def postprocess(self: Any, result: Any) -> Any: ...
def no_arguments(self: Any) -> Any: ...
async def session(self: Any, websocket: fastapi.WebSocket) -> None: ...


def session_function(self: Any, websocket: fastapi.WebSocket) -> None: ...
async def session_stream(self: Any, websocket: fastapi.WebSocket) -> Any:
    yield 1


def model(**methods: Any) -> Any:
    return type("Model", (), methods)()


@pytest.mark.parametrize(
    ("methods", "told"),
    [
        ({}, "needs a predict or websocket method"),
        ({"preprocess": predict}, "needs a predict or websocket method"),
        ({"preprocess": predict, "predict": predict_request}, "whose result predict would throw away"),
        ({"predict": predict, "postprocess": predict_request}, "would throw away the result of predict"),
        ({"predict": predict, "websocket": session}, "cannot have both websocket and predict"),
        ({"preprocess": predict, "websocket": session}, "cannot have both websocket and preprocess"),
        ({"websocket": session_function}, "must be an async function"),
        ({"websocket": session_stream}, "must be an async function"),
        ({"websocket": predict_request}, "must take only the websocket"),
        ({"predict": predict, "is_healthy": predict}, "is_healthy(self, inputs"),
        ({"predict": predict, "completions": Refused.first}, "completions(self, request"),
    ],
)
def test_methods_that_exclude_each_other(methods: dict[str, Any], told: str) -> None:
    with pytest.raises(ModelDefinitionError, match=re.escape(told)):
        describe(model(**methods))


def test_what_is_allowed() -> None:
    assert describe(model(predict=predict, postprocess=postprocess, is_healthy=no_arguments)).names == ["predict"]
    assert describe(model(completions=predict, embeddings=predict_request)).names == ["completions", "embeddings"]
    assert describe(model(websocket=session)).names == ["websocket"]
    assert describe(model(predict=no_arguments)).endpoints["predict"].needs_inputs is False
    described = describe(model(preprocess=predict_request, predict=predict))
    assert described.endpoints["predict"].needs_inputs is False
    assert described.endpoints["predict"].takes_request


def test_a_model_without_truth_is_one_too() -> None:
    assert describe(model(predict=predict, __len__=lambda self: 0)).names == ["predict"]


def test_what_a_constructor_takes() -> None:
    class All:
        def __init__(self, **anything: Any) -> None: ...

    class Some:
        def __init__(self, secrets: Any, *, config: Any) -> None: ...

    class Nothing:
        pass

    assert takes(All, "config")
    assert [takes(Some, name) for name in ("secrets", "config", "environment")] == [True, True, False]
    assert not takes(Nothing, "config")
