"""A tool loop on the OpenAI SDK, Chat Completions, streamed."""

import json
from typing import Any

from openai import OpenAI
from shell import DESCRIPTION, MAX_STEPS, PARAMETERS, TASK, URL, run_shell, tell

client = OpenAI(base_url=URL + "/v1", api_key="test-key", max_retries=0)
function = {"name": "run_shell", "description": DESCRIPTION, "parameters": PARAMETERS}
tools: Any = [{"type": "function", "function": function}]
messages: list[Any] = [
    {"role": "system", "content": "You are a careful engineer."},
    {"role": "user", "content": TASK},
]

for step in range(1, MAX_STEPS):
    with client.chat.completions.stream(
        model="gpt-5.1", messages=messages, tools=tools, stream_options={"include_usage": True}
    ) as stream:
        message = stream.get_final_completion().choices[0].message
    messages.append(message)
    if not message.tool_calls:
        tell(message.content or "", step)
        break
    for call in message.tool_calls:
        output = run_shell(**json.loads(call.function.arguments))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": output})
