"""pydantic-ai, by chat completions and by responses."""

import asyncio
import sys

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from shown import run


class Person(BaseModel):
    name: str
    age: int


model_provider = OpenAIProvider(base_url=f"{sys.argv[1]}/v1", api_key="none")
model = OpenAIChatModel("chat", provider=model_provider)
agent = Agent(model, system_prompt="Be brief.")
ADA = Person(name="Ada", age=36)


@agent.tool_plain
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"21 degrees in {city}"


def tools() -> bool:
    return agent.run_sync("How is the weather?").output == "It is 21 degrees in Paris."


def structured() -> bool:
    by_tool = Agent(model, output_type=Person).run_sync("Extract: Ada is 36.").output
    return by_tool == Agent(model, output_type=NativeOutput(Person)).run_sync("Extract: Ada is 36.").output == ADA


async def _streamed(question: str) -> str:
    async with agent.run_stream(question) as result:
        return "".join([text async for text in result.stream_text(delta=True)])


def stream() -> bool:
    return asyncio.run(_streamed("How is it?")) == "Hello there."


def stream_tools() -> bool:
    return asyncio.run(_streamed("How is the weather?")) == "It is 21 degrees in Paris."


def responses() -> bool:
    agent = Agent(OpenAIResponsesModel("chat", provider=model_provider), tools=[get_weather])
    return agent.run_sync("How is the weather?").output == "It is 21 degrees in Paris."


if __name__ == "__main__":
    run(globals())
