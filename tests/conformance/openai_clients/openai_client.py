"""The openai package."""

import sys

from openai import OpenAI
from pydantic import BaseModel
from shown import run


class Person(BaseModel):
    name: str
    age: int


WEATHER = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
TOOLS = [{"type": "function", "function": WEATHER}]
QUESTION = [{"role": "user", "content": "How is the weather?"}]
client = OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none")


def tools() -> bool:
    message = client.chat.completions.create(model="chat", messages=QUESTION, tools=TOOLS).choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "21 degrees"}
    last = client.chat.completions.create(model="chat", messages=[*QUESTION, message, result], tools=TOOLS)
    return last.choices[0].message.content == "It is 21 degrees in Paris."


def structured() -> bool:
    asked = [{"role": "user", "content": "Extract: Ada is 36."}]
    answer = client.chat.completions.parse(model="chat", messages=asked, response_format=Person)
    return answer.choices[0].message.parsed == Person(name="Ada", age=36)


def stream() -> bool:
    chunks = client.chat.completions.create(model="chat", messages=QUESTION, stream=True)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello there."


def stream_tools() -> bool:
    with client.chat.completions.stream(model="chat", messages=QUESTION, tools=TOOLS) as events:
        return events.get_final_completion().choices[0].message.tool_calls[0].function.name == "get_weather"


def responses() -> bool:
    tool = {"type": "function", "strict": False} | WEATHER
    asked = {"model": "chat", "tools": [tool]}
    first = client.responses.create(input="How is the weather?", **asked)
    output = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "21 degrees"}
    last = client.responses.create(input=[output], previous_response_id=first.id, **asked)
    with client.responses.connect() as connection:
        connection.response.create(input=[output], previous_response_id=first.id, **asked)
        over_socket = next(event for event in connection if event.type == "response.completed")
    return last.output_text == over_socket.response.output_text == "It is 21 degrees in Paris."


if __name__ == "__main__":
    run(globals())
