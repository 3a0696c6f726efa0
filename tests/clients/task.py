"""The task that every client is given: a small project, a script of four steps, and what must come of it."""

from pathlib import Path

from tests.clients.scripted import Reply, Wish

FINAL = "All done: the project has one module and says hello. ✓"
README = "# Demo\n\nA project that greets: naïve café ☃.\n"
MODULE = 'print("hello")\n'

SHELL = "Bash|bash|shell|shell_command|exec_command|local_shell|run_shell_command|execute_command|run_shell"


def _run(command: str, why: str) -> Wish:
    pool = {
        "command": command,
        "cmd": command,
        "description": why,
        "is_background": False,
        "workdir": ".",
        "dir_path": ".",
    }
    return Wish(SHELL, pool)


SCRIPT = (
    Reply(
        "Let me look at the project.", "I will look at the project first.", (_run("ls", "List the files"),)
    ),
    Reply(
        None,
        "Two commands, both at once — naïve but fine.",
        (_run("cat README.md", "Read the readme"), _run("wc -l hello.py", "Count the lines")),
    ),
    Reply(
        "Odd characters: é ☃ 😀 “quotes” <tag> &\u2028 / end.",
        "One more.",
        (_run("printf 'caf\\303\\251 <b> \"q\"\\n'; seq 3", "Print odd characters"),),
    ),
    Reply(FINAL, "Finished."),
)
STEPS = len(SCRIPT)
CALLS_PER_STEP = [len(reply.wishes) for reply in SCRIPT]
PRINTED = ("hello.py", "naïve café ☃", "1 hello.py", 'café <b> "q"')
"""What the executed tools print; each must have reached the model."""


def lay_out(folder: Path) -> Path:
    """Put the project into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_text(README, encoding="utf-8")
    (folder / "hello.py").write_text(MODULE, encoding="utf-8")
    return folder
