"""What of a result is volatile, and what must never be taken for it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.fingerprints import (
    LETTERED,
    RULES,
    call_name,
    error_words,
    exit_code,
    failed,
    fields,
    masked,
    waiting,
)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("at 2026-11-30T07:43:46.123Z", "at 2026-12-01T17:03:06.003Z"),
        ("at 2026-11-30 07:43:46 +0100", "at 2026-12-01 17:03:06 +0100"),
        ("[07:43:46] ready", "[17:00:09] ready"),
        ("Mon Nov 30 07:43:46 2026", "Mon Dec 1 17:43:46 2026"),
        ("epoch 1796007694960", "epoch 1796007695001"),
        ("done in 0.12s", "done in 12.5s"),
        ("Wall time: 0.0000 seconds", "Wall time: 1.2 seconds"),
        ("real\t0m1.985s", "real\t0m22.619s"),
        ("took 15ms", "took 7 ms"),
        ("Chunk ID: 78e078", "Chunk ID: d47f8f"),
        ("Process Group PGID: 21572", "Process Group PGID: 21575"),
        ("started, pid 4711", "started, pid 4712"),
        ("Process running with session ID 5", "Process running with session ID 61"),
        ("commit 3f2a9c1d", "commit 9b8c7d6e5f"),
        ("<object at 0x7fe1b7431150>", "<object at 0x7fe1b7431999>"),
        ("id 550e8400-e29b-41d4-a716-446655440000", "id 123e4567-e89b-12d3-a456-426614174000"),
        ("toolu_01AbCdEf99Gh", "toolu_02XyZwVu11Ts"),
        ("token aB3dE5gH7jK9mN1p", "token zY9xW7vU5tS3rQ1o"),
        ("wrote /tmp/pytest-12/x.txt", "wrote /tmp/pytest-13/x.txt"),
        ("http://localhost:41233/x", "http://localhost:50123/x"),
    ],
)
def test_volatile_parts_do_not_count(one: str, other: str) -> None:
    assert masked(one) == masked(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("3 failed, 7 passed", "2 failed, 8 passed"),
        ("built 12 of 40", "built 13 of 40"),
        ("process 3 of 10", "process 4 of 10"),
        ("job 3 of 10 is next", "job 4 of 10 is next"),
        ("FAILED test_feature_12", "FAILED test_feature_13"),
        ("FAILED TestFeature12Login", "FAILED TestFeature13Login"),
        ("src/module_1.py", "src/module_2.py"),
        ("remaining: 5 minutes", "remaining: 4 minutes"),
        ("line 17", "line 18"),
        ("version 1.2.3", "version 1.2.4"),
        ("balance 1000", "balance 1001"),
        ("50%", "51%"),
        ("open: task_1", "open: task_2"),
        ("a", "b"),
        ("", "x"),
    ],
)
def test_progress_is_never_taken_for_noise(one: str, other: str) -> None:
    assert masked(one) != masked(other)


@given(st.text(max_size=300))
def test_masking_is_steady_and_takes_any_text(text: str) -> None:
    assert masked(text) == masked(text)
    error_words(text)
    waiting(text, text)
    failed(text, False)
    fields(text)


@pytest.mark.parametrize(
    "text",
    [
        "a" * 200_000,
        "0" * 200_000,
        "a1" * 100_000,
        "id " * 70_000,
        "is" + " " * 200_000,
        "-_" * 100_000,
        "\n" * 200_000,
        "took_ms" * 30_000,
        "1 errors" * 25_000,
        "id" * 100_000 + " 1",
    ],
)
def test_no_text_takes_long(text: str) -> None:
    # What is not linear takes hours here, and meets the guard against hanging.
    masked(text)
    error_words(text)
    waiting(text, text)
    failed(text, False)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Error: line 12: unexpected token", "Error: line 71: unexpected token", True),
        ("Error: attempt 3 failed: refused by peer", "Error: attempt 4 failed: refused by peer", True),
        ("Error: process 4821 failed to answer", "Error: process 4907 failed to answer", True),
        ("error: aborting due to 41 previous errors", "error: aborting due to 28 previous errors", False),
        ("Failed: there are 9 problems to solve", "Failed: there are 4 problems to solve", False),
        ("FAILED (6 failed, 3 passed in all)", "FAILED (5 failed, 4 passed in all)", False),
        ("Request failed with status code 403", "Request failed with status code 500", False),
    ],
)
def test_an_errors_numbers_do_not_count_unless_they_say_how_far_it_is(
    one: str, other: str, same: bool
) -> None:
    assert (error_words(one) == error_words(other)) is same
    assert error_words(one)


@pytest.mark.parametrize("text", ["No matches found", "Error: no results for 'x'", "exit code 1", "Error 17"])
def test_errors_that_say_nothing(text: str) -> None:
    assert error_words(text) == ""


def test_a_long_text_counts_in_its_middle_too() -> None:
    one, other = "x" * 9_000 + "1" + "x" * 9_000, "x" * 9_000 + "2" + "x" * 9_000
    assert masked(one) != masked(other)
    assert masked("12:00:01 " + one) == masked("12:00:02 " + one)


@pytest.mark.parametrize(
    ("text", "flagged", "expected"),
    [
        ("anything", True, True),
        ("Error: no such file", False, True),
        ("ValueError: bad", False, True),
        ("Traceback (most recent call last):", False, True),
        ('{"error": "gone"}', False, True),
        ('{"error": null, "rows": 3}', False, False),
        ("Process exited with code 1\nOutput:\nx", False, True),
        ("Chunk ID: 1\nProcess exited with code 0\nOutput:\nError: in the log that was read", False, False),
        ("the log says error: x", False, False),
        ("0 errors", False, False),
        ("", False, False),
    ],
)
def test_what_is_an_error(text: str, flagged: bool, expected: bool) -> None:
    assert failed(text, flagged) is expected


@pytest.mark.parametrize(
    ("text", "says_something"),
    [
        ("Connection refused by the server", True),
        ("String to replace not found in file", True),
        ("Error", False),
        ("Tool execution failed", False),
        ("Exit code 1", False),
        ("An unexpected error occurred. Please try again.", False),
        ("null", False),
        ("The user doesn't want to proceed with this tool use.", False),
    ],
)
def test_errors_that_say_something(text: str, says_something: bool) -> None:
    assert bool(error_words(text)) is says_something


def test_an_error_is_the_same_whatever_numbers_it_names() -> None:
    assert error_words("cannot reach store 7 (try 2)") == error_words("cannot reach store 81 (try 3)")
    assert error_words("cannot reach store a") != error_words("cannot reach store b")


@pytest.mark.parametrize(
    ("text", "code"),
    [("Exit code 1\nx", 1), ("Process exited with code 127", 127), ('{"exit_code": 0}', 0), ("fine", None)],
)
def test_exit_codes(text: str, code: int | None) -> None:
    assert exit_code(text) == code


@pytest.mark.parametrize(
    ("arguments", "result", "expected"),
    [
        ("", "Process running with session ID 5", True),
        ("", "status: pending", True),
        ("", "not ready yet", True),
        ('{"command":"sleep 30 && ls"}', "a", True),
        ('{"command":"ls"}', "a b", False),
        ('{"command":"cat notes"}', "we are running late", True),
    ],
)
def test_what_waits(arguments: str, result: str, expected: bool) -> None:
    assert waiting(arguments, result) is expected


def test_the_name_of_a_call_leaves_out_what_is_said_to_be_volatile() -> None:
    one, other = '{"a":1,"nonce":"x"}', '{"a":1,"nonce":"y"}'
    assert call_name("t", one, ()) != call_name("t", other, ())
    assert call_name("t", one, ("nonce",)) == call_name("t", other, ("nonce",))
    assert call_name("t", one, ("t.nonce",)) == call_name("t", other, ("t.nonce",))
    assert call_name("t", one, ("u.nonce",)) != call_name("t", other, ("u.nonce",))
    assert call_name("t", "no json", ("a",)) == call_name("t", "no json", ())
    assert call_name("t", one, ()) != call_name("u", one, ())


_FRAGMENTS = (
    "2026-11-30T07:43:46.123Z", "2026-11-30 07:43 UTC", "7:43:46", " pm", "Jan 5", "5 March 2024", "30 Dec",
    "1796007694960", "0m1.985s", "12M3S", "12.5 s", "3 Seconds", "15ms", "7 µs", "8 MILLISECONDS", "took",
    "_ms: ", "550e8400-e29b-41d4-a716-446655440000", "PID ", "port:", "Request-ID: ", "task_id=", "abcdef0",
    "0xdeadbeef", "3f2a9c1d", "deadbee5", "toolu_01AbCdEf99Gh", "MSG-12345a", "aB3dE5gH7jK9mN1p",
    "/private/tmp/a", "C:\\Temp\\x", "localhost:8080", "8080", "-", "_", " ", "\n", "é", "x", "7",
)  # fmt: skip


@given(st.lists(st.sampled_from(_FRAGMENTS), max_size=8).map("".join))
def test_what_a_rule_would_find_is_never_passed_by(text: str) -> None:
    for rule in RULES:
        assert rule.put(text) == text or rule.may(text, text.lower(), lettered=LETTERED(text) is not None)
