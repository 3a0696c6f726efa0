from force_push import ForcePush, ForcePushOptions

from proxy.testing import Failed, Play


def test_the_second_push_is_refused() -> None:
    play = Play(ForcePush(ForcePushOptions(most=1)), action="deny")
    agent = play.agent()
    agent.asks("push it")
    agent.does("bash", {"command": "git push -f"}, "ok")
    agent.does("bash", {"command": "git push --force"}, Failed("no"))
    assert agent.ends().refusal is not None
    assert [finding["severity"] for finding in play.findings] == ["warning", "violation"]


def test_other_pushes_are_left_alone() -> None:
    play = Play(ForcePush())
    agent = play.agent()
    agent.asks("push it")
    agent.does("bash", {"command": "git push --force-with-lease"}, "ok")
    agent.ends()
    assert play.findings == []
