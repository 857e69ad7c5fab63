"""LlamaIndex, by its class for servers with OpenAI's API, and by responses."""

import asyncio
import sys

from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai import OpenAIResponses
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel
from shown import run


class Person(BaseModel):
    name: str
    age: int


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"21 degrees in {city}"


SERVER = {"model": "chat", "api_base": f"{sys.argv[1]}/v1", "api_key": "none", "context_window": 16384}
model = OpenAILike(is_chat_model=True, is_function_calling_model=True, **SERVER)


async def _answer(model: OpenAILike | OpenAIResponses, streaming: bool) -> str:
    agent = FunctionAgent(llm=model, tools=[get_weather], system_prompt="Be brief.", streaming=streaming)
    return str(await agent.run("How is the weather?"))


def tools() -> bool:
    return asyncio.run(_answer(model, streaming=False)) == "It is 21 degrees in Paris."


def structured() -> bool:
    by_schema = OpenAILike(is_chat_model=True, should_use_structured_outputs=True, **SERVER)
    return all(
        each.as_structured_llm(Person).complete("Extract: Ada is 36.").raw == Person(name="Ada", age=36)
        for each in (model, by_schema)
    )


def stream() -> bool:
    return "".join(part.delta for part in model.stream_chat([ChatMessage("How is it?")])) == "Hello there."


def stream_tools() -> bool:
    return asyncio.run(_answer(model, streaming=True)) == "It is 21 degrees in Paris."


async def _handed_over() -> bool:
    clerk, expert = (FunctionAgent(name=name, description=name, llm=model) for name in ("clerk", "expert"))
    result = await AgentWorkflow(agents=[clerk, expert], root_agent="clerk").run("I need help.")
    return result.current_agent_name == "expert" and str(result) == "The expert is here."


def handoff() -> bool:
    return asyncio.run(_handed_over())


def responses() -> bool:
    by_responses = OpenAIResponses(**SERVER)
    return all(
        asyncio.run(_answer(by_responses, streaming)) == "It is 21 degrees in Paris." for streaming in (False, True)
    )


if __name__ == "__main__":
    run(globals())
