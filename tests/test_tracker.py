"""The tracker's rules, each as a conversation and the tree that it has to give."""

import gc
from dataclasses import replace
from typing import Any

import orjson
import pytest

from proxy.model import Exchange, Head, Hints, Identity, Item, ModelRequest
from proxy.tracking.placement import Placement
from proxy.tracking.shelf import LIVELY
from proxy.tracking.threads import EQUALS, Thread
from proxy.verdict import Terminal
from tests.play import (
    Play,
    assistant,
    call,
    claude,
    grown,
    request,
    result,
    results,
    said,
    system,
    thought,
    user,
)

TASK = user("Look at this project and say what it is.")
ID, OTHER = "toolu_013ab7c9d2e4", "toolu_02f7e1a9b3c5"


def test_a_tool_loop_is_one_turn_and_the_next_input_another() -> None:
    play = Play()
    first = request(TASK)
    play.step(first, thought("hm"), said("Let me look."), call(ID))
    second = grown(first, assistant(thought("hm"), said("Let me look."), call(ID)), results(result(ID)))
    play.step(second, said("A demo project."))
    third = grown(second, assistant(said("A demo project.")), user("Thanks. Run it."))
    play.step(third, said("It runs."))
    assert play.shape() == [[[[[0], [1]], [[2]]]]]
    assert play.causes() == ["completed", "completed"]
    steps = play.threads()[0]["turns"][0]["steps"]
    assert steps[0]["tool_calls"] == [{"id": ID, "name": "bash"}]
    assert steps[0]["tool_results"] == [{"id": ID, "is_error": False}]
    assert steps[1]["tool_results"] == []
    assert steps[0]["usage"] == {"input_tokens": 10, "output_tokens": 5}
    assert play.threads()[0]["turns"][0]["cost_usd"] == "0.002"


def test_thinking_that_the_client_loses_does_not_hide_the_thread() -> None:
    play = Play()
    first = request(TASK)
    play.step(first, thought("hm"), said("Let me look."), call(ID))
    placed = play.step(
        grown(first, assistant(said("Let me look."), call(ID)), results(result(ID))), said("ok")
    )
    assert play.shape() == [[[[[0], [1]]]]]
    assert placed.matched_by == "prefix"
    assert not placed.rewritten


def test_steering_text_beside_results_stays_in_the_turn() -> None:
    play = Play()
    first = request(TASK)
    play.step(first, call(ID))
    steered = results(result(ID), *user("and be quick").items)
    play.step(grown(first, assistant(call(ID)), steered), said("ok"))
    assert play.shape() == [[[[[0], [1]]]]]


def test_input_while_calls_are_pending_supersedes_the_turn() -> None:
    play = Play()
    first = request(TASK)
    play.step(first, call(ID))
    play.step(grown(first, assistant(call(ID)), user("never mind, say hi")), said("hi"))
    assert play.shape() == [[[[[0]], [[1]]]]]
    assert play.causes() == ["superseded", "completed"]


@pytest.mark.parametrize(
    "words",
    [
        "The user doesn't want to proceed with this tool use. The tool use was rejected.",
        "The execution of this tool, or a previous tool was interrupted.",
        "Tool execution aborted",
    ],
)
def test_a_cancelled_call_and_new_input_interrupt_the_turn(words: str) -> None:
    play = Play()
    first = request(TASK)
    play.step(first, call(ID))
    refused = results(result(ID, words, is_error=True), *user("do something else").items)
    play.step(grown(first, assistant(call(ID)), refused), said("hi"))
    assert play.causes() == ["interrupted", "completed"]
    assert play.threads()[0]["turns"][0]["by"] == "user"


def test_pause_turn_goes_on() -> None:
    play = Play()
    first = request(TASK)
    play.step(first, said("Searching the web for it."), stop="pause_turn")
    assert play.causes() == [None]
    play.step(grown(first, assistant(said("Searching the web for it."))), said("Found."))
    assert play.shape() == [[[[[0], [1]]]]]
    assert play.causes() == ["completed"]


def test_the_providers_reason_ends_the_turn() -> None:
    for stop, cause in (
        ("max_tokens", "max_tokens"),
        ("length", "max_tokens"),
        ("refusal", "refusal"),
        ("content_filter", "content_filter"),
        ("SAFETY", "content_filter"),
        ("model_context_window_exceeded", "context_window"),
        ("stop", "completed"),
        ("STOP", "completed"),
    ):
        play = Play()
        play.step(request(TASK), said("I"), stop=stop)
        assert play.causes() == [cause]


