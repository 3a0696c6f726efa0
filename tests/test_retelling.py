"""Whose work a request is, where only prose or ids tell of it: the shapes that agent frameworks send."""

from typing import Any

import pytest

from proxy.model import Hints, Item, Message, ModelRequest
from tests.play import Play, assistant, call, grown, request, result, results, said, system, thought, user

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


def test_another_agent_takes_over_without_the_call_that_handed_over() -> None:
    # AutoGen's Swarm: the reply comes back without its call, what it meant as another user's words.
    play = Play()
    play.step(request(system("You plan."), TASK), said("I hand over."), call(ID, "transfer_to_worker", "{}"))
    gone_on = (WORKER, TASK, assistant(said("I hand over.")), user("Transferred to worker."))
    play.step(request(*gone_on, tools=()), said("A demo."))
    assert play.shape() == [[[[[0], [1]]]]]
    assert play.causes() == ["completed"]


def work(play: Play, **more: Any) -> ModelRequest:
    """Two steps of a run that has not ended yet; what its second one would be answered."""
    first = request(TASK, **more)
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
    assert kinds(play) == [[("main", [[[0], [1], [2]]]), ("main", [[[3]]])]]


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


def test_another_models_call_that_holds_the_task_in_a_template_is_a_side_call() -> None:
    play = Play()
    play.step(request(TASK), call(ID))
    named = f"Find a short title for this.\nUser: {TASK.items[0].text}"
    play.step(request(user(named), tools=(), model="small"), said("A demo"))
    play.step(request(TASK, tools=(), model="other"), said("It is a demo."))  # asked the same, of its own
    assert kinds(play) == [[("main", [[[0]]]), ("side", [[[1]]])], [("main", [[[2]]])]]


def test_a_call_without_tools_that_names_a_call_by_its_id_is_a_side_call() -> None:
    # gptme's title: the client's surroundings stand before the task, so the task as a whole is not quoted.
    play = Play()
    play.step(request(user(f"You are in a folder.\n\n{TASK.items[0].text}")), said("I look."), call(ID))
    named = f"Find a short title.\nAssistant: I look.\n@shell({ID}): ls"
    play.step(request(user(named), tools=()), said("A demo"))
    assert kinds(play) == [[("main", [[[0]]]), ("side", [[[1]]])]]


def test_the_words_of_a_calls_name_tell_of_a_hand_over() -> None:
    # AutoGen's Swarm, where another agent takes over: results and the hand-over are told as user text.
    play = Play()
    play.step(request(system("You plan."), TASK), call(ID, "transfer_to_worker", "{}"))
    told = user("Transferred to Worker, adopting the role of Worker immediately.")
    play.step(request(WORKER, TASK, user("done"), told, **HELPER), said("A demo."))
    assert kinds(play) == [[("main", [[[0]]]), ("subagent", [[[1]]])]]


def test_a_subagent_may_be_told_the_history_along_with_its_task() -> None:
    # Mastra's networks: the conversation without its calls, then the task, under other instructions.
    play, near = Play(), f'{{"prompt":"{NEAR}"}}'
    first = request(system("You plan."), TASK)
    play.step(first, said("I look around."), call(ID))
    second = grown(first, assistant(said("I look around."), call(ID)), results(result(ID)))
    play.step(second, call(OTHER, "agent-worker", near))
    play.step(request(WORKER, TASK, assistant(said("I look around.")), user(NEAR)), said("A demo."))
    play.step(
        grown(second, assistant(call(OTHER, "agent-worker", near)), results(result(OTHER))), said("Done.")
    )
    assert kinds(play) == [[("main", [[[0], [1], [3]]]), ("subagent", [[[2]]])]]


def test_agents_that_read_each_others_replies_are_of_one_session() -> None:
    # AutoGen's group chats: each agent reads the others as the user, under its own instructions.
    play, draft = Play(), "It is a demo of one module, no more."
    first = request(system("You write."), TASK)
    play.step(first, said(draft))
    critic = request(system("You are the critic."), TASK, user(draft), tools=())
    play.step(critic, said("Please say what the module does."))
    news = user("Please say what the module does.")
    play.step(grown(first, assistant(said(draft)), news), said("It greets whoever calls it by name."))
    assert kinds(play) == [[("main", [[[0]], [[2]]]), ("main", [[[1]]])]]


def test_a_reply_that_was_asked_for_word_by_word_ties_nothing() -> None:
    play, words = Play(), "hello to all of you out there"
    for asked in (f"Say these words: {words}", f"And once more: {words}"):
        play.step(request(user(asked), tools=()), said(words))
    assert len(play.shape()) == 2


