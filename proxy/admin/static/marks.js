// Small marks that several views use.

import { h, line } from "./dom.js";
import { ago, causeTone, clock, SEVERITY, short } from "./words.js";

export function since(text) {
  return h("time", { datetime: text, title: clock(text), "data-ago": "" }, ago(text));
}

/** A column's title for those who do not see that none is needed. */
export function unseen(text) {
  return h("span", { class: "aside" }, text);
}

/** An id as a link where there is a view for it, else as text. */
export function whose(id) {
  if (/^trn_/.test(id ?? "")) return turnLink(id);
  if (/^ses_/.test(id ?? "")) return h("a", { class: "mono", href: `#/turns?session=${encodeURIComponent(id)}` }, short(id));
  return h("span", { class: "inline" }, line(/^(thr|stp)_/.test(id ?? "") ? short(id) : id ?? "", 60));
}

/** Keep the ages true; the page does it now and then. */
export function ageAll() {
  for (const one of document.querySelectorAll("time[data-ago]")) one.textContent = ago(one.dateTime);
}

export function cause(turn) {
  const word = turn.open ? (turn.held ? "held" : "open") : turn.cause ?? "?";
  return h("span", { class: `badge ${causeTone(turn)}`, title: turn.by ? `by ${line(turn.by, 40)}` : null }, line(word, 24));
}

export function severity(word) {
  return h("span", { class: `badge ${SEVERITY[word] ?? ""}` }, line(word, 16));
}

export function labels(of) {
  return Object.entries(of ?? {}).slice(0, 8).map(([name, value]) => h("span", { class: "tag inline", title: line(`${name}=${value}`, 140) }, line(`${name}=${value}`, 40)));
}

export function turnLink(id, text) {
  return h("a", { href: `#/turn/${encodeURIComponent(id)}`, class: "mono" }, text ?? short(id));
}

export function failed(error) {
  return h("p", { class: "said", role: "alert" }, error.message);
}
