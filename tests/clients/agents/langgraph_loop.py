"""LangGraph's prebuilt agent on ChatAnthropic, streamed."""

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from shell import MAX_STEPS, TASK, URL, run_shell, tell

model = ChatAnthropic(
    model="claude-sonnet-4-5",
    base_url=URL,
    api_key="test-key",
    streaming=True,
    max_retries=0,
    max_tokens=4096,
)
agent = create_agent(model, tools=[tool(run_shell)], system_prompt="You are a careful engineer.")
state = agent.invoke({"messages": [("user", TASK)]}, {"recursion_limit": 3 * MAX_STEPS})
replies = [message for message in state["messages"] if message.type == "ai"]
tell(str(replies[-1].text), len(replies))