def test_what_another_agent_did_may_come_back_as_text() -> None:
    # Inspect's hand-over: the other agent goes on with the history; its steps are then told in its name.
    play = Play()
    first = request(system("You plan."), TASK)
    play.step(first, call(ID, "transfer_to_worker", "{}"))
    second = grown(first, assistant(call(ID, "transfer_to_worker", "{}")), results(result(ID)))
    play.step(second, said("I look around."), call(OTHER))
    third = grown(second, assistant(said("I look around."), call(OTHER)), results(result(OTHER)))
    play.step(third, said("It is a demo of one module."))
    told = [assistant(said("[worker] I look around.\nbash(ls)")), user("done")]
    told += [assistant(said("[worker] It is a demo of one module.")), user("The worker has finished.")]
    play.step(grown(second, *told), said("All done."))
    assert kinds(play) == [[("main", [[[0], [1], [2]], [[3]]])]]


def test_a_reply_of_which_only_its_thinking_comes_back_is_gone_on_with() -> None:
    play = Play()
    first = request(TASK)
    play.step(first, call(ID))
    second = grown(first, assistant(call(ID)), results(result(ID)))
    play.step(second, thought("Hm."), said("ok"))
    play.step(grown(second, assistant(thought("Hm.")), user("Is that all?")), said("It is."))
    assert play.shape() == [[[[[0], [1]], [[2]]]]]


def test_a_client_that_sorts_its_history_goes_on_with_its_thread() -> None:
    # CAMEL: by times that are not those of the messages, so that the last reply stands before older calls.
    play, answer = Play(), assistant(said("It is a demo of one module."))
    first = request(TASK)
    play.step(first, call(ID))
    second = grown(first, assistant(call(ID)), results(result(ID)))
    play.step(second, call(OTHER))
    third = grown(second, assistant(call(OTHER)), results(result(OTHER)))
    play.step(third, *answer.items)
    more = user("And what is it for?")
    play.step(
        request(*second.messages, answer, *third.messages[3:4], more, third.messages[4]), said("For us.")
    )
    assert play.shape() == [[[[[0], [1], [2]], [[3]]]]]


def test_a_branch_that_says_the_same_again_is_a_branch() -> None:
    play, again = Play(), assistant(said("It is a demo of one module."))
    first = request(TASK)
    play.step(first, *again.items)
    second = grown(first, again, user("Look again."))
    play.step(second, *again.items)
    play.step(grown(first, again, user("What is it for?")), said("For us."))
    assert len(play.threads()) == 2


@pytest.mark.parametrize("session", [None, "run-1"])
def test_several_replies_in_one_text_are_a_transcript(session: str | None) -> None:
    # OpenHands' condenser: the first words stay in the list, so the events to be summed up hold no task.
    play, hints = Play(), Hints(session=session)
    third = work(play, hints=hints)
    told = "Events:\nLet me look at the project.\n---\nAnd now count the lines of it.\nSummarize them."
    play.step(request(user(told), tools=(), hints=hints), said("They looked."))
    play.step(third, said("A demo."))
    assert kinds(play) == [[("main", [[[0], [1], [3]]]), ("side", [[[2]]])]]


def test_an_agent_that_takes_over_may_read_the_replies_without_their_calls() -> None:
    # Microsoft's Agent Framework: calls and results are taken out of the history that is handed over.
    play = Play()
    first = request(system("You plan."), TASK)
    play.step(first, said("I look at the files."), call(ID))
    second = grown(first, assistant(said("I look at the files."), call(ID)), results(result(ID)))
    play.step(second, said("Over to the worker of this team."), call(OTHER, "handoff_to_worker", "{}"))
    told = (assistant(said("I look at the files.")), assistant(said("Over to the worker of this team.")))
    play.step(request(WORKER, TASK, *told, **HELPER), said("A demo."))
    assert play.shape() == [[[[[0], [1], [2]]]]]


@pytest.mark.parametrize(("tool", "kind"), [("Handoff-transfer_to_worker", "subagent"), ("bash", "main")])
def test_who_is_asked_the_same_while_a_hand_over_waits_has_taken_over(tool: str, kind: str) -> None:
    # Semantic Kernel's hand-off: the next agent gets the task alone.
    play = Play()
    play.step(request(system("You plan."), TASK), call(ID, tool, "{}"))
    play.step(request(WORKER, TASK, **HELPER), said("A demo."))
    assert play.threads()[-1]["kind"] == kind
    assert len(play.shape()) == (1 if kind == "subagent" else 2)


def test_an_agent_may_read_anothers_reply_as_its_own() -> None:
    # Semantic Kernel's sequence: two replies in one, as the assistant's words.
    play = Play()
    play.step(work(play), said("A demo of one module, with nothing else."))
    read = assistant(said("And so it went.A demo of one module, with nothing else."))
    play.step(request(system("You review."), read, tools=()), said("Good."))
    assert kinds(play) == [[("main", [[[0], [1], [2]]]), ("main", [[[3]]])]]
