"""Whose work a request is, where only prose or ids tell of it: the shapes that agent frameworks send."""

from typing import Any

import pytest

from proxy.model import Item, Message, ModelRequest
from tests.play import Play, assistant, call, grown, request, result, results, said, system, user

TASK = user("Describe the project in this folder.")
ID, OTHER = "call_9d37e282dff85f7c", "call_d02b5ba5c34b34db"
NEAR = "Look at the files in this folder and report."
WORKER = system("You are the worker.")
HELPER = {"tools": request(TASK).tools[:1]}


def kinds(play: Play) -> list[list[tuple[str, list[list[list[int]]]]]]:
    """Sessions of threads: the kind of each and its turns of steps of exchanges."""
    return [
        [(t["kind"], [[s["exchanges"] for s in u["steps"]] for u in t["turns"]]) for t in session["threads"]]
        for session in play.tree()["sessions"]
    ]


def test_results_as_text_behind_calls_as_text_stay_in_the_turn() -> None:
    # smolagents' ToolCallingAgent: the calls of a reply come back as Python text, the results as the user's.
    play = Play()
    first = request(TASK)
    play.step(first, said("I look."), call(ID), call(OTHER, arguments='{"command":"wc"}'))
    told = f"I look.\nCalling tools:\n[{{'id': '{ID}', 'function': 'bash'}}, {{'id': '{OTHER}'}}]"
    placed = play.step(grown(first, assistant(said(told)), user("Observation:\nREADME.md")), said("A demo."))
    assert play.shape() == [[[[[0], [1]]]]]
    assert play.causes() == ["completed"]
    assert [(one.tool, one.text) for one in placed.results] == [("bash", "Observation:\nREADME.md")] * 2
    step = play.threads()[0]["turns"][0]["steps"][0]
    assert [one["id"] for one in step["tool_results"]] == [ID, OTHER]


def test_user_input_behind_calls_as_text_that_names_none_of_them_supersedes() -> None:
    play = Play()
    first = request(TASK)
    play.step(first, said("I look around first."), call(ID))
    play.step(grown(first, assistant(said("I look around first.")), user("never mind")), said("Fine."))
    assert play.causes() == ["superseded", "completed"]


@pytest.mark.parametrize(
    ("handed_on", "words", "kind"),
    [
        (NEAR, f"You're a helpful agent.\nTask:\n{NEAR}\n---\nBe thorough.", "subagent"),
        (NEAR, "You're a helpful agent.\nTask:\nLook elsewhere.\n---\nBe thorough.", "main"),
        ("/home/user/project/src/main.py", "What is in /home/user/project/src/main.py?", "main"),
    ],
)
def test_a_pending_calls_sentence_in_a_template_is_a_subagents_task(
    handed_on: str, words: str, kind: str
) -> None:
    play = Play()
    play.step(request(TASK), call(ID, "helper", f'{{"task":"{handed_on}"}}'))
    play.step(request(user(words)), said("Done."))
    assert play.threads()[-1]["kind"] == kind
    assert len(play.shape()) == (1 if kind == "subagent" else 2)


def test_a_subagent_that_is_called_again_works_for_the_turn_that_calls() -> None:
    # AutoGen's AgentTool: the helper keeps its conversation from one call to the next.
    play, more = Play(), "Count to three for me now."
    first, near = request(TASK), request(WORKER, user(NEAR), **HELPER)
    play.step(first, call(ID, "helper", f'{{"task":"{NEAR}"}}'))
    begun = play.step(near, said("A demo.")).step_state.thread.root_turn()
    second = grown(first, assistant(call(ID, "helper", f'{{"task":"{NEAR}"}}')), results(result(ID)))
    play.step(second, said("It is a demo."))
    third = grown(second, assistant(said("It is a demo.")), user("And count."))
    play.step(third, call(OTHER, "helper", f'{{"task":"{more}"}}'))
    placed = play.step(grown(near, assistant(said("A demo.")), user(more)), said("1 2 3"))
    assert kinds(play) == [[("main", [[[0], [2]], [[3]]]), ("subagent", [[[1]], [[4]]])]]
    root = placed.step_state.thread.root_turn()
    assert begun is not None
    assert root is not None
    assert (begun.index, root.index, root.thread.kind) == (0, 1, "main")


def test_a_subagents_task_stands_behind_a_made_up_exchange() -> None:
    # Qwen Code begins every conversation with its surroundings and an answer that no model gave.
    around, ack = user("This is the folder: README.md"), assistant(said("Got it. Thanks for the context!"))
    play = Play()
    play.step(request(around, ack, TASK), call(ID, "agent", f'{{"prompt":"{NEAR}"}}'))
    play.step(request(WORKER, around, ack, user(NEAR), **HELPER), said("A demo."))
    assert kinds(play) == [[("main", [[[0]]]), ("subagent", [[[1]]])]]


