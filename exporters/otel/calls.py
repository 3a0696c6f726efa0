"""The GenAI conventions' metrics of model calls and agent runs, added up from records.

Newest names, and the older pair that dashboards still read where ``compat`` asks for it. No id ever is
an attribute; a bounded number of models, agents and errors have their names, the rest counts as one.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

from exporters.otel.names import agent_of, chat_error, provider_of, turn_error
from exporters.series import Buckets, Names, Sums
from proxy.model import Record
from proxy.ports import Reading, Spread

DURATIONS_S = tuple(0.01 * 2**n for n in range(14))
TOKENS = tuple(float(4**n) for n in range(14))
RUNS_S = tuple(0.1 * 2**n for n in range(13))
COUNTS = tuple(float(2**n) for n in range(8))
FIRST_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
PER_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
UNITS = {"duration": "s", "first_chunk": "s", "first_token": "s", "output_token": "s", "usage": "{token}",
         "tokens": "{token}", "inference_calls": "{inference_call}", "tool_calls": "{tool_call}"}  # fmt: skip
"""By how a metric's name ends."""
MAX_MODELS = 200
MAX_AGENTS = 100
MAX_ERRORS = 50
_MOST_TURNS = 10_000
_USAGE = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cache_read_tokens": "cache_read.input_tokens",
    "cache_write_tokens": "cache_write.input_tokens",
    "reasoning_tokens": "reasoning.output_tokens",
}
_CALL = (
    "gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model", "gen_ai.response.model",
    "server.address", "server.port",
)  # fmt: skip


class Calls:
    """One per process; used from one thread."""

    def __init__(self, compat: bool) -> None:
        self._models, self._agents = Names(MAX_MODELS), Names(MAX_AGENTS)
        self._errors = Names(MAX_ERRORS, "_OTHER")
        self._tool_calls: OrderedDict[str, int] = OrderedDict()
        """By turn under way: the tools that its steps asked for."""
        name = "gen_ai.client.inference."
        wrong = (*_CALL, "error.type")
        modal = (*_CALL, "gen_ai.token.modality")
        self._duration = Buckets(f"{name}duration", "Of a model call.", DURATIONS_S, *wrong)
        self._first = Buckets(
            f"{name}time_to_first_chunk", "Until a stream's first output.", DURATIONS_S, *_CALL
        )
        self._usage = {
            kind: Sums(f"{name}usage.{end}", "Tokens as the provider counted them.", *modal)
            for kind, end in _USAGE.items()
        }
        self._per_call = {
            kind: Buckets(f"{name}operation.{kind}", "Tokens of one model call.", TOKENS, *wrong)
            for kind in ("input_tokens", "output_tokens")
        }
        run = ("gen_ai.agent.name", "error.type")
        self._run = Buckets("gen_ai.invoke_agent.duration", "Of a turn.", RUNS_S, *run)
        self._run_calls = Buckets(
            "gen_ai.invoke_agent.inference_calls", "Model calls of a turn.", COUNTS, *run
        )
        self._run_tools = Buckets("gen_ai.invoke_agent.tool_calls", "Tool calls of a turn.", COUNTS, *run)
        self._older: dict[str, Buckets] = {}
        if compat:
            typed = (*_CALL, "gen_ai.token.type")
            self._older = {
                "duration": Buckets(
                    "gen_ai.client.operation.duration", "Of a model call.", DURATIONS_S, *wrong
                ),
                "usage": Buckets("gen_ai.client.token.usage", "Tokens of one model call.", TOKENS, *typed),
                "first": Buckets(
                    "gen_ai.server.time_to_first_token", "Until a stream's first output.", FIRST_S, *_CALL
                ),
                "per_token": Buckets(
                    "gen_ai.server.time_per_output_token", "After the first one.", PER_TOKEN_S, *_CALL
                ),
            }

    def count(self, record: Record) -> None:
        """Take one record."""
        data = record.data
        if record.type == "step/attempt":
            if data.get("outcome") != "refused":  # no model was asked
                self._attempt(data)
        elif record.type == "step/end" and record.turn is not None:
            asked = self._tool_calls.pop(record.turn, 0) + len(data.get("tool_calls") or ())
            self._tool_calls[record.turn] = asked
            if len(self._tool_calls) > _MOST_TURNS:
                self._tool_calls.popitem(last=False)
        elif record.type == "turn/end":
            self._turn(record, data)

    def figures(self) -> Iterator[Reading | Spread]:
        """As they stand."""
        for sums in self._usage.values():
            yield sums.reading()
        for buckets in (
            self._duration, self._first, *self._per_call.values(), self._run, self._run_calls,
            self._run_tools, *self._older.values(),
        ):  # fmt: skip
            yield buckets.spread()

    def _attempt(self, data: Mapping[str, Any]) -> None:
        call = self._labels(data)
        wrong = chat_error(data)
        error = self._errors.of(wrong[0]) if wrong is not None else ""
        usage: Mapping[str, int] = data.get("usage") or {}
        for kind, sums in self._usage.items():
            if kind in usage or kind in self._per_call:
                sums.add(usage.get(kind, 0), *call, "unknown")
        for kind, buckets in self._per_call.items():
            buckets.add(usage.get(kind, 0), *call, error)
            if kind in usage:
                self._old("usage", usage[kind], *call, kind.removesuffix("_tokens"))
        sent, ended = data.get("sent_ns") or data.get("arrived_ns"), data.get("ended_ns")
        if sent is None or ended is None:
            return
        self._duration.add((ended - sent) / 1e9, *call, error)
        self._old("duration", (ended - sent) / 1e9, *call, error)
        first = data.get("first_output_ns")
        if data.get("streaming") and first is not None:
            self._first.add((first - sent) / 1e9, *call)
            self._old("first", (first - sent) / 1e9, *call)
            if (tokens := usage.get("output_tokens", 0)) > 1:
                self._old("per_token", (ended - first) / 1e9 / (tokens - 1), *call)

    def _turn(self, record: Record, data: Mapping[str, Any]) -> None:
        run = (self._agents.of(agent_of(data) or ""), turn_error(data.get("cause")) or "")
        tools = self._tool_calls.pop(record.turn, 0) if record.turn is not None else 0
        if (began := data.get("began_ns")) is not None:
            self._run.add((record.time_ns - began) / 1e9, *run)
        self._run_calls.add(data.get("steps", 0), *run)
        self._run_tools.add(tools, *run)

    def _old(self, name: str, value: float, *labels: str) -> None:
        if (buckets := self._older.get(name)) is not None:
            buckets.add(value, *labels)

    def _labels(self, data: Mapping[str, Any]) -> tuple[str, ...]:
        asked = str(data.get("requested_model") or data.get("model") or "")
        told = str(data.get("model") or "")
        pair = self._models.of(f"{asked}\n{told}")  # together, so that they cannot multiply
        asked, _, told = pair.partition("\n") if "\n" in pair else (pair, "", pair)
        port = data.get("port")
        return (
            "chat", provider_of(data), asked, told, str(data.get("host") or ""), str(port) if port else "",
        )  # fmt: skip


def unit_of(name: str) -> str:
    """The unit of a metric of the conventions."""
    return next((unit for end, unit in UNITS.items() if name.endswith(end)), "1")
