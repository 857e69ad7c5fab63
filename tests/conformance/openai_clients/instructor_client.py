"""instructor, in its modes for tools and for JSON."""

import sys

import instructor
from openai import OpenAI
from pydantic import BaseModel
from shown import run


class Person(BaseModel):
    name: str
    age: int


ASKED = [{"role": "user", "content": "Extract: Ada is 36."}]
ADA = {"name": "Ada", "age": 36}


def _client(mode: instructor.Mode) -> instructor.Instructor:
    return instructor.from_openai(OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none"), mode=mode)


def _found(mode: instructor.Mode) -> dict[str, object]:
    return _client(mode).chat.completions.create(model="chat", messages=ASKED, response_model=Person).model_dump()


def tools() -> bool:
    return _found(instructor.Mode.TOOLS) == ADA


def structured() -> bool:
    return _found(instructor.Mode.JSON) == _found(instructor.Mode.JSON_SCHEMA) == ADA


def stream_tools() -> bool:
    completions = _client(instructor.Mode.TOOLS).chat.completions
    *_, last = completions.create_partial(model="chat", messages=ASKED, response_model=Person)
    return last.model_dump() == ADA


if __name__ == "__main__":
    run(globals())
