"""LangChain's ChatOpenAI."""

import sys

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from shown import run


class Person(BaseModel):
    name: str
    age: int


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"21 degrees in {city}"


model = ChatOpenAI(model="chat", base_url=f"{sys.argv[1]}/v1", api_key="none")
QUESTION = HumanMessage("How is the weather?")


def tools() -> bool:
    bound = model.bind_tools([get_weather])
    called = bound.invoke([QUESTION])
    result = ToolMessage(get_weather.invoke(called.tool_calls[0]["args"]), tool_call_id=called.tool_calls[0]["id"])
    return bound.invoke([QUESTION, called, result]).content == "It is 21 degrees in Paris."


def structured() -> bool:
    return all(
        model.with_structured_output(Person, method=method).invoke("Extract: Ada is 36.") == Person(name="Ada", age=36)
        for method in ("json_schema", "function_calling")
    )


def stream() -> bool:
    return "".join(part.content for part in model.stream("How is it?")) == "Hello there."


def stream_tools() -> bool:
    whole = None
    for part in model.bind_tools([get_weather]).stream([QUESTION]):
        whole = part if whole is None else whole + part
    return whole.tool_calls[0]["args"] == {"city": "Paris"}


def responses() -> bool:
    by_responses = ChatOpenAI(model="chat", base_url=f"{sys.argv[1]}/v1", api_key="none", use_responses_api=True)
    bound = by_responses.bind_tools([get_weather])
    called = bound.invoke([QUESTION])
    result = ToolMessage(get_weather.invoke(called.tool_calls[0]["args"]), tool_call_id=called.tool_calls[0]["id"])
    return bound.invoke([QUESTION, called, result]).text == "It is 21 degrees in Paris."


if __name__ == "__main__":
    run(globals())
