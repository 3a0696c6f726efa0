"""What of a tool result is the same again: volatile parts masked, errors told apart, names made.

Real doom loops differ in clock times, durations, process numbers, chunk ids and temp paths; a
result that differs in nothing else brought nothing new. Everything else counts as progress.

Pure and bounded: of a long result the head and the tail are masked, the middle counts as it is.
"""

import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any
from zlib import crc32

_EDGE = 2_000
"""Characters of a long text that are masked at either end."""

_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
_LABELS = (
    r"p?pid|pgid|process(?:\s+group)?\s+(?:id|pgid)|chunk\s*id|session\s+id|shell\s*id|port"
    r"|(?:request|trace|span|run|job|task|call)[\s_-]*id"
)
_PREFIXES = frozenset({
    "call", "toolu", "msg", "req", "resp", "run", "task", "sess", "session", "exec", "job", "chatcmpl",
    "thread", "tmp", "temp", "build", "evt", "event", "pod", "trace",
})  # fmt: skip
_VALUE = r"(?:[0-9][\w-]*|[a-f][0-9a-f]{5,}|[\w-]*\d[\w-]*)"


@dataclass(frozen=True, slots=True)
class _Rule:
    """What to replace by what.

    Searching is what masking costs, and most rules find nothing. So a pattern begins with what is rare
    (``[0-9](?<=\\b\\d)`` means ``\\b\\d``, and looks closer at digits alone), and what no match lacks is
    looked for before. A number begins with one of ``0-9``: those are found faster than any digit.
    """

    pattern: re.Pattern[str]
    mark: str
    needs: tuple[str, ...] = ()
    """A text without any of these (lower case) is passed by at once."""
    trace: re.Pattern[str] | None = None
    """Likewise a text in which this finds nothing."""
    when: Callable[[str], object] | None = None
    """What else must hold of the words that are found: cheaper than asking at each letter."""

    lettered: bool = False
    """It finds nothing but what has a digit beside a letter."""

    def may(self, text: str, small: str, *, lettered: bool) -> bool:
        """Whether it is worth searching a text, which is ``small`` in lower case."""
        if self.lettered and not lettered:
            return False
        if self.needs and not any(need in small for need in self.needs):
            return False
        return self.trace is None or self.trace.search(text) is not None

    def put(self, text: str) -> str:
        """The text with the mark in place of all that is found."""
        if self.when is None:
            return self.pattern.sub(self.mark, text)
        return self.pattern.sub(lambda m: self.mark if self.when(m.group()) else m.group(), text)  # type: ignore[misc]


def _rule(
    pattern: str,
    mark: str,
    *needs: str,
    trace: str = "",
    flags: int = re.IGNORECASE,
    lettered: bool = False,
) -> _Rule:
    seen = re.compile(trace) if trace else None
    return _Rule(re.compile(pattern, flags), mark, needs, seen, lettered=lettered)


