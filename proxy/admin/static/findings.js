// Findings: of one turn with evidence and changes, and the newest of all.

import { AGAIN, calmly, follow, get } from "./api.js";
import { h, inert, line, put, tell } from "./dom.js";
import { failed, severity, since, turnLink } from "./marks.js";
import { table } from "./table.js";
import { short } from "./words.js";

const CHANGED = new Set(["thinking", "history", "pairing"]);

/** The findings of a turn; `pick(place)` goes to a step. */
export function findingsOf(turn, pick) {
  if (!turn.findings.length) return null;
  return h("section", { class: "sheet", "aria-label": "Findings" },
    h("header", {}, h("h2", {}, "Findings"), h("span", { class: "dim" }, `${turn.findings.length}`)),
    turn.findings.slice(0, 200).map((finding) => findingOf(finding, turn, pick)));
}

/** One of them; `pick` is null where its step is what one looks at. */
export function findingOf(finding, turn, pick) {
  const place = turn.steps.findIndex((step) => step.id === finding.step);
  const changes = h("div");
  const ask = h("button", { type: "button" }, "What changed");
  ask.addEventListener("click", async () => {
    ask.disabled = true;
    try {
      const told = await get(`steps/${encodeURIComponent(finding.step)}/changes`);
      put(changes, told.changes.length ? told.changes.slice(0, 50).map(change) : h("p", { class: "hint" }, "Item by item, the history came back as it was."));
    } catch (error) {
      put(changes, error.status === 404 ? h("p", { class: "hint" }, "The bodies of this step are not in the record.") : failed(error));
    }
  });
  return h("article", { class: "finding" },
    h("header", {}, severity(finding.severity), h("b", {}, line(`${finding.policy}/${finding.kind}`, 60)),
      finding.consequence ? h("span", { class: "dim" }, line(`${finding.consequence} consequence`, 40)) : null,
      place >= 0 && pick ? h("a", { href: `#/turn/${encodeURIComponent(turn.id)}?step=${place + 1}`, onclick: (event) => { event.preventDefault(); pick(place); } }, `step ${place + 1}`) : null,
      finding.path ? h("code", { class: "dim inline" }, line(finding.path, 120)) : null,
      h("span", { class: "spring" }), CHANGED.has(finding.policy) && finding.step ? ask : null),
    evidence(finding.evidence), changes);
}

export function evidence(of) {
  const entries = Object.entries(of ?? {});
  if (!entries.length) return null;
  const quotes = of.quotes && typeof of.quotes === "object" ? of.quotes : null;
  const pair = quotes && typeof quotes.before === "string" && typeof quotes.after === "string";
  return [
    h("dl", { class: "evidence" }, entries.filter(([name]) => name !== "quotes").map(([name, value]) => pairOf(name, value)),
      quotes && !pair ? Object.entries(quotes).map(([name, value]) => pairOf(name, value)) : null),
    pair ? change({ path: "quoted", how: "changed", kind: "", before: quotes.before, after: quotes.after }) : null,
  ];
}

function pairOf(name, value) {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return h("div", {}, h("dt", {}, line(name.replaceAll("_", " "), 40)), h("dd", { class: "inline" }, inert(text, 1200)));
}

/** What was there and what came back, the differing middle marked. */
export function change(told) {
  const { before, after } = told;
  let head = 0;
  while (head < Math.min(before.length, after.length) && before[head] === after[head]) head += 1;
  let tail = 0;
  while (tail < Math.min(before.length, after.length) - head && before.at(-1 - tail) === after.at(-1 - tail)) tail += 1;
  const side = (text) => {
    const lead = text.slice(Math.max(0, head - 300), head);
    const rest = text.slice(text.length - tail);
    return [head > 300 ? "…" : "", inert(lead), h("mark", {}, inert(text.slice(head, text.length - tail), 6000)), inert(rest.slice(0, 300)), rest.length > 300 ? "…" : ""];
  };
  return h("div", { class: "change" },
    h("header", {}, h("b", {}, told.how), line(told.kind, 30), h("code", { class: "inline" }, line(told.path, 120))),
    told.how === "added" ? null : h("div", { class: "minus quoted" }, told.how === "changed" ? side(before) : inert(before, 6000)),
    told.how === "dropped" ? null : h("div", { class: "plus quoted" }, told.how === "changed" ? side(after) : inert(after, 6000)));
}

const COLUMNS = [
  ["When", (event) => since(event.time)],
  ["Severity", (event) => severity(event.data.severity)],
  ["Finding", (event) => h("a", { href: `#/turns?finding=${encodeURIComponent(`${event.data.policy}/${event.data.kind}`)}` }, line(`${event.data.policy}/${event.data.kind}`, 60))],
  ["Turn", (event) => (event.turn ? turnLink(event.turn) : "")],
  ["Path", (event) => h("code", { class: "dim" }, line(event.data.path ?? "", 90)), "name"],
  ["Evidence", (event) => h("span", { class: "dim" }, line(words(event.data.evidence), 160)), "name wide"],
];

function words(of) {
  return Object.entries(of ?? {}).filter(([name]) => name !== "quotes").map(([name, value]) => `${name} ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ");
}

/** The newest findings of all turns. */
export function findings(main) {
  const rows = table("Findings", COLUMNS, { key: (event) => String(event.seq), go: (event) => (event.turn ? `#/turn/${encodeURIComponent(event.turn)}` : "#/findings") });
  const none = h("p", { class: "none" }, "Loading …");
  put(main, h("div", { class: "head" }, h("h1", {}, "Findings"), h("span", { class: "dim" }, "the newest 200")), h("section", { class: "sheet" }, rows.element, none));
  const load = async () => {
    try {
      const found = await get("findings", { limit: 200 });
      rows.set(found);
      put(none, "No finding. Policies report here what they see.");
      none.hidden = found.length > 0;
    } catch (error) {
      put(none, failed(error));
    }
  };
  const again = calmly(load, 700);
  const off = follow((event) => {
    if (event.type === AGAIN) again();
    if (event.type === "finding") {
      again();
      tell(`New finding: ${event.data.policy} ${event.data.kind} in ${short(event.turn)}`);
    }
  });
  load();
  return () => {
    off();
    again.stop();
  };
}