def test_SES_11_retries_are_attempts_of_one_step() -> None:
    play = Play()
    asked = request(TASK)
    play.step(asked, outcome="failed")
    play.step(asked, outcome="failed")
    play.step(asked, said("A demo."))
    assert play.shape() == [[[[[0, 1, 2]]]]]
    assert play.causes() == ["completed"]


def test_a_cut_reply_and_a_client_gone_are_asked_again() -> None:
    for outcome in ("cut", "client_gone"):
        play = Play()
        asked = request(TASK)
        play.step(asked, said("Let me"), outcome=outcome)
        play.step(asked, said("Let me look."))
        assert play.shape() == [[[[[0, 1]]]]]


def test_a_reply_that_ends_cleanly_in_its_middle_ends_the_turn_until_it_is_asked_again() -> None:
    play = Play()
    asked = request(TASK)
    play.step(asked, said("Let me"), outcome="cut", end="complete")
    assert play.causes() == ["error"]
    play.step(asked, said("Let me look."))
    assert play.shape() == [[[[[0, 1]]]]]
    assert play.causes() == ["completed"]


def test_a_retry_count_makes_an_attempt_even_of_an_answered_request() -> None:
    play = Play()
    asked = request(TASK)
    play.step(asked, said("A demo."))
    play.step(replace(asked, hints=Hints(retry=1)), said("A demo!"))
    assert play.shape() == [[[[[0, 1]]]]]


def test_the_same_request_after_a_success_is_another_conversation() -> None:
    play = Play()
    asked = request(TASK)
    play.step(asked, said("A demo."))
    play.step(asked, said("A toy."))
    play.step(grown(asked, assistant(said("A demo.")), user("why?")), said("because"))
    play.step(grown(asked, assistant(said("A toy.")), user("why?")), said("because"))
    assert play.shape() == [[[[[0]], [[2]]]], [[[[1]], [[3]]]]]


def test_other_instructions_make_another_thread() -> None:
    play = Play()
    play.step(request(system("You are a poet."), TASK), outcome="failed")
    play.step(request(system("You are a critic."), TASK), said("Hm."))
    assert play.shape() == [[[[[0]]]], [[[[1]]]]]


def test_a_second_continuation_is_a_fork() -> None:
    play = Play()
    first = request(TASK)
    play.step(first, said("A demo."))
    base = grown(first, assistant(said("A demo.")))
    play.step(grown(base, user("who wrote it?")), said("me"))
    play.step(grown(base, user("when?")), said("now"))
    main, fork = play.threads()
    assert fork["parent"] == main["id"]
    assert play.shape() == [[[[[0]], [[1]]], [[[2]]]]]


def test_a_third_sibling_shares_the_history_of_the_second() -> None:
    play = Play()
    first = request(TASK)
    play.step(first, call(ID))
    again = grown(first, assistant(call(ID)), results(result(ID)))
    for number in range(3):
        play.step(again, said(f"answer {number}"))
    assert play.shape() == [[[[[0], [1]]], [[[2]]], [[[3]]]]]
    main, second, third = play.threads()
    assert (second["parent"], third["parent"]) == (main["id"], second["id"])


def test_a_failed_continuation_does_not_fork_what_replaces_it() -> None:
    play = Play()
    first = request(TASK)
    play.step(first, said("A demo."))
    base = grown(first, assistant(said("A demo.")))
    play.step(grown(base, user("who wrote it?")), outcome="failed")
    play.step(grown(base, user("when?")), said("now"))
    assert play.shape() == [[[[[0]], [[1]], [[2]]]]]
    assert play.causes() == ["completed", "error", "completed"]


def test_the_same_results_asked_in_another_form_after_a_failure_are_an_attempt() -> None:
    play = Play()
    first = request(TASK)
    play.step(first, call(ID))
    base = grown(first, assistant(call(ID)))
    play.step(grown(base, results(result(ID, "a long text"))), outcome="failed")
    play.step(grown(base, results(result(ID, "a clipped text"))), said("ok"))
    assert play.shape() == [[[[[0], [1, 2]]]]]


def test_a_rewritten_reply_is_known() -> None:
    cases: list[tuple[tuple[Item, ...], Item]] = [
        ((said("Thought: look\nAction: ls\nObservation: guessed"),), said("Thought: look\nAction: ls")),
        ((said("<think>hm</think>It is a demo."),), said("It is a demo.")),
        ((), said("[empty string]")),
        ((call("call_0", "answer", '{"city":"Paris"}'),), said('{"city": "Paris"}')),
        ((call(ID), call(OTHER)), call(ID)),
    ]
    for sent, came_back in cases:
        play = Play()
        first = request(TASK)
        play.step(first, *sent)
        placed = play.step(grown(first, assistant(came_back), user("go on")), said("ok"))
        assert len(play.threads()) == 1, came_back
        assert placed.matched_by == "prefix"


