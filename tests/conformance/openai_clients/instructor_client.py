"""instructor, in its modes for tools and for JSON."""

import sys

import instructor
from openai import OpenAI
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


ASKED = [{"role": "user", "content": "Extract: Ada is 36."}]
MODES = (instructor.Mode.TOOLS, instructor.Mode.JSON, instructor.Mode.JSON_SCHEMA)


def _client(mode: instructor.Mode) -> instructor.Instructor:
    return instructor.from_openai(OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none"), mode=mode)


def tools() -> bool:
    found = _client(MODES[0]).chat.completions.create(model="chat", messages=ASKED, response_model=Person)
    return found == Person(name="Ada", age=36)


def structured() -> bool:
    return all(
        _client(mode).chat.completions.create(model="chat", messages=ASKED, response_model=Person)
        == Person(name="Ada", age=36)
        for mode in MODES
    )


def stream_tools() -> bool:
    parts = list(_client(MODES[0]).chat.completions.create_partial(model="chat", messages=ASKED, response_model=Person))
    return parts[-1].name == "Ada"


if __name__ == "__main__":
    sys.exit(not globals()[sys.argv[2]]())
