"""The scalars of the configuration: durations, sizes, money, addresses, secrets.

Each is read from what a person writes (``30m``, ``5GB``, ``0.25``) and refuses everything else in
words that name the right form. The one invariant: money is ``Decimal``, made from text.
"""

import ipaddress
import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from pydantic import (
    BeforeValidator,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from proxy.config.file import show

DOTS = "•••"

_UNITS_NS = {"ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "d": 86_400 * 10**9}
_DURATION = re.compile(r"(?:[0-9]{1,9}(?:\.[0-9]{1,3})?(?:ms|s|m|h|d))+")
_DURATION_PART = re.compile(r"([0-9.]+)(ms|s|m|h|d)")
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,3})?) ?(k|K|M|G|T)?(i)?B")
_SIZE_POWER = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4}
_NUMBER = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]{1,2})?")
_WHOLE = re.compile(r"[-+]?[0-9]{1,18}")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_HEADER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252})")

MAX_USD = Decimal(10) ** 12
MONEY_DECIMALS = 9
"""Ledgers count integer billionths of a dollar."""


def refuse(message: str, hint: str = "") -> PydanticCustomError:
    """The error of a value that cannot be taken, with a hint that says what can."""
    context = {"text": message, "hint": hint}
    return PydanticCustomError("looptap", "{text}", context)


class _Scalar:
    """A value that pydantic reads with ``parse``, writes as its text and describes with ``_schema``."""

    __slots__ = ()

    @classmethod
    def parse(cls, value: Any) -> Any:
        """The value that a person wrote. Raises what ``refuse`` makes."""
        raise NotImplementedError

    @classmethod
    def _schema(cls) -> JsonSchemaValue:
        """JSON Schema of what may be written."""
        raise NotImplementedError

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.parse, serialization=core_schema.to_string_ser_schema()
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return cls._schema()


@dataclass(frozen=True, slots=True, order=True)
class Duration(_Scalar):
    """A length of time, whole nanoseconds."""

    ns: int

    @property
    def seconds(self) -> float:
        return self.ns / 1e9

    def __str__(self) -> str:
        for unit in ("d", "h", "m", "s"):
            if self.ns % _UNITS_NS[unit] == 0:
                return f"{self.ns // _UNITS_NS[unit]}{unit}"
        return f"{self.ns // _UNITS_NS['ms']}ms"

    @classmethod
    def parse(cls, value: Any) -> "Duration":
        """``30s``, ``5m``, ``2h``, ``1d``, ``1h30m``."""
        if isinstance(value, Duration):
            return value
        hint = "a number with its unit: 30s, 5m, 2h, 1d"
        if not isinstance(value, str) or not _DURATION.fullmatch(value):
            raise refuse(f"{show(value)} is no duration", hint)
        total = sum(Decimal(amount) * _UNITS_NS[unit] for amount, unit in _DURATION_PART.findall(value))
        if total <= 0:
            raise refuse("a duration must be longer than nothing", hint)
        return cls(int(total))

    @classmethod
    def _schema(cls) -> JsonSchemaValue:
        return {"type": "string", "pattern": f"^{_DURATION.pattern}$", "examples": ["30s", "5m", "2h", "1d"]}