def test_a_history_with_a_past_goes_on_whatever_stands_in_the_place_of_its_reply() -> None:
    play = Play()
    first = request(TASK, assistant(said("Let me look."), call(ID)), results(result(ID)))
    play.step(first, said("A demo project."))
    play.step(grown(first, assistant(call(OTHER)), results(result(OTHER))), said("Done."))
    assert [len(thread["turns"][0]["steps"]) for thread in play.threads()] == [2]


def test_a_run_repeated_word_for_word_is_one_thread_though_its_replies_came_back_otherwise() -> None:
    play = Play()
    first = request(TASK, assistant(said("Let me look."), call(ID)), results(result(ID)))
    second = grown(first, assistant(call(OTHER)), results(result(OTHER)))
    for _ in range(2):
        play.step(first, said("A demo project."))
        play.step(second, said("Done."))
        play.step(grown(second, assistant(said("Finished.")), user("Thanks.")), said("Gladly."))
    assert [[len(turn["steps"]) for turn in thread["turns"]] for thread in play.threads()] == [[2, 1], [2, 1]]


def test_gemini_ids_that_the_client_made_up_pair_by_name_and_order() -> None:
    play = Play()
    first = request(TASK)
    play.step(first, call(None, "ls"), call(None, "cat"))
    back = assistant(call("ls_1796_0", "ls"), call("cat_1796_1", "cat"))
    answers = results(result("cat_1796_1", "b", "cat"), result("ls_1796_0", "a", "ls"))
    play.step(grown(first, back, answers), said("ok"))
    assert play.shape() == [[[[[0], [1]]]]]
    steps = play.threads()[0]["turns"][0]["steps"]
    assert [r["id"] for r in steps[0]["tool_results"]] == ["cat_1796_1", "ls_1796_0"]


def test_item_ids_name_calls_too() -> None:
    play = Play()
    first = request(TASK)
    sent = replace(call("call_9f2c81d0aa"), item_id="fc_77aa01c2")
    play.step(first, sent)
    play.step(grown(first, assistant(call("fc_77aa01c2")), results(result("fc_77aa01c2"))), said("ok"))
    assert play.shape() == [[[[[0], [1]]]]]
    assert play.threads()[0]["turns"][0]["steps"][0]["tool_results"][0]["id"] == "call_9f2c81d0aa"


def test_a_truncated_history_is_found_by_content() -> None:
    play = Play()
    first = request(TASK)
    play.step(first, said("It is a small demo project."))
    placed = play.step(
        request(assistant(said("It is a small demo project.")), user("Thanks. Run it.")), said("ok")
    )
    assert placed.matched_by == "content"
    assert placed.epoch == 1
    assert play.shape() == [[[[[0]], [[1]]]]]
    assert play.threads()[0]["matched_by"] == "content"


def test_a_rewritten_middle_is_found_by_call_ids() -> None:
    play = Play()
    first = request(TASK)
    play.step(first, said("Looking."), call(ID))
    changed = assistant(said("(older text removed)"), call(ID, arguments='{"command":"…"}'))
    placed = play.step(request(user("Summary so far"), changed, results(result(ID))), said("ok"))
    assert placed.matched_by == "call_ids"
    assert play.shape() == [[[[[0], [1]]]]]


def test_old_results_cleared_in_the_middle_make_an_epoch_and_no_fork() -> None:
    play = Play()
    history = [TASK]
    for n in range(6):
        id = f"toolu_{n:04d}ab12"
        play.step(request(*history), said(f"Step number {n} of the work."), call(id))
        history += [
            assistant(said(f"Step number {n} of the work."), call(id)),
            results(result(id, f"out {n}")),
        ]
    cleared = list(history)
    cleared[4] = results(result("toolu_0001ab12", "[Old tool result content cleared]"))
    placed = play.step(request(*cleared), said("On it."))
    assert placed.relation == "epoch"
    assert len(play.threads()) == 1
    assert len(play.threads()[0]["turns"]) == 1
    later = play.step(request(*cleared, assistant(said("On it.")), user("thanks")), said("ok"))
    assert (later.relation, later.epoch) == ("continue", 1)