def test_a_conversation_told_to_another_agent_is_that_agents_work_under_the_call() -> None:
    # Google's ADK: the agent that takes over reads the other one's part as the user's prose.
    play = Play()
    play.step(request(system("You plan."), TASK), said("Over."), call(None, "transfer_to_agent", "{}"))
    told = user("[planner] called tool `transfer_to_agent` with parameters: {'agent_name': 'worker'}")
    play.step(request(WORKER, TASK, told, **HELPER), said("A demo."))
    assert kinds(play) == [[("main", [[[0]]]), ("subagent", [[[1]]])]]
    play.step(request(WORKER, TASK, **HELPER), said("A demo."))
    assert len(play.shape()) == 2


def test_another_agent_takes_over_without_the_call_that_handed_over() -> None:
    # AutoGen's Swarm: the reply comes back without its call, what it meant as another user's words.
    play = Play()
    play.step(request(system("You plan."), TASK), said("I hand over."), call(ID, "transfer_to_worker", "{}"))
    gone_on = (WORKER, TASK, assistant(said("I hand over.")), user("Transferred to worker."))
    play.step(request(*gone_on, tools=()), said("A demo."))
    assert play.shape() == [[[[[0], [1]]]]]
    assert play.causes() == ["completed"]


def work(play: Play) -> ModelRequest:
    """Two steps of a run that has not ended yet; what its second one would be answered."""
    first = request(TASK)
    play.step(first, said("Let me look at the project."), call(ID))
    second = grown(first, assistant(said("Let me look at the project."), call(ID)), results(result(ID)))
    play.step(second, said("And now count the lines of it."), call(OTHER))
    return grown(
        second, assistant(said("And now count the lines of it."), call(OTHER)), results(result(OTHER))
    )


TRANSCRIPT = f"Sum this up.\nHuman: {TASK.items[0].text}\nAI: Let me look at the project.\nTool: done"


def test_a_transcript_to_be_summed_up_is_a_side_call_of_its_thread() -> None:
    # LangChain's summarization: the same model, no tools, the history as text; then a list that begins anew.
    play = Play()
    third = work(play)
    play.step(request(user(TRANSCRIPT), tools=()), said("## INTENT\nSay what the project is."))
    summary = user("Here is a summary of the conversation to date:\n## INTENT\nSay what the project is.")
    play.step(request(summary, *third.messages[3:]), said("A demo."))
    assert kinds(play) == [[("main", [[[0], [1], [3]]]), ("side", [[[2]]])]]


def test_a_transcript_may_stand_in_the_instructions() -> None:
    # Agno's session summary, after the turn has ended.
    play = Play()
    play.step(work(play), said("A demo of one module, with nothing else."))
    told = f"{TRANSCRIPT}\nAI: A demo of one module, with nothing else."
    play.step(request(system(told), user("Provide the summary."), tools=()), said("They looked at a demo."))
    assert kinds(play) == [[("main", [[[0], [1], [2]]]), ("side", [[[3]]])]]


def test_an_answer_that_the_next_agent_works_with_is_no_transcript() -> None:
    play = Play()
    play.step(work(play), said("A demo of one module, with nothing else."))
    words = f"Review it.\n{TASK.items[0].text}\nContext: A demo of one module, with nothing else."
    play.step(request(user(words), tools=()), said("Good."))
    assert len(play.shape()) == 2


def test_a_prompt_that_grows_by_its_reply_is_one_thread() -> None:
    # DSPy's ReAct: one message holds all; the reply and its observation are put before the closing words.
    rules, closing = "Interleave thoughts and calls of tools. " * 8, "\nNow answer in the given form."
    play = Play()
    play.step(request(user(f"{rules}Why?{closing}"), tools=()), said("I should list the files at first.\nls"))
    told = f"{rules}Why?\nI should list the files at first.\nls\nREADME.md{closing}"
    play.step(request(user(told), tools=()), said("Because it is a demo."))
    play.step(request(user(f"{rules}Why not, and who are you?{closing}"), tools=()), said("No reason."))
    assert play.shape() == [[[[[0]], [[1]]]], [[[[2]]]]]


def by_id(*names: str) -> list[Message]:
    items = (Item("other", "assistant", form="item_reference", item_id=name) for name in names)
    return [assistant(item) for item in items]


def test_a_reply_that_comes_back_by_its_ids_goes_on_with_its_own_thread() -> None:
    # The AI SDK with history stored at OpenAI: text and reasoning are only referred to.
    def answer(name: str) -> Item:
        facts: dict[str, Any] = {"item_id": name, "digest": said("A demo.").digest}
        return Item("text", "assistant", "A demo.", **facts)

    play = Play()
    first = request(TASK)
    for name in ("msg_1", "msg_2"):
        play.step(first, answer(name))
    for name in ("msg_1", "msg_2"):
        play.step(grown(first, *by_id("rs_0", name), user("And count to three.")), said("1 2 3"))
    assert play.shape() == [[[[[0]], [[2]]]], [[[[1]], [[3]]]]]