class Secret(_Scalar):
    """A value that prints as dots. Only ``reveal`` gives it away."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The value itself, for the one place that sends it."""
        return self._value

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __str__(self) -> str:
        return DOTS

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    @classmethod
    def parse(cls, value: Any) -> "Secret":
        """Any non-empty text."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, str) or not value.strip():
            raise refuse("must be text, and not empty", "take it from the environment: ${NAME}")
        if not value.isprintable():
            raise refuse("holds line breaks or control characters", "check the variable's value")
        return cls(value)

    @classmethod
    def _schema(cls) -> JsonSchemaValue:
        return {"type": "string", "writeOnly": True}


class HeaderValue(Secret):
    """What is sent in a header: prints as dots."""

    __slots__ = ()

    @classmethod
    def parse(cls, value: Any) -> Secret:
        """Text as every protocol carries it in a header."""
        secret = super().parse(value)
        if not secret.reveal().isascii() or secret.reveal() != secret.reveal().strip():
            raise refuse(
                "holds what no header carries: other characters than ASCII, or spaces around it",
                "check its quotes, or the variable's value",
            )
        return secret


class SecretUrl(Secret):
    """A URL that may hold a password or a token; prints with those as dots."""

    __slots__ = ()

    def __str__(self) -> str:
        parts = urlsplit(self._value)
        host = parts.netloc.rpartition("@")[2]
        netloc = f"{DOTS}@{host}" if "@" in parts.netloc else host
        return urlunsplit((parts.scheme, netloc, parts.path, DOTS if parts.query else "", ""))


class RedisUrl(SecretUrl):
    """Where the shared ledger lives."""

    __slots__ = ()

    @classmethod
    def parse(cls, value: Any) -> Secret:
        return _checked_url(cls, value, ("redis", "rediss", "unix"), "redis://host:6379/0")


class WebhookUrl(SecretUrl):
    """Where an alert is posted; many services put the token into the path, so only the host prints."""

    __slots__ = ()

    def __str__(self) -> str:
        parts = urlsplit(self._value)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/{DOTS}"

    @classmethod
    def parse(cls, value: Any) -> Secret:
        return _checked_url(cls, value, ("http", "https"), "https://host/path")


S = TypeVar("S", bound=Secret)


def _checked_url(kind: type[S], value: Any, schemes: tuple[str, ...], example: str) -> Secret:
    if isinstance(value, kind):
        return value
    problem = url_problem(value, schemes, example)
    if problem is not None:
        raise refuse(*problem)
    return kind(value)


def url_problem(value: Any, schemes: tuple[str, ...], example: str) -> tuple[str, str] | None:
    """What is wrong with a URL, without showing it; None if nothing is."""
    if not isinstance(value, str) or not value.isprintable() or " " in value:
        return "must be a URL", f"such as {example}"
    try:
        parts = urlsplit(value)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "is no valid URL", f"such as {example}"
    if parts.scheme not in schemes:
        return (
            f"the URL must begin with {' or '.join(name + '://' for name in schemes[:2])}",
            f"such as {example}",
        )
    if not host and parts.scheme != "unix":
        return "the URL names no host", f"such as {example}"
    return None


@dataclass(frozen=True, slots=True)
class Address(_Scalar):
    """Where to listen."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host.partition("%")[0]).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def is_everywhere(self) -> bool:
        """Whether it stands for all addresses of this machine."""
        return self.host in _LOOPBACK

    @property
    def url(self) -> str:
        """How a client on this machine reaches it."""
        return f"http://{Address(_LOOPBACK.get(self.host, self.host), self.port)}"

    @classmethod
    def parse(cls, value: Any) -> "Address":
        """``127.0.0.1:4040``, ``[::1]:4040``, ``localhost:0``."""
        if isinstance(value, Address):
            return value
        hint = "HOST:PORT, such as 127.0.0.1:4040 or [::1]:4040"
        if not isinstance(value, str):
            raise refuse(f"{show(value)} is no address", hint)
        host, colon, port = value.rpartition(":")
        if not colon or not host:
            raise refuse(f"{show(value)} is no address", hint + "; 0.0.0.0 listens everywhere")
        if not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65_535:
            raise refuse(f"{show(value)} has no port from 0 to 65535", hint)
        bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        if (":" in bare) != (bare != host) or not _is_host(bare):
            raise refuse(f"{show(value)} has no valid host", hint)
        return cls(bare, int(port))

    @classmethod
    def _schema(cls) -> JsonSchemaValue:
        return {"type": "string", "examples": ["127.0.0.1:4040"]}


_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def _is_host(text: str) -> bool:
    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return _HOST.fullmatch(text) is not None and not text.replace(".", "").isdigit()
    return True


def _number(value: Any, what: str) -> Decimal:
    """A number from what YAML or a person gave, exactly."""
    if isinstance(value, bool) or value is None:
        raise refuse(f"{show(value)} is no {what}")
    if isinstance(value, int | Decimal):
        number = Decimal(value)
    elif isinstance(value, float):
        number = Decimal(repr(value))
    elif isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        number = Decimal(value.strip())
    else:
        hint = "write the number alone, without currency signs or commas" if isinstance(value, str) else ""
        raise refuse(f"{show(value)} is no {what}", hint)
    if not number.is_finite() or abs(number) >= MAX_USD:
        raise refuse(f"{show(value)} is no sensible {what}")
    return number


def _price(value: Any) -> Decimal:
    number = _number(value, "price in USD per million")
    if number < 0:
        raise refuse("a price cannot be negative")
    return number


