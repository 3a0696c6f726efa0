"""What every agent program of this folder shares: the task, the one tool, and how the outcome is told."""

import json
import os
import subprocess
import sys

TASK = "Describe the project in this folder."
DESCRIPTION = "Run a shell command and return what it prints."
PARAMETERS = {
    "type": "object",
    "properties": {"command": {"type": "string", "description": "the command"}},
    "required": ["command"],
}
URL = os.environ.get("AGENT_URL", "")
MAX_STEPS = 8
"""No agent here may loop for ever, whatever it is told."""


def run_shell(command: str) -> str:
    """Run a shell command and return what it prints."""
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, timeout=20, check=False)
    return done.stdout + done.stderr


def tell(text: str, steps: int) -> None:
    """Print the outcome in the one form that the tests read."""
    json.dump({"text": text, "steps": steps}, sys.stdout)
