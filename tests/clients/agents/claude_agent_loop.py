"""The Claude Agent SDK, which runs the Claude Code program that its package carries."""

import asyncio

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, query
from shell import MAX_STEPS, TASK, tell


async def main() -> None:
    options = ClaudeAgentOptions(
        permission_mode="bypassPermissions", max_turns=MAX_STEPS, model="claude-sonnet-4-5"
    )
    async for message in query(prompt=TASK, options=options):
        if isinstance(message, ResultMessage):
            tell(message.result or "", message.num_turns)


asyncio.run(main())