def _money(value: Any) -> Decimal:
    number = _number(value, "amount in USD")
    if number <= 0:
        raise refuse("must be more than 0", "leave the key out for no limit")
    try:
        exact = number == number.quantize(Decimal(1).scaleb(-MONEY_DECIMALS))
    except InvalidOperation:
        exact = False
    if not exact:
        raise refuse(f"has more than {MONEY_DECIMALS} decimals")
    return number


def _share(value: Any) -> Decimal:
    number = _number(value, "share of the limit")
    if not 0 < number <= 100:
        raise refuse(f"{show(value)} is no share of the limit", "0.8 means 80 %, 1.0 the limit itself")
    return number


def _count(value: Any) -> int:
    if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
        value = int(value)
    if isinstance(value, Decimal) and value == value.to_integral_value():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value >= 10**18:
        raise refuse(f"{show(value)} is no whole number")
    if value <= 0:
        raise refuse("must be more than 0", "leave the key out for no limit")
    return value


def _size(value: Any) -> int:
    hint = "a number with its unit: 512MB, 5GB"
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        raise refuse(f"{show(value)} has no unit", hint)
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise refuse(f"{show(value)} is no size", hint)
    amount, prefix, binary = match.groups()
    size = int(Decimal(amount) * (1024 if binary else 1000) ** _SIZE_POWER[prefix or ""])
    if size <= 0:
        raise refuse("must be more than 0", hint)
    return size


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return bool(value == "true")
    raise refuse(f"{show(value)} is neither true nor false")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        hint = (
            f'quote it: "{value}"' if isinstance(value, int | Decimal) and not isinstance(value, bool) else ""
        )
        raise refuse(f"{show(value)} is no text", hint)
    if not value.strip() or not value.isprintable():
        raise refuse("must be text on one line, and not empty")
    return value


def _label(value: Any) -> str:
    if not isinstance(value, str) or not _LABEL.fullmatch(value):
        raise refuse(f"{show(value)} is no name", "letters, digits, _ . and -, at most 64 characters")
    return value


def _header(value: Any) -> str:
    if not isinstance(value, str) or not _HEADER.fullmatch(value):
        hint = "letters, digits, - _ and ., without spaces or a colon: {x-api-key: ${NAME}}"
        raise refuse("is no name of a header", hint)
    return value


def _sha256(value: Any) -> str:
    text = value.lower().removeprefix("sha256:") if isinstance(value, str) else ""
    if not _SHA256.fullmatch(text):
        # The value is not shown: it may be the credential itself.
        hint = '64 hex digits, as `printf %s "$KEY" | sha256sum` prints; never the key itself'
        raise refuse("is no SHA-256", hint)
    return text


def _one_or_many(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


_AS_TEXT = PlainSerializer(str, return_type=str)

# Annotated aliases must be written out, or type checkers do not see them.
Money = Annotated[Decimal, BeforeValidator(_money), _AS_TEXT, WithJsonSchema({"type": ["number", "string"]})]
"""More than nothing, at most nine decimals."""
Price = Annotated[
    Decimal, BeforeValidator(_price), _AS_TEXT, WithJsonSchema({"type": ["number", "string"], "minimum": 0})
]
"""USD per million tokens; 0 is a price (a local model)."""
Share = Annotated[
    Decimal, BeforeValidator(_share), _AS_TEXT, WithJsonSchema({"type": "number", "exclusiveMinimum": 0})
]
Count = Annotated[int, BeforeValidator(_count), WithJsonSchema({"type": "integer", "minimum": 1})]
Bytes = Annotated[
    int,
    BeforeValidator(_size),
    WithJsonSchema({"type": "string", "pattern": f"^{_SIZE.pattern}$", "examples": ["512MB"]}),
]
Flag = Annotated[bool, BeforeValidator(_flag), WithJsonSchema({"type": "boolean"})]
Text = Annotated[str, BeforeValidator(_text)]
Label = Annotated[
    str, BeforeValidator(_label), WithJsonSchema({"type": "string", "pattern": f"^{_LABEL.pattern}$"})
]
Sha256 = Annotated[
    str, BeforeValidator(_sha256), WithJsonSchema({"type": "string", "pattern": f"^{_SHA256.pattern}$"})
]
HeaderName = Annotated[
    str, BeforeValidator(_header), WithJsonSchema({"type": "string", "pattern": f"^{_HEADER.pattern}$"})
]
Texts = Annotated[tuple[Text, ...], BeforeValidator(_one_or_many)]
"""One text or a list of them."""
