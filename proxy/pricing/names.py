"""Model ids as providers, clouds and clients spell them, and the plainer names behind them.

``models/gemini-2.5-pro``, ``us.anthropic.claude-sonnet-4-5-20250929-v1:0``,
``anthropic/claude-sonnet-5`` and ``claude-opus-4-6[1m]`` name models that the price list knows under
other spellings. Only spelling is undone here: never a version, a size or a variant.
"""

import re
from collections.abc import Iterator

_PATH = re.compile(r"^(?:.*/)?(?:models|deployments|inference-profile|foundation-model)/")
_REGION = re.compile(r"^(?:us|eu|apac|au|ca|jp|global|us-gov)\.(?=[a-z0-9-]+\.)")
_VENDOR_DOT = re.compile(r"^(?:anthropic|amazon|meta|mistral|cohere|deepseek|openai|ai21|qwen|writer)\.")
_BEDROCK_VERSION = re.compile(r"-v\d+(?::\d+)?$")
_VENDOR_SLASH = re.compile(
    r"^(?:anthropic|openai|azure|azure_ai|google|gemini|vertex_ai|bedrock|aws|x-ai|xai|deepseek|mistral|mistralai"
    r"|groq|cohere|moonshotai|minimax|qwen|z-ai|zai|meta-llama|openrouter|together_ai|fireworks_ai|perplexity"
    r"|litellm_proxy|publishers/[a-z0-9-]+/models)/"
)
"""Only vendors: before any other slash stands somebody's name, and behind it perhaps their own model."""
_MARKER = re.compile(r"\[[^\]]*\]$|:beta$|@latest$")
_LATEST = re.compile(r"-latest$")
_DATE = re.compile(r"[-@](?:20\d{6}|20\d{2}-\d{2}-\d{2})$")


def spellings(model: str) -> Iterator[str]:
    """The id as it is, then ever plainer ones, each once."""
    seen = set()
    for name in _plainer(model.strip().lower()):
        if name and name not in seen:
            seen.add(name)
            yield name


def _plainer(name: str) -> Iterator[str]:
    yield name
    name = _MARKER.sub("", name)
    yield name
    name = _PATH.sub("", name)
    yield name
    while True:
        yield from _bedrock(name)
        yield from _undated(name)
        shorter = _VENDOR_SLASH.sub("", name)
        if shorter == name:
            return
        name = shorter
        yield name


def _bedrock(name: str) -> Iterator[str]:
    """``us.anthropic.claude-…-20250929-v1:0``: a region, a vendor, a model and its version on Bedrock."""
    name = _REGION.sub("", name)
    yield name
    bare = _VENDOR_DOT.sub("", name)
    if bare != name:
        bare = _BEDROCK_VERSION.sub("", bare)
        yield bare
        yield from _undated(bare)


def _undated(name: str) -> Iterator[str]:
    yield _LATEST.sub("", name)
    yield _DATE.sub("", name)