def test_ids_that_count_from_zero_join_nothing() -> None:
    play = Play()
    play.step(request(user("add 1 and 2")), call("call_0", "add", '{"a":1}'))
    play.step(
        request(user("add 5 and 6"), assistant(call("call_0", "add", '{"a":5}')), results(result("call_0")))
    )
    assert len(play.tree()["sessions"]) == 2
    assert [t["partial"] for t in play.threads()] == [False, True]


def test_SES_01_a_subagent_with_the_parents_session_is_no_compaction() -> None:
    play = Play()
    history = [TASK]
    for n in range(20):
        asked = request(*history, hints=claude())
        spawn = call(f"toolu_{n:04d}ffaa", "Agent", '{"prompt":"Count the files."}')
        play.step(asked, spawn)
        history += [assistant(spawn), results(result(f"toolu_{n:04d}ffaa"))]
    sub = play.ask(request(user("Count the files."), hints=claude(agent="a1")))
    assert sub.kind == "subagent"
    assert sub.epoch == 0
    main, child = play.threads()
    assert child["parent"] == main["id"]
    assert main["turns"][0]["open"]
    assert len(main["turns"]) == 1
    assert sub.root_turn == main["turns"][0]["id"]


def test_SES_02_a_compaction_that_keeps_a_tail_stays_in_its_turn() -> None:
    play = Play()
    first = request(TASK, hints=claude())
    play.step(first, said("Let me look."), call(ID))
    second = grown(first, assistant(said("Let me look."), call(ID)), results(result(ID)))
    play.step(second, said("One more."), call(OTHER))
    summary = "<summary>We looked at the project and found that it is a demo.</summary>"
    prompt = user("Your task is to create a detailed summary of the conversation so far")
    compacts = replace(claude(), kind="compaction")
    side = play.step(
        grown(first, assistant(said("Let me look."), call(ID)), prompt, hints=compacts), said(summary)
    )
    assert side.kind == "side"
    placed = play.step(
        request(
            user("This session is being continued. We looked at the project and found that it is a demo."),
            assistant(said("One more."), call(OTHER)),
            results(result(OTHER)),
            hints=claude(),
        ),
        said("Done."),
    )
    assert placed.epoch == 1
    assert [len(t["turns"]) for t in play.threads()] == [1, 1]
    assert play.threads()[0]["turns"][0]["cause"] == "completed"
    assert len(play.tree()["sessions"]) == 1


def test_SES_03_siblings_with_equal_messages_are_told_apart_by_agent() -> None:
    play = Play()
    play.step(request(TASK, hints=claude()), call(ID, "Agent"), call(OTHER, "Agent"))
    one, two = request(user("Go."), hints=claude(agent="a1")), request(user("Go."), hints=claude(agent="a2"))
    a, b = play.ask(one), play.ask(two)
    play.answer(a, call("toolu_aa11bb22cc"))
    play.answer(b, call("toolu_aa11bb22dd"))
    play.step(grown(one, assistant(call("toolu_aa11bb22cc")), results(result("toolu_aa11bb22cc"))), said("1"))
    play.step(grown(two, assistant(call("toolu_aa11bb22dd")), results(result("toolu_aa11bb22dd"))), said("2"))
    assert play.shape() == [[[[[0]]], [[[1], [3]]], [[[2], [4]]]]]
    assert a.root_turn == b.root_turn == play.threads()[0]["turns"][0]["id"]


def test_SES_04_unrelated_conversations_are_sessions_of_their_own() -> None:
    play = Play()
    asked = [request(user(f"question {n}")) for n in range(3)]
    placed = [play.ask(one) for one in asked]
    for n, one in enumerate(placed):
        play.answer(one, said(f"answer number {n}"))
    for n, one in enumerate(asked):
        play.step(grown(one, assistant(said(f"answer number {n}")), user("more")), said("ok"))
    assert play.shape() == [[[[[0]], [[3]]]], [[[[1]], [[4]]]], [[[[2]], [[5]]]]]


def test_SES_09_history_held_by_the_provider_is_chained_by_id() -> None:
    play = Play()
    play.step(request(TASK), call("call_0"), response_id="resp_0")
    for n in range(1, 5):
        last = n == 4
        items = (said("done"),) if last else (call(f"call_{n}"),)
        play.step(
            request(results(result(f"call_{n - 1}")), held=f"resp_{n - 1}"), *items, response_id=f"resp_{n}"
        )
    assert play.shape() == [[[[[0], [1], [2], [3], [4]]]]]
    placed = play.step(request(user("hello"), held="resp_unknown"), said("hi"))
    assert placed.new_thread
    assert play.threads()[1]["partial"]


