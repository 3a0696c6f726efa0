"""Something to look at: the demo's scripted model, and its agents at work through Looptap again and again."""

import asyncio
import os
import sys

from aiohttp import ClientError, web

from proxy.demo.agents import AGENTS, play
from proxy.demo.model import Stage


async def main() -> None:
    """Serve the model on port 9000; let every agent work, rest, and begin again (ROUNDS=0: for ever)."""
    looptap, rounds = os.environ.get("LOOPTAP_URL", "http://looptap:4040"), int(os.environ.get("ROUNDS", "0"))
    runner = web.AppRunner(Stage([agent.script for agent in AGENTS]).application(), access_log=None)
    await runner.setup()
    host, port = os.environ.get("MODEL_HOST", "0.0.0.0"), int(os.environ.get("MODEL_PORT", "9000"))
    await web.TCPSite(runner, host, port).start()
    done = 0
    while not rounds or done < rounds:
        try:
            for agent in AGENTS:
                await play(agent, f"{looptap}/@agent={agent.name}")
        except ClientError as error:
            sys.stderr.write(f"agents: Looptap does not answer yet ({type(error).__name__})\n")
        else:
            done += 1
        await asyncio.sleep(float(os.environ.get("REST_S", "15")))
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
