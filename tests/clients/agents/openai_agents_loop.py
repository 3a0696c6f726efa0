"""The OpenAI Agents SDK runs the loop; Responses, streamed."""

import asyncio

from agents import Agent, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI
from shell import MAX_STEPS, TASK, URL, run_shell, tell

set_tracing_disabled(True)  # its traces would go to the vendor, past any base URL


async def main() -> None:
    client = AsyncOpenAI(base_url=URL + "/v1", api_key="test-key", max_retries=0)
    agent = Agent(
        name="Engineer",
        instructions="You are a careful engineer.",
        tools=[function_tool(run_shell)],
        model=OpenAIResponsesModel("gpt-5.1", client),
    )
    run = Runner.run_streamed(agent, TASK, max_turns=MAX_STEPS)
    async for _ in run.stream_events():
        pass
    tell(str(run.final_output), len(run.raw_responses))


asyncio.run(main())
