"""What policies/README.md says holds: every policy has its section, every example is a valid config."""

import re
from pathlib import Path
from typing import Any

import pytest

from policies import TABLE
from proxy import rulebook
from proxy.config import load
from proxy.terminal.wording import inert

TEXT = (Path(__file__).parents[2] / "policies" / "README.md").read_text()
BLOCKS = [block for block in re.findall(r"```yaml\n(.*?)```", TEXT, re.S) if block.startswith("policies:")]
EXAMPLE = Path(__file__).parents[1] / "example_policy"
CLAIMS = Path(__file__).parents[1] / "example_claims"
OWN = tuple(TABLE)
OTHERS = ("force_push", "long_prompts")


@pytest.mark.parametrize("name", OWN)
def test_each_policy_has_a_section_with_an_example_and_its_limits(name: str) -> None:
    section = TEXT.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    assert f'"policy": "{name}"' in section
    assert f"  {name}:" in section
    assert "*Cannot catch*" in section
    assert "*Off*" in section
    options: Any = TABLE[name].Options
    for key in getattr(options, "model_fields", getattr(options, "__dataclass_fields__", ())):
        assert key in section or key in {"edits", "near", "blind", "waiting", "least"}, key


@pytest.mark.parametrize(
    "block", [b for b in BLOCKS if not any(o in b for o in OTHERS)], ids=lambda b: inert(b[10:40])
)
def test_each_example_is_a_valid_config(block: Any, tmp_path: Path) -> None:
    file = tmp_path / "looptap.yaml"
    file.write_text(block)
    assert rulebook.chain(load(file)).links


def test_there_are_examples() -> None:
    assert len(BLOCKS) >= 8


def test_every_policy_stands_in_the_list_at_the_top() -> None:
    top = TEXT.partition("\n## ")[0]
    assert [name for name in ("budgets", *TABLE) if f"| [`{name}`](#{name}) |" not in top] == []


@pytest.mark.parametrize("name", ["force_push.py", "pyproject.toml", "test_force_push.py"])
def test_the_page_for_people_who_write_their_own_shows_the_example_as_it_is(name: str) -> None:
    page = TEXT.partition("\n## Write your own")[2]
    assert f"```{'toml' if name.endswith('toml') else 'python'}\n{(EXAMPLE / name).read_text()}```\n" in page


def test_the_page_shows_the_example_with_claims_as_it_is() -> None:
    page = TEXT.partition("\n### Have something held")[2]
    assert f"```python\n{(CLAIMS / 'long_prompts.py').read_text()}```\n" in page
