"""Incremental reading equals reading from scratch, whatever an editor does to a body."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import takewhile
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from proxy.model import Exchange, Head, Identity, Item, Message, ModelRequest
from proxy.ports import Unreadable
from proxy.reading.identity import item_digest
from proxy.reading.layout import common_prefix, common_suffix
from proxy.reading.library import SEED, Library, Reading, parse, read


class Plain:
    """The smallest dialect: every element is one item. It counts what it had to read."""

    name = "plain"
    list_key = "messages"

    def __init__(self) -> None:
        self.messages_read = 0
        self.requests_read = 0

    def read_message(self, raw: Any) -> Message:
        self.messages_read += 1
        text = orjson.dumps(raw, option=orjson.OPT_SORT_KEYS).decode()
        kind = "system" if isinstance(raw, dict) and raw.get("role") == "system" else "user"
        return Message("user", (Item(kind, "user", text, digest=item_digest(kind, "user", text)),))

    def read_request(
        self, head: Head, path: str, fields: Mapping[str, Any], messages: tuple[Message, ...]
    ) -> ModelRequest:
        self.requests_read += 1
        model = str(fields.get("model"))
        return ModelRequest("anthropic", "chat", model, False, messages, options=dict(fields))


def exchange(number: int = 0, **more: Any) -> Exchange:
    head = Head("POST", "/v1/messages", ((b"Content-Length", b"%d" % number),))
    return Exchange(f"exc_{number}", number, head, None, "/v1/messages", 0, **more)


def body(messages: Any, **after: Any) -> bytes:
    return orjson.dumps({"model": "m", "messages": messages, **after})


def message(text: str, role: str = "user", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": text, **more}


def same(one: Reading, other: Reading) -> None:
    assert replace(one.request, base="", shared=0) == replace(other.request, base="", shared=0)


TEXTS = st.sampled_from(["hi", "", '],"messages":[{', 'é"\\', "\u2028 ☃", "}" * 9, "x" * 300, ",", "\\u0041"])
MESSAGES = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system"]), "content": TEXTS})
FIELDS = st.dictionaries(
    st.sampled_from(["tools", "system", "metadata", "max_tokens", "ключ", 'a"b']),
    st.one_of(TEXTS, st.integers(0, 10**6), st.lists(st.integers(0, 9), max_size=3), st.none()),
    max_size=3,
)
EDITS = st.one_of(
    st.tuples(st.just("append"), st.lists(MESSAGES, max_size=3)),
    st.tuples(st.just("replace"), st.integers(0, 30), MESSAGES),
    st.tuples(st.just("remove"), st.integers(0, 30)),
    st.tuples(st.just("insert"), st.integers(0, 30), MESSAGES),
    st.tuples(st.just("cut"), st.integers(0, 30)),
    st.tuples(st.just("swap"), st.integers(0, 30)),
    st.tuples(st.just("before"), FIELDS),
    st.tuples(st.just("after"), FIELDS),
    st.tuples(st.just("pretty"), st.booleans()),
    st.tuples(st.just("spoil"), st.integers(0, 10_000), st.sampled_from([b",", b"]", b"}", b"{", b"x", b""])),
)


@settings(max_examples=150)
@example(  # a space less between two messages
    [message("hi"), message("hi"), message("hi"), message('é"\\', "assistant")],
    [
        ("replace", 0, message('],"messages":[{')),
        ("after", {}),
        ("pretty", True),
        ("append", [message("hi", "assistant")]),
        ("append", [message('é"\\', "assistant"), message('é"\\', "assistant"), message("hi")]),
        ("spoil", 1019, b""),
    ],
)
@given(st.lists(MESSAGES, max_size=6), st.lists(EDITS, min_size=1, max_size=14))
def test_incremental_reading_equals_reading_from_scratch(start: list[Any], edits: list[Any]) -> None:
    library, dialect = Library(), Plain()
    bodies: dict[str, bytes] = {}
    requests: dict[str, ModelRequest] = {}
    messages, before, after, option = start, {"model": "m"}, {"tools": [1]}, 0
    for number, edit in enumerate([("append", []), *edits]):
        spoil: tuple[int, bytes] | None = None
        match edit:
            case ("append", more):
                messages = [*messages, *more]
            case ("replace", at, one) if messages:
                messages = [*messages[: at % len(messages)], one, *messages[at % len(messages) + 1 :]]
            case ("remove", at) if messages:
                messages = [*messages[: at % len(messages)], *messages[at % len(messages) + 1 :]]
            case ("insert", at, one):
                messages = [*messages[:at], one, *messages[at:]]
            case ("cut", at):
                messages = messages[:at]
            case ("swap", at):
                messages = [*messages[at:], *messages[:at]]
            case ("before", fields):
                before = {"model": "m", **fields}
            case ("after", fields):
                after = fields
            case ("pretty", indent):
                option = orjson.OPT_INDENT_2 if indent else 0
            case ("spoil", at, text):
                spoil = (at, text)
        # the same key before and after the list stands twice, as some clients write it
        raw = orjson.dumps({**before, "messages": messages}, option=option)[:-1].rstrip()
        raw += b"".join(
            b",%b:%b" % (orjson.dumps(name), orjson.dumps(value)) for name, value in after.items()
        )
        raw += b"}"
        if spoil is not None:
            place = spoil[0] % len(raw)
            raw = raw[:place] + spoil[1] + raw[place + 1 :]
        arrived = exchange(number)
        try:
            whole = read(dialect, arrived, raw)
        except Unreadable:
            with pytest.raises(Unreadable):
                library.read(dialect, arrived, raw)
            continue
        reading = library.read(dialect, arrived, raw)
        same(reading, whole)
        assert len(reading.request.chain) == len(reading.request.messages)
        if (splice := reading.splice) is not None:
            base = bodies[splice.base]
            middle = raw[splice.prefix : len(raw) - splice.suffix]
            assert base[: splice.prefix] + middle + base[len(base) - splice.suffix :] == raw
        if (known := requests.get(reading.request.base)) is not None:
            pairs = zip(known.messages, reading.request.messages, strict=False)
            equal = sum(takewhile(bool, (old is new for old, new in pairs)))
            assert reading.request.shared == equal
        bodies[arrived.id] = raw
        requests[arrived.id] = reading.request


@given(st.binary(max_size=40), st.binary(max_size=40), st.binary(max_size=40))
def test_common_ends(one: bytes, middle: bytes, other: bytes) -> None:
    a, b = one + middle + other, one + other
    prefix = common_prefix(a, b)
    assert a[:prefix] == b[:prefix]
    assert prefix == min(len(a), len(b)) or a[prefix] != b[prefix]
    suffix = common_suffix(a, b, prefix)
    assert prefix + suffix <= min(len(a), len(b))
    assert a[len(a) - suffix :] == b[len(b) - suffix :]
    assert prefix + suffix == len(b)


@pytest.mark.parametrize("after", [{}, {"tools": [{"name": "bash"}] * 50}])
def test_appending_reads_only_what_is_new(after: dict[str, Any]) -> None:
    library, dialect = Library(), Plain()
    messages = [message(f"text {n}") for n in range(100)]
    for number in range(10):
        messages += [message("reply", "assistant"), message("result")]
        reading = library.read(dialect, exchange(number), body(messages, **after))
        assert reading.request.shared == (0 if number == 0 else len(messages) - 2)
    assert dialect.messages_read == 102 + 9 * 2
    assert len(library) == 1


@pytest.mark.parametrize("after", [{}, {"tools": [{"name": "bash"}] * 50}])
def test_moved_cache_marks_reread_only_the_marked(after: dict[str, Any]) -> None:
    library, dialect = Library(), Plain()
    messages = [message(f"text {n}") for n in range(100)]
    for number in range(10):
        marked = [*messages[:-1], {**messages[-1], "cache_control": {"type": "ephemeral"}}]
        library.read(dialect, exchange(number), body(marked, **after))
        messages += [message("reply", "assistant"), message("result")]
    assert dialect.messages_read == 100 + 9 * 3
    assert len(library) == 1


def test_a_changed_middle_keeps_both_sides() -> None:
    library, dialect = Library(), Plain()
    messages = [message(f"text {n}") for n in range(100)]
    library.read(dialect, exchange(0), body(messages))
    messages[50] = message("(removed)")
    reading = library.read(dialect, exchange(1), body(messages))
    assert dialect.messages_read == 101
    assert reading.request.shared == 50
    same(reading, read(Plain(), exchange(1), body(messages)))


def test_fields_that_change_around_the_list_reread_no_message() -> None:
    library, dialect = Library(), Plain()
    messages = [message(f"text {n}") for n in range(100)]
    library.read(dialect, exchange(0), body(messages, client={"a": 1, "turn": 1}))
    library.read(dialect, exchange(1), body(messages, client={"turn": 22, "a": 1}, more=True))
    library.read(dialect, exchange(2), b'{"seed":7,' + body(messages)[1:])
    assert dialect.messages_read == 100
    assert dialect.requests_read == 3


def test_moved_messages_are_known_by_their_bytes() -> None:
    library, dialect = Library(), Plain()
    messages = [message("a long first message " * 9), *(message(f"text {n}") for n in range(59))]
    library.read(dialect, exchange(0), body(messages))
    moved = [messages[0], *messages[30:], *messages[1:30], message("new")]
    reading = library.read(dialect, exchange(1), body(moved))
    assert dialect.messages_read == 61
    same(reading, read(Plain(), exchange(1), body(moved)))


def test_a_lone_surrogate_costs_no_later_reading() -> None:
    library, dialect = Library(), Plain()
    start = b'{"model":"m","messages":[' + b",".join([b'{"a":"cut \\ud83d"}'] * 50)
    library.read(dialect, exchange(0), start + b"]}")
    reading = library.read(dialect, exchange(1), start + b',{"a":"b"}],"x":1}')
    assert dialect.messages_read == 51
    same(reading, read(Plain(), exchange(1), start + b',{"a":"b"}],"x":1}'))


def test_parallel_runs_of_one_agent_each_find_their_own_base() -> None:
    library, dialect = Library(), Plain()
    runs = [[message("the same long task " * 20), message(f"reply {n}", "assistant")] for n in range(20)]
    for number in range(100):
        run = runs[number % 20]
        run += [message(f"{number} result"), message(f"{number} reply", "assistant")]
        reading = library.read(dialect, exchange(number), body(run))
        if number >= 20:
            assert reading.request.shared == len(run) - 2
    assert len(library) == 20


def test_readings_of_one_history_made_at_once_leave_one() -> None:
    library, dialect = Library(), Plain()
    history = [message(f"{n} " + "x" * 900, "assistant" if n % 2 else "user") for n in range(50)]
    library.read(dialect, exchange(0), body(history))
    for number in range(10, 90, 4):
        under_way = [library.slices(dialect, exchange(number + n), body(history)) for n in range(4)]
        ended = 0
        while ended < len(under_way):
            ended = sum(next(one, "end") == "end" for one in under_way)
    assert len(library) == 1
    again = library.read(dialect, exchange(99), body([*history, message("more")]))
    assert again.request.shared == 50
    assert dialect.messages_read == 51


def test_histories_that_grow_side_by_side_by_many_messages_leave_one_reading() -> None:
    library, dialect, history = Library(), Plain(), []
    for number in range(0, 24, 2):
        history += [
            message(f"{number} {n} " + "x" * 9_000, "assistant" if n % 2 else "user") for n in range(12)
        ]
        under_way = [library.slices(dialect, exchange(number + n), body(history)) for n in range(2)]
        ended = 0
        while ended < len(under_way):
            ended = sum(next(one, "end") == "end" for one in under_way)
        assert len(library) == 1
    otherwise = body(history).replace(b'"role":', b'"role": ')
    library.read(dialect, exchange(99), otherwise)
    assert len(library) == 2  # the next body of either client finds what it goes on from


def test_tenants_share_no_reading() -> None:
    library, dialect = Library(), Plain()
    library.read(dialect, exchange(0), body([message("hi")]))
    other = library.read(dialect, exchange(1, identity=Identity(key="b")), body([message("hi")]))
    assert other.request.shared == 0
    assert other.splice is None


def test_the_library_is_bounded_by_bytes() -> None:
    library, dialect = Library(max_bytes=100_000), Plain()
    for number in range(200):
        library.read(dialect, exchange(number), body([message(f"{number} " + "x" * 2_000)]))
        assert library.held_bytes <= 100_000
    assert 5 < len(library) < 50
    library.read(dialect, exchange(999), body([message("x" * 90_000)]))
    assert library.held_bytes <= 100_000
    for name in list(library._readings):
        library._drop(name)
    assert library.held_bytes == 0
    assert not library._groups


def test_system_text_stands_outside_the_chain() -> None:
    one = read(Plain(), exchange(), body([message("a", "system"), message("hi")])).request
    other = read(Plain(), exchange(), body([message("b", "system"), message("hi")])).request
    assert one.chain[1] == other.chain[1]
    assert one.chain[0] == SEED


@pytest.mark.parametrize(
    ("raw", "texts"),
    [
        (b' { "messages" : [ {"a":1} , {"a":2} ] , "model":"m" } ', ['{"a":1}', '{"a":2}']),
        (b'{"mess\\u0061ges":[{"a":1}]}', ['{"a":1}']),
        (b'{"messages":[{"a":1}],"messages":[{"a":2}]}', ['{"a":2}']),
        (b'{"model":"a","messages":[{"a":1}],"model":"m"}', ['{"a":1}']),
        (b'{"messages":"hello"}', ['"hello"']),
        (b'{"messages":{"a":1}}', ['{"a":1}']),
        (b'{"messages":[1,"two",[3],null]}', ["1", '"two"', "[3]", "null"]),
        (b'{"messages":[]}', []),
        (b'{"messages":null}', []),
        (b"{}", []),
        (b'{"messages":[{"a":"cut \\ud83d"}]}', ['{"a":"cut \ufffd"}']),
        (b'{"messages":[{"a":"\\ud83d\\ude00 \\\\ud83d"}]}', ['{"a":"\U0001f600 \\\\ud83d"}']),
    ],
)
def test_odd_bodies(raw: bytes, texts: list[str]) -> None:
    request = read(Plain(), exchange(), raw).request
    assert [item.text for one in request.messages for item in one.items] == texts
    again = Library()
    again.read(Plain(), exchange(0), raw)
    same(again.read(Plain(), exchange(1), raw), read(Plain(), exchange(1), raw))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b"[]",
        b'"text"',
        b"not json",
        b'{"messages":[',
        b'{"messages":[{"a":1},]}',
        b'{"messages":[{"a":1}]} {}',
        b'{"messages":[{"a":"\xff"}]}',
        b'{"messages":[{"a":NaN}]}',
        b"[" * 100_000,
        b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"messages":[{"a":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}]}",
    ],
    ids=lambda raw: f"{raw[:24]!r}",
)
def test_what_is_no_request_is_unreadable(raw: bytes) -> None:
    library = Library()
    library.read(Plain(), exchange(0), b'{"messages":[{"a":1}]}')
    with pytest.raises(Unreadable):
        read(Plain(), exchange(), raw)
    with pytest.raises(Unreadable):
        library.read(Plain(), exchange(1), raw)


@pytest.mark.parametrize("usual", [True, False], ids=["in the usual frame", "read plainly"])
def test_a_million_messages_take_bounded_time(usual: bool) -> None:
    def many(count: int) -> bytes:
        odd = b"" if usual else b",1"
        return b'{"messages":[' + b",".join([b'{"a":1}'] * count) + odd + b"]}"

    assert len(read(Plain(), exchange(), many(90_000)).request.messages) == 90_000 + (not usual)
    dialect = Plain()
    with pytest.raises(Unreadable, match="more than 100000 messages"):
        read(dialect, exchange(), many(1_000_000))
    assert dialect.messages_read == 0


def test_a_message_of_a_million_blocks_is_not_read() -> None:
    library, dialect = Library(), Plain()
    library.read(dialect, exchange(0), body([message("x")]))
    wide = body([message("x"), {"role": "user", "content": [{}] * 100_000}])
    for raw in (wide, wide[:-2] + b",1]}"):
        with pytest.raises(Unreadable, match="more than 100000"):
            library.read(dialect, exchange(1), raw)
    assert dialect.messages_read <= 2  # the short one, at most anew


def test_a_reading_weighs_what_its_blocks_become() -> None:
    narrow = read(Plain(), exchange(), body([message("x" * 3_000)]))
    wide = read(Plain(), exchange(), body([{"role": "user", "content": [{}] * 1_000}]))
    assert wide.weight > 100 * narrow.weight
    longer = body([{"role": "user", "content": [{}] * 1_000}, message("more")])
    assert read(Plain(), exchange(), longer, wide).weight > wide.weight


def test_parse_says_what_is_wrong() -> None:
    with pytest.raises(Unreadable, match="no valid JSON"):
        parse(b"{")
