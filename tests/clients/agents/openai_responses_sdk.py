"""A tool loop on the OpenAI SDK, Responses, streamed, nothing stored: reasoning goes back encrypted."""

import json
from typing import Any

from openai import OpenAI
from shell import DESCRIPTION, MAX_STEPS, PARAMETERS, TASK, URL, run_shell, tell

client = OpenAI(base_url=URL + "/v1", api_key="test-key", max_retries=0)
tools: Any = [{"type": "function", "name": "run_shell", "description": DESCRIPTION, "parameters": PARAMETERS}]
history: list[Any] = [{"role": "user", "content": TASK}]

for step in range(1, MAX_STEPS):
    with client.responses.stream(
        model="gpt-5.1",
        instructions="You are a careful engineer.",
        input=history,
        tools=tools,
        store=False,
        reasoning={"effort": "low", "summary": "auto"},
        include=["reasoning.encrypted_content"],
    ) as stream:
        response = stream.get_final_response()
    history += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in response.output]
    calls = [item for item in response.output if item.type == "function_call"]
    if not calls:
        tell(response.output_text, step)
        break
    for call in calls:
        output = run_shell(**json.loads(call.arguments))
        history.append({"type": "function_call_output", "call_id": call.call_id, "output": output})
