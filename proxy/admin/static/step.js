// One step: its attempts with their exact bytes, what the model saw with the new part marked, what it said.

import { get } from "./api.js";
import { h, inert, line, put, quoted } from "./dom.js";
import { findingOf } from "./findings.js";
import { failed } from "./marks.js";
import { count, duration, many, money, time } from "./words.js";

export function stepPanel(turn, step, place, events) {
  const seen = h("div", { class: "body" }, h("p", { class: "dim" }, "Loading …"));
  get(`steps/${encodeURIComponent(step.id)}/seen`).then(
    (told) => put(seen, shown(told, turn)),
    (error) => put(seen, error.status === 404 ? h("p", { class: "dim" }, "The request of this step is not in the record (record: digest keeps none), or no dialect reads it.") : failed(error)));
  return h("section", { class: "sheet", "aria-label": `Step ${place + 1}` },
    h("header", {}, h("h2", {}, `What the model saw at step ${place + 1}`), h("span", { class: "dim" }, line(step.model ?? "", 60)),
      h("span", { class: "spring" }), (step.attempts ?? []).map((attempt, n) => downloads(step, attempt, n, step.attempts.length))),
    step.findings.map((one) => turn.findings[one] && findingOf(turn.findings[one], turn, null)),
    seen, reply(step, events));
}

function downloads(step, attempt, n, all) {
  const path = `/api/v1/steps/${encodeURIComponent(step.id)}`;
  const which = all > 1 ? ` ${n + 1}` : "";
  const took = duration(time(attempt.ended_at) - time(attempt.started_at));
  return h("span", { title: `${attempt.outcome}, ${took}, ${money(attempt.cost_usd, attempt.cost_quality)}` },
    h("a", { class: "button", download: `${step.id}-request${n + 1}.bin`, href: `${path}/request?attempt=${n + 1}` }, `↓ request${which}`), " ",
    h("a", { class: "button", download: `${step.id}-response${n + 1}.bin`, href: `${path}/response?attempt=${n + 1}` }, `↓ response${which}`));
}

function shown(told, turn) {
  const before = turn.steps.findIndex((one) => one.id === told.previous);
  const since = told.previous === null ? "" : before >= 0 ? ` since step ${before + 1}` : " since the step before";
  const groups = [];
  for (const part of told.parts) {
    const last = groups.at(-1);
    if (last && last.fresh === part.new) last.parts.push(part);
    else groups.push({ fresh: part.new, parts: [part] });
  }
  const fresh = told.parts.filter((part) => part.new).length;
  return [
    h("p", { class: "dim" }, `${many(told.parts.length, "part")} in ${told.bytes.toLocaleString("en")} bytes; `, h("b", {}, `${count(fresh)} new${since}`), "."),
    told.inserted.map((text) => h("article", { class: "message ours" }, h("header", {}, h("b", {}, "added by Looptap"), h("span", { class: "dim" }, "as it stands in the request")), quoted(text))),
    groups.map((group) => (group.fresh ? group.parts.map((part) => message(part)) : old(group.parts, since))),
  ];
}

/** What the model had seen before is folded, and drawn only when it is opened. */
function old(parts, since) {
  const folded = h("details", {}, h("summary", {}, `${many(parts.length, "part")} unchanged${since}`));
  folded.addEventListener("toggle", () => {
    if (folded.open && folded.children.length === 1) folded.append(...parts.map((part) => message(part)));
  });
  return folded;
}

function message(part) {
  const items = part.part === "tools"
    ? h("p", { class: "item inline" }, part.items.map((item) => [h("code", {}, line(item.text, 80)), " "]))
    : part.items.map((item) => itemOf(item));
  return h("article", { class: `message${part.new ? " new" : ""}` },
    h("header", {}, h("b", {}, part.part === "message" ? line(part.role, 20) : part.part), h("code", {}, line(part.path, 80)), part.new ? h("span", { class: "badge good" }, "new") : null),
    items);
}

function itemOf(item) {
  const what = item.kind === "tool_call" ? `call ${item.tool ?? ""}` : item.kind === "tool_result" ? `result ${item.tool ?? ""}` : item.kind;
  const text = item.kind === "tool_call" ? item.arguments ?? "" : item.text;
  return h("div", { class: "item" },
    ["text", "user"].includes(item.kind) ? null : h("h3", {}, line(what, 80), item.is_error ? [" ", h("span", { class: "badge bad" }, "error")] : null),
    text ? quoted(text, item.kind === "tool_call" ? undefined : item.chars) : h("p", { class: "dim" }, "(empty)"));
}

function reply(step, events) {
  const said = events.filter((event) => event.step === step.id && event.type === "item" && event.data.direction === "out");
  if (!said.length) return null;
  return h("div", { class: "body" }, h("h3", {}, `What it said, ${count(step.usage.output_tokens)} tokens`),
    said.map((event) => h("div", { class: "item" },
      h("span", { class: "tag" }, line(event.data.kind === "tool_call" ? `call ${event.data.tool ?? ""}` : event.data.kind, 60)), " ",
      h("span", { class: "inline mono" }, inert(event.data.preview ?? "", 400)),
      h("span", { class: "dim" }, ` ${count(event.data.chars)} characters`))));
}
