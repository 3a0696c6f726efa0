"""From settings to the chain: which policies run, in which order, with which options."""

import sys
from pathlib import Path

import pytest

from policies import TABLE
from policies.history import History
from proxy import rulebook
from proxy.config import ConfigError, load
from tests.plugins import installed

EXAMPLE = Path(__file__).parent / "example_claims"


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


@pytest.mark.parametrize("name", ["long_prompts", "other"])
def test_a_policy_of_ones_own_has_to_bear_the_name_of_its_entry_point(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = installed(EXAMPLE, tmp_path / "site")
    (points,) = place.glob("*/entry_points.txt")
    points.write_text(points.read_text().replace("long_prompts =", f"{name} ="))
    monkeypatch.syspath_prepend(str(place))
    made = settings(tmp_path, f"policies:\n  {name}: {{tokens: 5}}\n")
    if name == "long_prompts":
        assert rulebook.chain(made).has_claims  # type: ignore[arg-type]
        return
    with pytest.raises(ConfigError) as caught:
        rulebook.chain(made)  # type: ignore[arg-type]
    (problem,) = caught.value.problems
    assert str(problem).partition("looptap.yaml:")[2].startswith("2")
    assert "calls itself 'long_prompts'" in str(problem)


OPTIONLESS = """
import dataclasses
class LongPrompts:
    @dataclasses.dataclass
    class Options: pass
    name = "long_prompts"
    def __init__(self, options): {}
"""


@pytest.mark.parametrize(("code", "said"), [
    ("import nowhere_to_be_found", "fails when it is loaded: ModuleNotFoundError: No module named"),
    (OPTIONLESS.format("raise ValueError('a\\nb')"), "fails when it is loaded: ValueError: a b"),
    ("class Other: pass", "AttributeError"),
    (OPTIONLESS.format("pass"), "lacks turn_start, step_start, step_end, turn_end, claims, delta"),
])  # fmt: skip
def test_a_policy_of_ones_own_that_cannot_take_part_is_a_line_about_the_settings(
    code: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = installed(EXAMPLE, tmp_path / "site")
    (place / "long_prompts.py").write_text(code + "\n")
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.delitem(sys.modules, "long_prompts", raising=False)
    made = settings(tmp_path, "policies:\n  long_prompts: {}\n")
    (problem,) = rulebook.problems(made)  # type: ignore[arg-type]
    monkeypatch.delitem(sys.modules, "long_prompts", raising=False)
    assert str(problem).partition("looptap.yaml:")[2].startswith("2")
    assert said in str(problem)
    assert "\n" not in str(problem)
    off = settings(tmp_path, "policies:\n  long_prompts: {enabled: false}\n")
    assert not rulebook.problems(off)  # type: ignore[arg-type]
