"""A tool loop on the Anthropic SDK: streamed, with thinking, every reply sent back as it came."""

from typing import Any

from anthropic import Anthropic
from shell import DESCRIPTION, MAX_STEPS, PARAMETERS, TASK, URL, run_shell, tell

client = Anthropic(base_url=URL, api_key="test-key", max_retries=0)
tools: Any = [{"name": "run_shell", "description": DESCRIPTION, "input_schema": PARAMETERS}]
messages: list[Any] = [{"role": "user", "content": TASK}]

for step in range(1, MAX_STEPS):
    with client.messages.stream(
        model="claude-sonnet-4-5",
        max_tokens=4096,
        thinking={"type": "enabled", "budget_tokens": 1024},
        system="You are a careful engineer.",
        tools=tools,
        messages=messages,
    ) as stream:
        reply = stream.get_final_message()
    messages.append({"role": "assistant", "content": reply.content})
    calls = [block for block in reply.content if block.type == "tool_use"]
    if not calls:
        tell("".join(block.text for block in reply.content if block.type == "text"), step)
        break
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": run_shell(**call.input)} for call in calls
    ]
    messages.append({"role": "user", "content": results})