def test_SES_10_a_title_call_is_no_step_of_the_turn() -> None:
    play = Play()
    title = request(user("Write a title"), hints=claude(), tools=(), output_schema=True)
    side = play.ask(title)
    main = play.ask(request(TASK, hints=claude()))
    play.answer(side, said("Project talk"))
    play.answer(main, call(ID))
    assert (side.kind, main.kind) == ("side", "main")
    assert side.root_turn == main.turn
    assert play.threads()[1]["turns"][0]["open"]
    later = play.step(request(user("Write another title"), hints=claude(), tools=()), said("Talk"))
    assert later.root_turn == main.turn
    assert play.threads()[1]["turns"][0]["open"]


def test_a_subagent_without_ids_is_told_by_its_task() -> None:
    play = Play()
    handed = '{"agent":"poet","prompt":"Write a poem about the sea and its ships."}'
    play.step(request(TASK), call(ID, "Agent", handed))
    sub = play.step(request(user("Write a poem about the sea and its ships.")), said("Waves."))
    other = play.step(request(user("What is the capital of France?")), said("Paris"))
    assert sub.kind == "subagent"
    assert other.kind == "main"
    assert play.threads()[1]["parent"] == play.threads()[0]["id"]
    assert len(play.tree()["sessions"]) == 2


def test_tenants_never_share_a_thread() -> None:
    play = Play()
    first = request(TASK)
    play.step(first, call(ID), identity=Identity(key="a"))
    next_ = grown(first, assistant(call(ID)), results(result(ID)))
    placed = play.step(next_, said("ok"), identity=Identity(key="b"))
    assert placed.new_thread
    assert len(play.tree()["sessions"]) == 2


def test_a_label_names_the_session_and_merges_no_threads() -> None:
    play = Play()
    night = Identity(labels={"session": "nightly"})
    play.step(request(user("one")), said("1"), identity=night)
    play.step(request(user("two")), said("2"), identity=night)
    assert play.shape() == [[[[[0]]], [[[1]]]]]


def test_a_label_does_not_hide_what_the_client_says_of_its_agents() -> None:
    play = Play()
    night = Identity(labels={"session": "nightly"})
    play.step(request(TASK, hints=claude()), call(ID, "Agent"), identity=night)
    sub = play.ask(request(TASK, hints=claude(agent="a1")), identity=night)
    other = play.ask(request(TASK, hints=claude(session="s2")), identity=night)
    assert (sub.kind, other.kind) == ("subagent", "main")
    assert [len(session["threads"]) for session in play.tree()["sessions"]] == [3]


@pytest.mark.parametrize("restart", [False, True])
def test_a_refused_request_is_no_step_and_its_retry_resumes_the_turn(restart: bool) -> None:
    play = Play()
    asked = request(TASK)
    exchange = play.ask(request(user("warm up"))).exchange
    placed = play.tracker.place(replace(exchange, id="exc_r", number=7), asked, play.now_ns)
    play.tracker.refuse(placed, Terminal("deny", "budgets", "code", "full", cause="spend"), play.now_ns)
    play.answer(placed, outcome="refused")
    refused = play.threads()[1]["turns"]
    assert [turn["cause"] for turn in refused] == ["spend"]
    assert refused[0]["steps"] == []
    if restart:
        heads = orjson.loads(orjson.dumps(play.tracker.heads()))
        play = Play(now_ns=play.now_ns, count=play.count, ids=play.ids, records=play.records)
        play.tracker.load(heads)
    play.step(asked, said("Hello."))
    resumed = play.threads()[1]["turns"]
    assert len(resumed) == 1
    assert resumed[0]["cause"] == "completed"
    assert [step["exchanges"] for step in resumed[0]["steps"]] == [[7, 1]]
    assert "turn/resume" in [record.type for record in play.records]


def ran(play: Play, run: str, **more: Any) -> ModelRequest:
    """A run's first three steps, whose words are every run's; answers the request of the fourth."""
    asked = request(TASK, **more)
    for number in range(3):
        one = f"toolu_{run}_{number}x7" if run else None
        play.step(asked, said("Let me look."), call(one))
        asked = grown(asked, assistant(said("Let me look."), call(one)), results(result(one)))
    return asked


