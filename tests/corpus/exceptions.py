"""Recordings whose labels we contradict, each with the items that decide. Empty is the aim.

The key is the recording as the scoring program names it, the value the argument.
"""

_EMPTY_CALL = (
    'the gateway fills in every form of a reply, here "function_call": {"arguments": "", "name": ""} beside '
    "the real tool_calls or none: a call without a name is no call, and nobody ever answers it"
)
_COST_SAYS = (
    "reasoning is more than the completion, so it stands beside it; the reported cost proves the sum: "
    "9 * 2 + 302 * 12 = 3642, 28 * 2 + 78 * 12 = 992, 40 * 2 + 57 * 12 = 764 millionths of a dollar"
)
_ENUM_NUMBER = (
    "the client asked for enums as integers: finishReason is 1, which is STOP by the API's own definition; "
    "the label repeats the number, we say the name that every other reply of this API bears"
)

CORPUS: dict[str, str] = {
    "gemini--opentelemetry-python-contrib--test-function-call-choice-no-content-": _ENUM_NUMBER,
    "other--pydantic-ai--test-snowflake-": _EMPTY_CALL,
    "other--fantasy--TestVercelCommon-gemini-3-pro-preview-": _COST_SAYS,
    "other--fantasy--TestVercelThinking-gemini-3-pro-preview-": _COST_SAYS,
}

CLIENT_TRAFFIC: dict[str, str] = {}

LOOPS: dict[str, str] = {
    "claude-code-loop": "played so",
    "codex-loop": "played so",
    "gemini-cli-loop": "played so",
    "codex-compaction-loop": "played so: each compaction begins the same work again, until it is killed",
    "openai-chat--crewai--agents-test-agent-without-max-rpm-respects-crew-rpm-": (
        "its task forbids a final answer, so it calls get_final_answer({}) and gets 42, again and again"
    ),
}
"""Recordings in which an agent turns in circles; in every other one ``repeats`` must stay silent."""
