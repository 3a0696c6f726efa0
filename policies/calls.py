"""What the history in a request says of the newest steps' calls. Shared by policies that look at tools.

Arguments are content and do not belong into a policy's memory; where the client sends its history
along, they can be read there again.
"""

from proxy.model import Item, ModelRequest

_LOOK_BACK = 200
"""Messages of the history that are searched."""


def rounds(request: ModelRequest | None, most: int) -> list[list[Item]]:
    """The calls of the newest steps that the history shows, newest first: one list per step."""
    found: list[list[Item]] = []
    current: list[Item] = []
    for message in reversed(request.messages[-_LOOK_BACK:] if request is not None else ()):
        calls = [item for item in message.items if item.kind == "tool_call" and not item.server]
        if calls:
            current[:0] = calls
        elif current and any(item.kind in ("tool_result", "user") for item in message.items):
            found.append(current)
            current = []
            if len(found) == most:
                return found
    if current:
        found.append(current)
    return found
