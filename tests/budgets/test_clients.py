"""Official SDKs with their default retries meet a refusal: one request each, and its words arrive."""

import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import anthropic
import openai
import pytest
from google import genai
from google.genai import errors

from tests.budgets import kit

MESSAGES: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def exhausted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kit.Served]:
    """A proxy whose only key has used up its budget."""
    budget = {"name": "key", "scope": "key", "window": "day", "limits": {"steps": 1}}
    place = tmp_path_factory.mktemp("clients")
    with kit.model() as model, kit.serve(place, model, budgets=[budget]) as proxy:
        assert proxy.ask("first").status == 200
        yield proxy


def anthropic_whole(url: str) -> None:
    with anthropic.Anthropic(base_url=url, api_key="k") as client:
        client.messages.create(model="acme-1", max_tokens=10, messages=MESSAGES)


def anthropic_streamed(url: str) -> None:
    with (
        anthropic.Anthropic(base_url=url, api_key="k") as client,
        client.messages.stream(model="acme-1", max_tokens=10, messages=MESSAGES) as stream,
    ):
        stream.get_final_message()


def openai_chat(url: str) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="k") as client:
        client.chat.completions.create(model="acme-1", messages=MESSAGES)


def openai_chat_streamed(url: str) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="k") as client:
        list(client.chat.completions.create(model="acme-1", messages=MESSAGES, stream=True))


def openai_responses(url: str) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="k") as client:
        client.responses.create(model="acme-1", input="hello")


def google(url: str) -> None:
    with closing(genai.Client(api_key="k", http_options={"base_url": f"{url}/gemini"})) as client:
        client.models.generate_content(model="acme-1", contents="hello")


@pytest.mark.parametrize(
    ("call", "raised"),
    [
        (anthropic_whole, anthropic.APIStatusError), (anthropic_streamed, anthropic.APIStatusError),
        (openai_chat, openai.BadRequestError), (openai_chat_streamed, openai.BadRequestError),
        (openai_responses, openai.BadRequestError), (google, errors.ClientError),
    ],
)  # fmt: skip
def test_ERR_01_and_ERR_04_a_refused_call_is_one_request_with_its_words_in_the_sdks_own_error(
    exhausted: kit.Served, call: Callable[[str], None], raised: type[Exception]
) -> None:
    before = _requests(exhausted)
    with pytest.raises(raised) as caught:
        call(exhausted.url)
    assert "budget 'key' of key unnamed is used up: 1 of 1 steps" in str(caught.value)
    assert _requests(exhausted) == before + 1


def _requests(proxy: kit.Served) -> int:
    """Requests that came to the data port."""
    with urllib.request.urlopen(f"{proxy.admin}/metrics", timeout=kit.WAIT_S) as answer:
        lines = answer.read().decode().splitlines()
    (line,) = [one for one in lines if one.startswith("looptap_requests_total ")]
    return int(float(line.split()[1]))