def refused(play: Play, asked: ModelRequest, *, last: bool = True) -> Placement:
    play.count, number = play.count + 1, play.count
    exchange = Exchange(f"exc_{number}", number, Head("POST", "/"), None, "/", play.now_ns, Identity())
    placed = play.tracker.place(exchange, asked, play.now_ns)
    wait_s = None if last else 1
    why = Terminal("deny", "budgets", "code", "full", cause="steps", retry_after_s=wait_s)
    play.tracker.refuse(placed, why, play.now_ns)
    play.answer(placed, outcome="refused")
    return placed


def test_a_refusal_is_that_of_the_run_whose_calls_it_names() -> None:
    play = Play()
    first = refused(play, ran(play, "aaaa"))
    asked = ran(play, "bbbb")
    second = refused(play, asked)
    assert second.turn != first.turn
    assert (second.step_index, second.relation) == (3, "continue")
    assert play.causes() == ["steps", "steps"]
    again = play.step(asked, said("It is a demo."))  # after a top-up
    assert (again.turn, again.relation) == (second.turn, "attempt")
    assert play.causes() == ["steps", "completed"]


def test_a_request_is_no_attempt_of_one_in_another_dialect() -> None:
    for run, other in (("aaaa", "bbbb"), ("", "")):
        play = Play()
        first = refused(play, ran(play, run))
        assert play.step(request(TASK), outcome="failed").relation == "sibling"
        second = refused(play, replace(ran(play, other, dialect="openai"), dialect="openai"))
        assert (second.turn != first.turn, second.relation) == (True, "continue")


def test_equal_runs_without_ids_are_each_their_own() -> None:
    play = Play()
    first = refused(play, ran(play, ""))
    asked = ran(play, "")
    second = refused(play, asked)
    assert second.turn != first.turn
    assert play.causes() == ["steps", "steps"]


def test_equal_runs_side_by_side_are_each_refused() -> None:
    for ids in (("aaaa", "bbbb"), ("", "")):
        play = Play()
        asked = [request(TASK), request(TASK)]
        for number in range(3):
            placed = [play.ask(one, after_s=0.1) for one in asked]
            for at, run in enumerate(ids):
                one = f"toolu_{run}_{number}x7" if run else None
                play.answer(placed[at], call(one), after_s=0.1)
                asked[at] = grown(asked[at], assistant(call(one)), results(result(one)))
        assert len({refused(play, one).turn for one in asked}) == 2
        assert play.causes() == ["steps", "steps"]


def test_equal_runs_that_both_failed_are_asked_again_each_as_its_own() -> None:
    play = Play()
    asked = [ran(play, "aaaa"), ran(play, "bbbb")]
    failed = [play.step(one, outcome="failed") for one in asked]
    again = [play.step(one, said("ok")) for one in asked]
    assert [one.relation for one in again] == ["attempt", "attempt"]
    assert [one.step for one in again] == [one.step for one in failed]


def test_a_failed_request_without_ids_is_asked_again_though_an_equal_run_rests() -> None:
    play = Play()
    ran(play, "")
    asked = ran(play, "")
    failed = play.step(asked, outcome="failed")
    assert play.step(asked, said("ok")).step == failed.step


def test_a_run_that_waits_its_turn_comes_again_as_itself() -> None:
    play = Play()
    ran(play, "")
    asked = ran(play, "")
    held = refused(play, asked, last=False)
    assert play.step(asked, said("ok")).step == held.step


def test_a_sibling_is_that_of_the_run_whose_calls_it_names() -> None:
    play = Play()
    asked = ran(play, "aaaa")
    first = play.step(asked, said("A demo."))
    play.step(ran(play, "bbbb"), said("A demo."))
    assert play.step(asked, said("A toy.")).relation == "sibling"
    assert play.threads()[1]["parent"] == first.thread


def test_history_held_by_the_provider_is_asked_again_by_its_id() -> None:
    play = Play()
    asked = []
    for name in ("resp_a", "resp_b"):
        first = request(TASK)
        play.step(first, said("A demo."), response_id=name)
        asked.append(request(user("why?"), held=name))
    one, two = (play.step(each, outcome="failed") for each in asked)
    assert one.thread != two.thread
    assert [play.step(each, said("so")).step for each in asked] == [one.step, two.step]


def test_input_right_after_a_refusal_joins_the_refused_turn() -> None:
    for wait, turns in ((5, 1), (11, 2)):
        play = Play()
        first = request(TASK)
        play.step(first, call(ID))
        asked = grown(first, assistant(call(ID)), results(result(ID)))
        exchange = replace(play.ask(request(user("x"))).exchange, id="exc_r", number=9)
        placed = play.tracker.place(exchange, asked, play.now_ns)
        play.tracker.refuse(placed, Terminal("deny", "budgets", "c", "m", cause="steps"), play.now_ns)
        play.answer(placed, outcome="refused", after_s=0)
        play.ask(grown(asked, user("continue")), after_s=wait)
        assert len(play.threads()[0]["turns"]) == turns, wait


