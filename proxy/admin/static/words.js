// Numbers and names as people read them. What is not known is “?”, never 0.

const UNKNOWN = "?";

export function count(value) {
  if (value === undefined || value === null) return UNKNOWN;
  const number = Number(value);
  if (number < 10000) return number.toLocaleString("en");
  if (number < 1e6) return `${(number / 1e3).toFixed(number < 1e5 ? 1 : 0)}k`;
  return `${(number / 1e6).toFixed(number < 1e7 ? 2 : 1)}M`;
}

export function many(value, word) {
  return `${count(value)} ${word}${value === 1 ? "" : "s"}`;
}

export function money(value, quality) {
  if (value === undefined || value === null) return UNKNOWN;
  const usd = Number(value);
  const text = usd === 0 ? "$0" : usd < 0.01 ? `$${usd.toPrecision(2)}` : usd < 1 ? `$${usd.toFixed(3)}` : `$${usd.toFixed(2)}`;
  return quality === "estimated" || quality === "assumed" ? `≈${plainly(text)}` : plainly(text);
}

function plainly(text) {
  return text.includes("e") ? `$${Number(text.slice(1)).toFixed(9).replace(/0+$/, "")}` : text;
}

export function share(part, whole) {
  if (part === undefined || !whole) return UNKNOWN;
  return `${Math.round((100 * part) / whole)}%`;
}

export function percent(value) {
  return value === null || value === undefined ? UNKNOWN : `${Number((100 * value).toPrecision(3))}%`;
}

export function duration(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return UNKNOWN;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} m ${Math.round(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} m` : `${Math.round(hours / 24)} d`;
}

export function time(text) {
  return text ? Date.parse(text) : null;
}

export function ago(text) {
  const ms = Date.now() - time(text);
  if (Number.isNaN(ms)) return UNKNOWN;
  if (ms < 5000) return "just now";
  const units = [[86400000, "d"], [3600000, "h"], [60000, "m"], [1000, "s"]];
  const [size, name] = units.find(([unit]) => ms >= unit) ?? units[3];
  return `${Math.floor(ms / size)} ${name}`;
}

export function clock(text) {
  const date = new Date(text);
  if (Number.isNaN(date.getTime())) return UNKNOWN;
  return date.toLocaleString(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
}

export function short(id) {
  return id ? String(id).slice(0, 12) : UNKNOWN;
}

export function amount(dimension, value) {
  if (dimension === "spend_usd") return money(value);
  if (dimension === "wall_clock") return duration(1000 * Number(value));
  return count(value);
}

const GOOD = new Set(["completed"]);
const BAD = new Set(["error", "refusal", "content_filter", "policy", "steps", "tokens", "spend", "wall_clock", "calls", "tool_retries"]);

export function causeTone(turn) {
  if (turn.open) return "open";
  return GOOD.has(turn.cause) ? "good" : BAD.has(turn.cause) ? "bad" : "warn";
}

export const CAUSES = [
  "open", "completed", "max_tokens", "refusal", "content_filter", "context_window", "steps", "tokens", "spend",
  "wall_clock", "calls", "tool_retries", "policy", "interrupted", "error", "superseded", "abandoned",
];

export const SEVERITY = { violation: "bad", warning: "warn", info: "" };
