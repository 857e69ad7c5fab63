"""litellm, by its provider for servers with OpenAI's API."""

import sys

import litellm
from pydantic import BaseModel
from shown import run


class Person(BaseModel):
    name: str
    age: int


WEATHER = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
TOOLS = [{"type": "function", "function": WEATHER}]
QUESTION = [{"role": "user", "content": "How is the weather?"}]
SERVER = {"model": "openai/chat", "api_base": f"{sys.argv[1]}/v1", "api_key": "none"}


def tools() -> bool:
    message = litellm.completion(messages=QUESTION, tools=TOOLS, **SERVER).choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "21 degrees"}
    last = litellm.completion(messages=[*QUESTION, message, result], tools=TOOLS, **SERVER)
    return last.choices[0].message.content == "It is 21 degrees in Paris."


def structured() -> bool:
    asked = [{"role": "user", "content": "Extract: Ada is 36."}]
    answer = litellm.completion(messages=asked, response_format=Person, **SERVER)
    return Person.model_validate_json(answer.choices[0].message.content) == Person(name="Ada", age=36)


def stream() -> bool:
    chunks = litellm.completion(messages=QUESTION, stream=True, **SERVER)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello there."


def stream_tools() -> bool:
    chunks = list(litellm.completion(messages=QUESTION, tools=TOOLS, stream=True, **SERVER))
    whole = litellm.stream_chunk_builder(chunks)
    return whole.choices[0].message.tool_calls[0].function.name == "get_weather"


def responses() -> bool:
    tool = {"type": "function", "strict": False} | WEATHER
    first = litellm.responses(input="How is the weather?", tools=[tool], **SERVER)
    output = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "21 degrees"}
    last = litellm.responses(input=[output], previous_response_id=first.id, tools=[tool], **SERVER)
    return last.output[0].content[0].text == "It is 21 degrees in Paris."


if __name__ == "__main__":
    run(globals())
