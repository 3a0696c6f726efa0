"""From settings to the chain: which policies run, in which order, with which options."""

from pathlib import Path

import pytest

from policies import TABLE
from policies.history import History
from proxy import rulebook
from proxy.config import ConfigError, load


def settings(tmp_path: Path, text: str) -> object:
    file = tmp_path / "looptap.yaml"
    file.write_text(text)
    return load(file, environ={})


def test_all_built_in_policies_observe_by_default(tmp_path: Path) -> None:
    links = rulebook.chain(settings(tmp_path, "mode: enforce\n")).links  # type: ignore[arg-type]
    assert [link.policy.name for link in links] == list(TABLE)
    assert {link.action for link in links} == {"observe"}


def test_settings_switch_off_arm_and_tune(tmp_path: Path) -> None:
    text = "policies:\n  pairing: {enabled: false}\n  thinking: {action: deny}\n  history: {excerpts: true}\n"
    links = {link.policy.name: link for link in rulebook.chain(settings(tmp_path, text)).links}  # type: ignore[arg-type]
    assert "pairing" not in links
    assert links["thinking"].action == "deny"
    history = links["history"].policy
    assert isinstance(history, History)
    assert history.options.excerpts is True


def test_a_wrong_option_is_told_with_its_place(tmp_path: Path) -> None:
    made = settings(tmp_path, "policies:\n  history: {excerptz: true}\n")
    with pytest.raises(ConfigError) as caught:
        rulebook.chain(made)  # type: ignore[arg-type]
    assert "looptap.yaml:2" in str(caught.value.problems[0])
