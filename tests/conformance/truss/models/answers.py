"""Models that answer in the many ways that are allowed, and in some that are not."""

import datetime
import decimal
import uuid

import numpy
from fastapi import HTTPException, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel


class Inner(BaseModel):
    number: int


def events():
    yield "data: one\n\n"
    yield "data: two\n\n"


class Answers:
    async def predict(self, inputs):
        match inputs:
            case "value error":
                raise ValueError("a secret detail")
            case "http 500":
                raise HTTPException(500, "mine")
            case "http 422":
                raise HTTPException(422, {"a": 1}, headers={"x-mine": "yes"})
            case "no content":
                return Response(status_code=204)
            case "response 500":
                return Response("down", status_code=500)
            case "created":
                return Response("made", status_code=201, headers={"x-mine": "yes"})
            case "events":
                return StreamingResponse(events(), media_type="text/event-stream")
            case "numpy":
                array = numpy.arange(4, dtype="<f4").reshape(2, 2)
                return {"array": array, "integer": numpy.int64(3), "float": numpy.float32(0.5), "nested": [array]}
            case "rich":
                return {
                    "when": datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
                    "flag": numpy.bool_(True),
                    "model": Inner(number=1),
                    "nothing": float("nan"),
                    "id": uuid.UUID(int=1),
                    "price": decimal.Decimal("1.50"),
                }
        return inputs


class FailingSteps:
    """Fails in the step that it is told, or returns from predict what postprocess must not get."""

    def preprocess(self, inputs):
        if inputs == "preprocess":
            raise ValueError("a secret detail")
        return inputs

    def predict(self, inputs):
        if inputs == "predict":
            raise ValueError("a secret detail")
        if inputs == "stream":
            return (str(number) for number in range(3))
        if inputs == "response":
            return Response("whole")
        return inputs

    def postprocess(self, result):
        if result == "postprocess":
            raise ValueError("a secret detail")
        return result


class Traced:
    def predict(self, inputs):
        import first_helper

        return first_helper.help_out(inputs)


class Logging:
    def predict(self, inputs):
        import logging

        logging.getLogger("mine").info("a line about %s", inputs)
        return inputs


class Counting:
    def __init__(self):
        from prometheus_client import Counter

        self.counter = Counter("greetings", "How often somebody was greeted")

    def predict(self, inputs):
        self.counter.inc()
        return "hello"