_DIGIT = re.compile(r"[a-f]*\d").match
_RANDOM = re.compile(r"(?=[a-z0-9]*[A-Z])(?=[A-Z0-9]*[a-z])(?:[A-Za-z]*\d+[A-Za-z]){3}")
RULES = (
    _rule(
        r"\d\d\d\d-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:\s?(?:Z|UTC|[+-]\d\d:?\d\d))?", "<time>",
        trace=r"-\d\d-\d\d[Tt ]\d",
    ),
    _rule(r"[0-9](?<=\b\d)\d?:\d\d:\d\d(?:[.,]\d+)?(?:\s?[ap]m)?\b", "<time>", trace=r":\d\d:\d"),
    _rule(
        rf"\b(?:{_MONTH}\s+\d{{1,2}}|\d{{1,2}}\s+{_MONTH})(?:,?\s+\d{{4}})?\b", "<day>",
        trace=r"[JFMASOND](?:an|eb|ar|pr|ay|un|ul|ug|ep|ct|ov|ec)", flags=0,
    ),
    _rule(r"1(?<=\b1)[5-9]\d{8}(?:\d{3}|\d{6}|\d{9})?(?:\.\d+)?\b", "<time>"),
    _rule(r"[0-9](?<=\b\d)\d*+m\d+(?:\.\d+)?s\b", "<took>", trace=r"[mM]\d", lettered=True),
    _rule(
        r"[0-9](?<=\b\d)\d*+(?:\.\d+)?+\s?+(?:[mµun]?s|milliseconds?|secs?|seconds?)\b", "<took>",
        trace=r"[0-9]\s?(?=[mnusMNUSµμſ])(?i:[mµun]?s\b|millis|sec)",
    ),
    _rule(
        r"\b((?:\w{0,40}_(?:ms|millis|secs?|seconds)|\w{0,40}(?:elapsed|duration|latency|took)\w{0,20})\W{1,3})\d+(?:\.\d+)?\b",
        r"\1<took>", "_ms", "_millis", "_sec", "elapsed", "duration", "latency", "took",
    ),
    _rule(
        r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "<id>",
        trace=r"-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-",
    ),
    _rule(
        rf"\b(?=[pcsrtj])((?:{_LABELS})\W{{0,3}}){_VALUE}", r"\1<id>", "id", "port",
        trace=r"[dDtT](?<=[iI][dD]|[rR][tT])\W{0,3}(?:[a-fA-F][0-9a-fA-F]{5}|[\w-]{0,100}?\d)",
    ),
    _rule(r"0(?<=\b0)x[0-9a-f]{4,16}\b", "<hex>", "0x"),
    _Rule(
        re.compile(r"\b[0-9a-f]{7,128}\b"), "<hex>", trace=re.compile(r"[0-9](?:[a-f]|(?<=[a-f][0-9]))"),
        when=lambda word: _DIGIT(word) and not word.isdigit(), lettered=True,
    ),
    _Rule(
        re.compile(r"\b[a-z]{3,8}[_-](?=[a-z0-9]*\d)[a-z0-9]{6,64}\b", re.IGNORECASE), "<id>", ("_", "-"),
        trace=re.compile(r"[_-](?<=[a-z]{3}[_-])(?=[a-z]*\d)[a-z0-9]{6}", re.IGNORECASE),
        when=lambda words: re.split("[_-]", words.lower(), maxsplit=1)[0] in _PREFIXES,
    ),
    _Rule(
        re.compile(r"\b[A-Za-z0-9]{16,64}\b"), "<id>",
        trace=re.compile(r"[0-9][A-Za-z]+[0-9]+[A-Za-z]+[0-9]+[A-Za-z]"),
        when=lambda word: _RANDOM.match(word) is not None, lettered=True,
    ),
    _rule(
        r"(?:/private)?(?:/tmp|/var/tmp|/var/folders|/dev/shm)/[^\s'\":;,)\]]*", "<temp>",
        "/tmp/", "/folders/", "/shm/",
    ),
    _rule(r"[A-Z]:\\[^\s'\"]*\\Te?mp\\[^\s'\":;,)\]]*", "<temp>", "\\tmp\\", "\\temp\\"),
    _rule(r"\b(localhost|127\.0\.0\.1|0\.0\.0\.0):\d{2,5}\b", r"\1:<port>", "localhost:", "0.1:", "0.0:"),
)  # fmt: skip
"""What a run of the same thing changes by itself. First match first, each over what is left."""

LETTERED = re.compile(r"[0-9](?:[A-Za-z]|(?<=[A-Za-z][0-9]))").search
_HAS_DIGIT = re.compile(r"[0-9]").search
_MAY_DIFFER = re.compile(r"/tmp/|/shm/|\\Te?mp\\|/var/folders/|\bid\b", re.IGNORECASE).search
_MAY_DIFFER_WORDS = ("/tmp/", "/shm/", "\\tmp\\", "\\temp\\", "/var/folders/", "id")
"""What is volatile has a digit or one of these in its line."""
_MEANT = "#="
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_SPACE = re.compile(r"\s+")

