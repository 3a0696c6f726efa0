"""A tool loop on the Google GenAI SDK, streamed, thought signatures sent back."""

from typing import Any

from google.genai import Client, types
from shell import DESCRIPTION, MAX_STEPS, PARAMETERS, TASK, URL, run_shell, tell

client = Client(api_key="test-key", http_options=types.HttpOptions(base_url=URL))
declaration = types.FunctionDeclaration(
    name="run_shell", description=DESCRIPTION, parameters_json_schema=PARAMETERS
)
config = types.GenerateContentConfig(
    system_instruction="You are a careful engineer.",
    tools=[types.Tool(function_declarations=[declaration])],
    automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    thinking_config=types.ThinkingConfig(include_thoughts=True),
)
contents: list[Any] = [types.Content(role="user", parts=[types.Part(text=TASK)])]

for step in range(1, MAX_STEPS):
    parts: list[Any] = []
    for chunk in client.models.generate_content_stream(
        model="gemini-2.5-pro", contents=contents, config=config
    ):
        parts += chunk.candidates[0].content.parts
    contents.append(types.Content(role="model", parts=parts))
    calls = [part.function_call for part in parts if part.function_call]
    if not calls:
        tell("".join(part.text for part in parts if part.text and not part.thought), step)
        break
    answers = [
        types.Part.from_function_response(name=call.name, response={"output": run_shell(**call.args)})
        for call in calls
    ]
    contents.append(types.Content(role="user", parts=answers))
