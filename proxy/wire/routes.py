"""Which upstream a request goes to: target and fields in, a ``Route`` out. Pure.

The order is the contract's: labels are taken off, then the first path segment names an upstream,
else the shape of the path and the auth and version fields tell the API, else ``default_upstream``,
else a 404 that names what could have been asked for.

Join rule: what follows the name is appended, byte for byte, to the path of the upstream's URL
(without that path's trailing slash). One nicety: where the URL's path ends in a version segment
(``/v1``) and the rest begins with the very same one, it is written once, so that both
``…/acme`` and ``…/acme/v1`` work as base URL whichever way the provider's own was copied.

The one invariant: the target only ever becomes the *path* of a configured upstream. Nothing in it
(``//host``, ``@host``, ``http://host``, dots, escapes) is read as a place to connect to.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from proxy.model import Api, Head, Upstream

MAX_LABELS = 8
MAX_LABEL_CHARS = 64
LABEL_FIELD = b"x-looptap-label-"

_VERSION = re.compile(r"/v\d+(?:alpha|beta)?\d*$")
_ANTHROPIC_PATH = re.compile(r"(?:/v1)?/messages(?:/|$)")
_OPENAI_PATH = re.compile(r"(?:/v1)?/(?:chat/completions|responses)(?:/|$)")
_GEMINI_VERB = re.compile(r"/v1(?:alpha|beta)?\d*/[^?]*:[A-Za-z]+$")
_GEMINI_ONLY = re.compile(r"(?:/upload)?/v1(?:alpha|beta)\d*(?:/|$)")
_UNDER_V1 = re.compile(r"/v1(?:/|$)")
_GEMINI_KEY = re.compile(r"[?&]key=")
_LABEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class Route:
    """Where a request goes and what it asks for there."""

    upstream: Upstream
    target: str
    """What goes on the request line: the URL's path, then the raw rest with its query."""
    path: str
    """Path below the upstream, without query: what a dialect is chosen by."""
    labels: Mapping[str, str] = field(default_factory=dict)


class Unroutable(Exception):
    """The request cannot be sent anywhere; ``status`` and the words go to the client."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class RouteTable:
    """The configured upstreams and how requests find them. Immutable; replaced on reload."""

    def __init__(self, upstreams: Sequence[Upstream], default: str | None = None) -> None:
        self.upstreams = {upstream.name: upstream for upstream in upstreams}
        if default is not None and default not in self.upstreams:
            raise ValueError(f"default_upstream {default!r} is not among the upstreams")
        self._default = self.upstreams[default] if default is not None else None
        self._prefixes = {upstream.name: _base_path(upstream.url) for upstream in upstreams}
        self._by_api: dict[Api, Upstream] = {}
        for upstream in upstreams:
            if upstream.name == upstream.api or upstream.api not in self._by_api:
                self._by_api[upstream.api] = upstream

    def route(self, head: Head, *, own_fields: bool = True) -> Route:
        """Find the upstream. ``own_fields=False`` says that no field of ours is in the head."""
        target = head.target
        if target[:1] != "/":
            raise Unroutable(
                400, "the request target must be a path such as /v1/messages; Looptap is no forward proxy"
            )
        labels: dict[str, str] = {}
        if target.startswith("/@"):
            segment, target = _first_segment(target)
            labels = _path_labels(segment[1:])
        if own_fields:
            _field_labels(head, labels)
        if len(labels) > MAX_LABELS:
            raise Unroutable(400, f"{len(labels)} labels given; at most {MAX_LABELS} are taken")
        segment, rest = _first_segment(target)
        upstream = self.upstreams.get(segment)
        if upstream is None:
            rest = target
            upstream = self._by_shape(head, target)
        path = rest.partition("?")[0]
        return Route(upstream, self._join(upstream, rest), path or "/", labels)

    def _by_shape(self, head: Head, target: str) -> Upstream:
        path, _, query = target.partition("?")
        api = _api_of(head, path, query)
        upstream = (self._by_api.get(api) if api is not None else None) or self._default
        if upstream is None:
            names = ", ".join(sorted(self.upstreams)) or "none"
            raise Unroutable(
                404,
                "no upstream for this path; begin it with the name of one, as in /NAME/v1/..., "
                f"or set default_upstream. Upstreams: {names}",
            )
        return upstream

    def _join(self, upstream: Upstream, rest: str) -> str:
        prefix = self._prefixes[upstream.name]
        if prefix and (version := _VERSION.search(prefix)):
            segment = version.group()
            if rest.startswith(segment) and rest[len(segment) : len(segment) + 1] in ("/", "?", ""):
                rest = rest[len(segment) :]
        if rest[:1] == "/":
            return prefix + rest
        return (prefix or "/") + rest


def _base_path(url: str) -> str:
    return urlsplit(url).path.rstrip("/")


def _first_segment(target: str) -> tuple[str, str]:
    """``/name/rest?query`` as (``name``, ``/rest?query``); the rest is untouched."""
    end = target.find("/", 1)
    query = target.find("?", 1)
    if query != -1 and (end == -1 or query < end):
        end = query
    return (target[1:], "") if end == -1 else (target[1:end], target[end:])


def _api_of(head: Head, path: str, query: str) -> Api | None:
    """The API that a path without an upstream's name belongs to, None where nothing tells."""
    if _ANTHROPIC_PATH.match(path):
        return "anthropic"
    if _OPENAI_PATH.match(path):
        return "openai"
    if _GEMINI_ONLY.match(path) or (head.method == "POST" and _GEMINI_VERB.match(path)):
        return "gemini"
    names = {name.lower() for name, _ in head.headers}
    if b"x-goog-api-key" in names or (query and _GEMINI_KEY.search("?" + query)):
        return "gemini"
    if b"anthropic-version" in names or b"anthropic-beta" in names or b"x-api-key" in names:
        return "anthropic"
    if path == "/api/hello" or (path == "/" and (head.get(b"user-agent") or b"").startswith(b"claude-")):
        return "anthropic"  # Claude Code's start-up probes, whatever it authenticates with
    if b"authorization" in names and (_UNDER_V1.match(path) or (path == "/" and head.method == "HEAD")):
        return "openai"
    return None


def _path_labels(text: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    for pair in text.split(","):
        name, equals, value = pair.partition("=")
        if not equals:
            raise Unroutable(400, "labels in the path are written /@name=value,name=value/...")
        _add_label(labels, unquote(name), unquote(value))
    return labels


def _field_labels(head: Head, labels: dict[str, str]) -> None:
    """Labels from fields; a field is closer to the request than the base URL, so it wins."""
    for name, value in head.headers:
        if name[:16].lower() == LABEL_FIELD:
            _add_label(labels, name[16:].decode("latin-1"), value.decode("utf-8", "replace"))


def _add_label(labels: dict[str, str], name: str, value: str) -> None:
    name = name.lower()
    if not _LABEL_NAME.fullmatch(name) or len(name) > MAX_LABEL_CHARS:
        raise Unroutable(
            400,
            f"a label's name is 1 to {MAX_LABEL_CHARS} letters, digits, dots, dashes or underscores",
        )
    if not value or len(value) > MAX_LABEL_CHARS or not value.isprintable():
        raise Unroutable(400, f"label {name!r} needs a value of 1 to {MAX_LABEL_CHARS} printable characters")
    labels[name] = value