_FAILURE = re.compile(
    r"[\s#*>\[(✗❌-]{0,4}(?:<[a-z_]*error>"
    r"|[\w.]*(?:error|exception)\b|traceback \(most recent|failed\b|failure\b|fatal:|panic:"
    r"|(?:command|process) (?:failed|exited with (?:exit )?(?:code|status):? ?[1-9])"
    r"|exit (?:code|status):? ?[1-9])"
    r'|\s*\{\s*"(?:error|isError)"\s*:(?!\s*(?:null|false|""))',
    re.IGNORECASE,
)
_EXITED = re.compile(
    r"(?:exited with (?:exit )?(?:code|status)|^exit[ _](?:code|status)|\"?exit_?code\"?)\W{0,3}(\d{1,3})",
    re.MULTILINE,
)
_EMPTY_WORDS = re.compile(
    r"\b(?:an?|the|has|have|was|is|of|with|error|errors|exception|failed|failure|unknown|internal|unexpected|occurred"
    r"|happened|something|went|wrong|tool|call|execution|executing|command|request|process|exit|exited|code|status"
    r"|null|none|undefined|object|false|true|please|try|again)\b",
    re.IGNORECASE,
)
_FOUND_NOTHING = re.compile(
    r"\W*(?:error:? )?no (?:matches|matching \w+|results?|files|hits|entries)\b[^\n]{0,60}\s*", re.IGNORECASE
)
"""A search that failed for having found nothing says nothing of the tool."""
_FAULTS = re.compile(
    r" (?:previous |more |new |type |lint )?(?:errors|problems|warnings|failures|violations)\b", re.IGNORECASE
)
_ALONE = re.compile(r"(?:^|[\n=,;(]) ?$")
_STATUS = re.compile(r"(?:status|https?|code)\W{0,3}(?:code\W{0,3})?$", re.IGNORECASE)
_SPELLED = str.maketrans("0123456789", "abcdefghij")
_BY_USER = re.compile(
    r"user (?:doesn't want|does not want|rejected|declined|denied|cancel|aborted|interrupted)"
    r"|by (?:the )?user\b",
    re.IGNORECASE,
)
"""The user said no; that is no error of the tool."""
_WAITING = re.compile(
    r"\b(?:(?:still|is|are|currently|process|status\W{1,4}|state\W{1,4})\s*"
    r"(?:running|pending|queued|waiting|building|in.progress)"
    r"|in[ _-]progress|not (?:yet )?(?:ready|finished|complete|done|available)(?: yet)?"
    r"|no (?:new )?output(?: yet)?|\d/\d\s+pending"
    r"|timed? ?out waiting|wait(?:ing)? for|eta\b|remaining|try again (?:later|in))\b"
)
"""In lower case."""
_STATES = re.compile(
    r"\b(?:[A-Z_]*(?:PENDING|QUEUED|IN_PROGRESS|PROVISIONING|CREATING|STARTING)[A-Z_]*"
    r"|ContainerCreating|PodInitializing)\b"
)
_WAITS = (
    ("ing", ("running", "pending", "waiting", "building", "remaining")), ("progress", ()), ("queued", ()),
    ("not ", ("not yet ", "not ready", "not finished", "not complete", "not done", "not available")),
    ("output", ("no output", "no new output")), ("wait for", ()), ("eta", ()), ("try again", ()),
)  # fmt: skip
_STATE_WORDS = ("ING", "QUEUED", "IN_PROGRESS", "ContainerCreating", "PodInitializing")
"""Every text in which these find something holds one of the words: most hold none and are passed by."""
_SLEEPS = re.compile(r"\b(?:sleep|timeout|wait)\b[\s(\"':]*\d|\bwatch\s+-n|\btail\s+-f")
_SLEEP_WORDS = ("sleep", "timeout", "wait", "watch", "tail")


def named(*parts: str) -> str:
    """A short name of some texts."""
    return blake2b("\0".join(parts).encode("utf-8", "replace"), digest_size=8).hexdigest()


def masked(text: str) -> str:
    """A text with its volatile parts replaced; the very text (stripped) where it has none.

    Long texts: at both ends only. Lines in which nothing can be volatile come last, since only
    equality matters.
    """
    if len(text) > 2 * _EDGE:
        middle = crc32(text[_EDGE:-_EDGE].encode("utf-8", "replace"))
        return f"{_masked(text[:_EDGE])}<{middle}>{_masked(text[-_EDGE:])}"
    return _masked(text)