def test_a_request_whose_reply_is_still_on_its_way_is_placed_as_its_continuation() -> None:
    play = Play()
    first = request(TASK)
    slow = play.ask(first)
    ahead = play.ask(grown(first, assistant(call(ID)), results(result(ID))))
    play.answer(slow, call(ID))
    play.answer(ahead, said("ok"))
    assert play.shape() == [[[[[0], [1]]]]]
    assert play.causes() == ["completed"]
    assert play.threads()[0]["turns"][0]["steps"][0]["tool_results"] == [{"id": ID, "is_error": False}]


def test_time_ends_what_nobody_continues() -> None:
    play = Play()
    play.step(request(user("one")), call(ID))
    play.step(request(user("two")), outcome="failed")
    play.step(request(user("three")), outcome="client_gone")
    running = play.ask(request(user("four")))
    play.tracker.tick(play.now_ns + 1_780 * 10**9)
    assert play.causes() == [None, None, None, None]
    play.tracker.tick(play.now_ns + 1_801 * 10**9)
    assert play.causes() == ["abandoned", "error", "interrupted", None]
    play.answer(running, said("late"))
    assert play.causes()[-1] == "completed"


def test_an_abandoned_turn_is_resumed_by_its_results() -> None:
    play = Play()
    first = request(TASK)
    play.step(first, call(ID))
    play.tracker.tick(play.now_ns + 2_000 * 10**9)
    play.step(grown(first, assistant(call(ID)), results(result(ID))), said("ok"))
    assert play.causes() == ["completed"]
    assert play.shape() == [[[[[0], [1]]]]]


def test_long_sessions_stay_small() -> None:
    play = Play()
    asked = request(user("x" * 200))
    for n in range(600):
        id = f"toolu_{n:06d}zz"
        play.step(asked, call(id))
        asked = grown(asked, assistant(call(id)), results(result(id)))
        if n % 100 == 0:
            play.records.clear()
    (thread,) = play.tracker.shelf.threads.values()
    assert len(thread.steps) < 48
    scope = thread.scope
    assert len(scope.asks) < 48
    assert len(scope.replies) < 48
    assert len(scope.calls) < 48
    assert play.tracker.shelf.held_bytes < 200_000


def test_a_session_that_others_followed_keeps_few_steps_and_still_goes_on() -> None:
    play = Play()
    asked = first = request(TASK)
    for n in range(20):
        id = f"toolu_{n:06d}zz"
        play.step(asked, call(id))
        asked = grown(asked, assistant(call(id)), results(result(id)))
    for n in range(LIVELY):
        play.step(request(user(f"question {n}")), said("a"))
    thread = next(iter(play.tracker.shelf.threads.values()))
    assert [step.index for step in thread.steps] == [0, 16, 18, 19]
    play.step(asked, said("Done."))
    assert play.threads()[0]["turns"][0]["cause"] == "completed"
    play.step(
        grown(first, assistant(call("toolu_000000zz")), results(result("toolu_000000zz", "no"))), said("x")
    )
    assert [t["parent"] for t in play.threads() if "parent" in t] == [thread.id]


@pytest.mark.parametrize(
    ("known", "packed"),
    [
        ({"loops": {"runs": [1, 2], "near": None, "share": 0.5, "by": {"x": "é"}}}, True),
        ({"mine": {"seen": {1, 2}}}, False),
        ({"mine": {"pair": (1, 2)}}, False),
        ({"mine": {"object": object()}}, False),
        ({"mine": {"large": 1 << 80}}, False),
    ],
)
def test_what_policies_remember_of_a_session_at_rest_comes_back_equal(known: Any, packed: bool) -> None:
    play = Play()
    asked = request(TASK)
    play.step(asked, said("Done."))
    (thread,) = play.tracker.shelf.threads.values()
    thread.memories = known
    for n in range(LIVELY):
        play.step(request(user(f"question {n}")), said("a"))
    assert isinstance(thread.remembered, bytes) is packed
    assert thread.memories == known
    thread.memories["loops"] = {}
    assert thread.memories["loops"] == {}


