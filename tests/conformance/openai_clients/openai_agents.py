"""OpenAI's Agents, by chat completions, and by responses over HTTP and a WebSocket."""

import asyncio
import sys

from agents import (
    Agent,
    Model,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    OpenAIResponsesWSModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel
from shown import run


class Person(BaseModel):
    name: str
    age: int


@function_tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"21 degrees in {city}"


set_tracing_disabled(True)
client = AsyncOpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none")
model = OpenAIChatCompletionsModel("chat", client)


def tools() -> bool:
    agent = Agent("guide", instructions="Be brief.", model=model, tools=[get_weather])
    return Runner.run_sync(agent, "How is the weather?").final_output == "It is 21 degrees in Paris."


def structured() -> bool:
    agent = Agent("reader", model=model, output_type=Person)
    return Runner.run_sync(agent, "Extract: Ada is 36.").final_output == Person(name="Ada", age=36)


async def _streamed() -> bool:
    result = Runner.run_streamed(Agent("guide", model=model), "How is it?")
    async for _ in result.stream_events():
        pass
    return result.final_output == "Hello there."


def stream() -> bool:
    return asyncio.run(_streamed())


async def _streamed_tools() -> bool:
    result = Runner.run_streamed(Agent("guide", model=model, tools=[get_weather]), "How is the weather?")
    async for _ in result.stream_events():
        pass
    return result.final_output == "It is 21 degrees in Paris."


def stream_tools() -> bool:
    return asyncio.run(_streamed_tools())


def handoff() -> bool:
    expert = Agent("expert", model=model)
    result = Runner.run_sync(Agent("clerk", model=model, handoffs=[expert]), "I need help.")
    return result.last_agent is expert and result.final_output == "The expert is here."


async def _over(kind: type[Model]) -> bool:
    agent = Agent("guide", model=kind("chat", openai_client=client), tools=[get_weather])
    answers = [
        (await Runner.run(agent, "How is the weather?", auto_previous_response_id=chained)).final_output
        for chained in (False, True)
    ]
    return answers == ["It is 21 degrees in Paris."] * 2


def responses() -> bool:
    return all(asyncio.run(_over(kind)) for kind in (OpenAIResponsesModel, OpenAIResponsesWSModel))


if __name__ == "__main__":
    run(globals())