def _masked(text: str) -> str:
    small = text.lower()
    words = any(word in small for word in _MAY_DIFFER_WORDS)
    if not words and not _HAS_DIGIT(text):
        return text.strip()
    lines = text.splitlines()
    marks = [_HAS_DIGIT(line) or (words and _MAY_DIFFER(line)) for line in lines]
    suspect = [line for line, mark in zip(lines, marks, strict=True) if mark]
    steady = [line for line, mark in zip(lines, marks, strict=True) if not mark]
    before = block = "\n".join(suspect)
    if steady:
        small = block.lower()
    lettered = LETTERED(block) is not None
    for rule in RULES:
        if rule.may(block, small, lettered=lettered):
            block = rule.put(block)
    return text.strip() if block == before else "\n".join((block, *steady)).strip()


def error_words(text: str) -> str:
    """What an error says, whatever numbers it names; empty where it says nothing but that it is one.

    How many faults are left and an HTTP status are no such numbers: a count that falls is progress.
    Empty too where the user declined the call: being told no several times is no failing tool.
    """
    if declined(text) or _FOUND_NOTHING.fullmatch(text):
        return ""
    words = _SPACE.sub(" ", _NUMBER.sub(_number, masked(text[: 2 * _EDGE]))).strip()
    telling = _EMPTY_WORDS.sub("", words)
    return words if _MEANT in words or sum(map(str.isalpha, telling)) >= 8 else ""


def _number(found: re.Match[str]) -> str:
    """A number of an error: ``#``; spelled out where it counts the faults left, or is a server's answer."""
    text, start, end = found.string, found.start(), found.end()
    before = text[max(0, start - 16) : start]
    faults = _FAULTS.match(text, end) or (text.startswith(" failed", end) and _ALONE.search(before))
    status = end - start == 3 and text[start] in "45" and _STATUS.search(before)
    return _MEANT + found.group().translate(_SPELLED) if faults or status else "#"


def exit_code(text: str) -> int | None:
    """The exit code that a command tool reports in its first lines."""
    head = text[:400].lower()
    found = _EXITED.search(head) if "exit" in head else None
    return int(found.group(1)) if found is not None else None


def failed(text: str, is_error: bool) -> bool:
    """Whether a result is an error: flagged, or worded like one where the wire has no flag."""
    if is_error:
        return True
    code = exit_code(text)
    return code != 0 if code is not None else _FAILURE.match(text[:400]) is not None


def declined(text: str) -> bool:
    """Whether the user did not let the call happen."""
    return _BY_USER.search(text[:400]) is not None


def waiting(arguments: str, result: str) -> bool:
    """Whether a call waits for something that goes on elsewhere: equal answers are no loop yet."""
    told = result[:2_000]
    if any(word in told for word in _STATE_WORDS) and _STATES.search(told) is not None:
        return True
    small = told.lower()
    for stem, words in _WAITS:
        if stem in small and (not words or any(word in small for word in words)):
            if _WAITING.search(small) is not None:
                return True
            break
    asked = arguments[:400].lower()
    return any(word in asked for word in _SLEEP_WORDS) and _SLEEPS.search(asked) is not None


def call_name(tool: str, arguments: str, ignored: Collection[str]) -> str:
    """Name of a call: tool and canonical arguments, less the fields that are said to be volatile.

    ``ignored`` holds field names, or ``Tool.field`` for one tool alone.
    """
    if not ignored:
        return named(tool, arguments)
    try:
        value = json.loads(arguments)
    except ValueError:
        return named(tool, arguments)
    if isinstance(value, dict):
        value = {k: v for k, v in value.items() if k not in ignored and f"{tool}.{k}" not in ignored}
    return named(tool, json.dumps(value, sort_keys=True, separators=(",", ":")))


def fields(arguments: str) -> dict[str, Any]:
    """The members of a call's arguments; empty where they are no object."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