@pytest.mark.parametrize("text", ["short", "a long answer " * 90, "half an emoji \ud83d, and the rest " * 50])
def test_the_text_of_a_reply_at_rest_is_known_when_it_comes_back_rewritten(text: str) -> None:
    play = Play()
    asked = request(TASK)
    play.step(asked, said(text))
    (thread,) = play.tracker.shelf.threads.values()
    for n in range(LIVELY):
        play.step(request(user(f"question {n}")), said("a"))
    assert isinstance(thread.steps[0].words, bytes) is (len(text) > 1_000)
    play.step(grown(asked, assistant(said(text + " (edited)")), user("Go on.")), said("Yes."))
    assert [len(one.steps) for one in play.tracker.shelf.threads.values()][-1] == 2
    assert thread.steps[0].text == text


def test_what_instances_share_is_not_packed_since_its_objects_tell_what_is_new() -> None:
    play = Play()
    play.step(request(TASK), said("Done."))
    (thread,) = play.tracker.shelf.threads.values()
    thread.memories = {"loops": {"runs": [1]}}
    play.tracker.agree(thread, play.tracker.shared_head(thread), dict(thread.memories))
    thread.rest()
    assert not isinstance(thread.remembered, bytes)


def test_turns_that_ended_are_not_watched_for_long() -> None:
    play = Play()
    for n in range(3_000):
        play.step(request(user(f"question {n}")), said("a"))
    assert len(play.tracker._idle) < 1_600


def test_an_answer_that_ends_after_its_thread_was_forgotten_weighs_nothing() -> None:
    play = Play()
    play.tracker.shelf._max_threads = 3
    late = play.ask(request(TASK))
    for n in range(5):
        play.step(request(user(f"question {n}")), said("a"))
    play.answer(late, said("Done."))
    shelf = play.tracker.shelf
    assert shelf.held_bytes == sum(thread.weight for thread in shelf.threads.values())


def test_a_question_asked_endlessly_is_looked_up_among_its_newest_only() -> None:
    play = Play()
    first = request(TASK)
    for _ in range(3 * EQUALS):
        play.step(first, said("A demo project."))
    scope = next(iter(play.tracker.shelf.scopes.values()))
    for index in (scope.asks, scope.replies, scope.sayings):
        assert max(map(len, index.values())) == EQUALS
    play.step(grown(first, assistant(said("A demo project.")), user("Thanks.")), said("Gladly."))
    assert play.shape()[-1] == [[[[3 * EQUALS - 1]], [[3 * EQUALS]]]]


def test_many_threads_stay_bounded() -> None:
    play = Play()
    play.tracker.shelf._max_threads = 10
    for n in range(50):
        play.step(request(user(f"question {n}")), said("a"))
    assert len(play.tracker.shelf.threads) == 10
    (scope,) = play.tracker.shelf.scopes.values()
    assert len(scope.asks) == 10
    assert len(scope.threads) == 10


def test_what_is_forgotten_waits_for_no_garbage_collection() -> None:
    play = Play()
    play.tracker.shelf._max_threads = 10
    gc.collect()
    gc.disable()
    try:
        for n in range(2_000):
            play.step(request(user(f"question {n}")), said("a"))
            play.tracker.take_ended()
        alive = sum(type(one) is Thread for one in gc.get_objects())
    finally:
        gc.enable()
    assert alive < 1_200  # turns on watch, the newest replies


def test_a_restart_in_mid_turn_continues_the_turn() -> None:
    play = Play()
    first = request(TASK, hints=claude())
    play.step(first, said("Let me look."), call(ID))
    heads = orjson.loads(orjson.dumps(play.tracker.heads()))
    after = Play(now_ns=play.now_ns, count=play.count, ids=play.ids, records=play.records)
    assert after.tracker.load(heads) == 1
    assert after.tracker.load(heads) == 0
    asked = grown(first, assistant(said("Let me look."), call(ID)), results(result(ID)))
    after.step(asked, said("A demo."))
    assert after.shape() == [[[[[0], [1]]]]]
    assert after.causes() == ["completed"]
    after.step(grown(asked, assistant(said("A demo.")), user("more")), said("ok"))
    assert after.shape() == [[[[[0], [1]], [[2]]]]]


def test_a_request_under_way_at_a_restart_is_asked_again() -> None:
    play = Play()
    first = request(TASK)
    play.ask(first)
    after = Play(now_ns=play.now_ns, count=play.count, ids=play.ids, records=play.records)
    after.tracker.load(orjson.loads(orjson.dumps(play.tracker.heads())))
    after.step(first, said("A demo."))
    assert len(after.threads()) == 1
    assert after.causes() == ["completed"]
