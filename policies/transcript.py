"""A request's message list as policies walk it: what is new, who speaks in a stretch, where a place is.

Plain functions on the model's values, shared by the policies that read histories. Nothing in here
judges.
"""

from collections.abc import Iterator, Sequence

from proxy.model import Item, Message, ModelRequest


def common(previous: ModelRequest | None, request: ModelRequest) -> int:
    """Leading messages that are the very objects of an earlier reading: read once, judged once."""
    if previous is None:
        return 0
    if previous.exchange and previous.exchange == request.base:
        return request.shared  # known, without touching thousands of messages
    count = 0
    for old, new in zip(previous.messages, request.messages, strict=False):
        if old is not new:
            break
        count += 1
    return count


def assistant(message: Message) -> bool:
    """Whether the model speaks in a message. Responses has one item a message, so items decide."""
    return message.role == "assistant"


def run_end(messages: Sequence[Message], start: int) -> int:
    """Where the stretch of assistant messages that begins here ends."""
    end = start
    while end < len(messages) and (assistant(messages[end]) or (end > start and not messages[end].items)):
        end += 1
    return end


def runs(messages: Sequence[Message], start: int = 0) -> Iterator[tuple[int, int]]:
    """All stretches of assistant messages from a place on."""
    at = start
    while at < len(messages):
        if not assistant(messages[at]):
            at += 1
            continue
        end = run_end(messages, at)
        yield at, end
        at = end


def placed(messages: Sequence[Message], start: int, end: int) -> Iterator[tuple[int, Item]]:
    """The items of some messages, each with its message's number."""
    for index in range(start, end):
        for item in messages[index].items:
            yield index, item


def answers_calls(message: Message) -> bool:
    """Whether a message brings results of tools that the client ran."""
    return any(item.kind == "tool_result" and not item.server for item in message.items)


def says_something(message: Message) -> bool:
    """Whether a user, or the harness in the user's name, speaks in a message."""
    return any(item.kind in ("user", "media") and item.role == "user" for item in message.items)


def path(*steps: str | int) -> str:
    """A normalised JSONPath (RFC 9535)."""
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f"['{_quoted(step)}']" for step in steps)


def place_of(request: ModelRequest, index: int, at: Sequence[str | int] = ()) -> str:
    """The path of a message, or of something in it."""
    return path(request.list_key, index, *at)


def _quoted(name: str) -> str:
    return name.replace("\\", "\\\\").replace("'", "\\'")
