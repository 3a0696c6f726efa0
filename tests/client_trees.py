"""What each recorded client really did, written down from its own recording.

Notation: one list a session, one text a thread: ``kind<parent: steps``. A step is a line number, its
attempts joined by ``+``; ``|`` stands between turns; ``…`` follows a turn that is still open. The
parent is the place of the thread in its session. All clients had the same task, which takes four
model calls (``ls``; two ``cat`` at once; one command; the answer), so the plain ones have one turn of
four steps, each step's request carrying the results of the calls before it. Comments argue what is
not plain.
"""

PLAIN = [["main: 0 1 2 3"]]

TREES: dict[str, list[list[str]]] = {
    # Every request carries the last one's messages, the reply, and results: no user text after the first.
    "anthropic-sdk.jsonl": PLAIN,
    "anthropic-sdk-stream.jsonl": PLAIN,
    "cline-chat.jsonl": PLAIN,
    "google-genai.jsonl": PLAIN,
    "google-genai-stream.jsonl": PLAIN,
    "openai-agents-chat.jsonl": PLAIN,
    "openai-agents-chat-stream.jsonl": PLAIN,
    "openai-agents-responses.jsonl": PLAIN,
    "openai-agents-responses-stream.jsonl": PLAIN,
    "openai-sdk-chat.jsonl": PLAIN,
    "openai-sdk-chat-stream.jsonl": PLAIN,
    "openai-sdk-responses.jsonl": PLAIN,
    "openai-sdk-responses-stream.jsonl": PLAIN,
    "pi-anthropic.jsonl": PLAIN,
    "pi-openai-chat.jsonl": PLAIN,
    "pydantic-ai-anthropic.jsonl": PLAIN,
    "pydantic-ai-google.jsonl": PLAIN,
    "pydantic-ai-openai-chat.jsonl": PLAIN,
    "pydantic-ai-openai-responses.jsonl": PLAIN,
    "vercel-ai-anthropic.jsonl": PLAIN,
    "vercel-ai-anthropic-stream.jsonl": PLAIN,
    "vercel-ai-google.jsonl": PLAIN,
    "vercel-ai-google-stream.jsonl": PLAIN,
    "vercel-ai-openai-chat-stream.jsonl": PLAIN,
    "vercel-ai-openai-responses-stream.jsonl": PLAIN,
    # Sends only the new outputs; each names the response before it.
    "openai-sdk-responses-previous-id.jsonl": PLAIN,
    # The last reply calls the tool that submits, and nobody answers it.
    "mini-swe-agent-anthropic.jsonl": [["main: 0 1 2 3 …"]],
    "mini-swe-agent-openai.jsonl": [["main: 0 1 2 3 …"]],
    # Moves its "files" messages to the end and cuts its reminder at every call, so no prefix holds: its own
    # replies tell the thread. The report of a failed edit (1) and the output of a command (3) come as user
    # text: turns. 2 is the commit message: another model, quoting lines of the reply before it.
    "aider.jsonl": [["main: 0 | 1 | 3", "side<0: 2"]],
    # 2 is answered 413; 3 drops the last step and puts the summary prompt behind the older results: a
    # side call that branches off after the reply of 0. Its reply asks for tools that nobody runs.
    "claude-code-error-413.jsonl": [["main: 0 1 2 …", "side<0: 3 …"]],
    # 3 to 7 ask 2 again after a 400, each with fewer features; from 5 on a system message follows the
    # results.
    "claude-code-error-400.jsonl": [["main: 0 1 2+3+4+5+6+7 …"]],
    # The stream of 2 holds an error event; 3 asks the same at once, unstreamed.
    "claude-code-stream-error.jsonl": [["main: 0 1 2+3 4"]],
    # 0 is a probe. 1 names the session while 2 begins it; 6 is the user's second prompt.
    "claude-code-interactive-title.jsonl": [["side: 1", "main: 2 3 4 5 | 6"]],
    # Three prompts; 5 to 30 count tokens; 31 and 32 ask for the summary, the second with another prompt;
    # 33 begins a new list under the same session id: the same thread goes on with its third turn.
    "claude-code-interactive.jsonl": [["main: 0 1 2 3 | 4 | 33 34 35", "side<0: 31", "side<0: 32"]],
    # Each sub-agent runs while its parent's Agent call is pending. Their first messages are equal: only the
    # agent ids tell them apart.
    "claude-code-subagents.jsonl": [
        ["main: 0 13 14 15", "subagent<0: 1 10 11 12", "subagent<1: 2 7 8 9", "subagent<2: 3 4 5 6"]
    ],
    # Every second call is a compaction (no tools, request_kind); it brings the results that the call before
    # it asked for. The list that follows is the summary; the client's turn id stays.
    "codex-compaction-loop.jsonl": [
        ["main: 0 2 4 6 …", "side<0: 1", "side<0: 3", "side<0: 5", "side<0: 7"],
    ],
    # 402 is asked again, as often as the client likes.
    "codex-error-402.jsonl": [["main: 0 1 2+3+4 …"]],
    # Parent and child call side by side; the child outlives its parent's turn.
    "codex-subagent.jsonl": [["main: 0 2 4 6", "subagent<0: 1 3 5 7"]],
    # Seven attempts at a WebSocket, then plain POSTs; the recording is cut after the second step.
    "codex-websocket-404.jsonl": [["main: 7 8 …"]],
    # 0 routes the request to a model: another model, a form for the reply, the same words as 1.
    "gemini-cli.jsonl": [["side: 0", "main: 1 2 3 4"]],
    # Before 6 the client's own loop check threw the reply of 5 away and wrote to the model as the user.
    "gemini-cli-loop.jsonl": [["side: 0", "main: 1 2 3 4 5 | 6 …"]],
}
