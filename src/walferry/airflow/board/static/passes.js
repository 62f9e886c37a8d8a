// The passes over a pair: the trend, each pass, and what is known since the last one.
import { chart, line } from "./charts.js";
import { bytes, byId, count, duration, fill, pager, show, time } from "./live.js";

const TREND = [
  ["passes-differing", "differing_rows", "rows that differ"],
  ["passes-read", "rows_read", "rows read"],
  ["passes-seconds", "seconds", "seconds"],
];

function reasons(made) {
  const list = Object.entries(made.reasons).map(([why, n]) => `${count(n)}: ${why}`);
  return list.length ? { kind: "fold", text: `${count(made.whole_regions)} of ${count(made.regions)}`, list } : `0 of ${count(made.regions)}`;
}

function verdict(made) {
  if (made.seconds === null) return { kind: "badge", state: "partly done", text: "not over" };
  if (made.differing_rows) return { kind: "badge", state: "differs", text: made.differing_rows === 1 ? "1 row differs" : `${count(made.differing_rows)} rows differ` };
  if (made.not_judged) return { kind: "badge", state: "differs", text: `${count(made.under_way_rows)} rows not judged` };
  return { kind: "badge", state: "equal", text: made.under_way_rows ? `equal, ${count(made.under_way_rows)} rows under way` : "equal" };
}

function second(made) {
  if (made.second_reader.text === undefined) return "–";
  return { kind: "fold", text: made.second_reader.differing ? `${count(made.second_reader.differing)} of ${count(made.second_reader.rows)} differ` : count(made.second_reader.rows), list: [made.second_reader.text] };
}

function trend(found) {
  const some = found.at_ms.length > 1;
  show(byId("passes-charts"), some);
  if (!some || !window.Plotly) return;
  const range = [found.at_ms[0], found.at_ms[found.at_ms.length - 1]].map((ms) => new Date(ms).toISOString());
  for (const [id, key, what] of TREND) {
    const values = found[key];
    const said = `${what} in each pass: last ${values[values.length - 1]}, highest ${Math.max(...values)}`;
    chart(id, [line(found.at_ms, values, what)], range, {}, said);
  }
}

export function passes(found) {
  show(byId("passes"), found !== null);
  show(byId("to-passes"), found !== null);
  if (found === null) return;
  trend(found.trend);
  show(byId("passes-none"), found.total === 0);
  fill(byId("passes-rows"), found.rows, (p) => p.number, (p) => [
    { text: p.number, class: "number" },
    { text: time(p.started_ms), class: "time" },
    verdict(p),
    { text: p.seconds === null ? "–" : duration(p.seconds), class: "number" },
    reasons(p),
    { text: count(p.rows_read), class: "number" },
    { text: bytes(p.bytes_read), class: "number" },
    { text: bytes(p.log_bytes), class: "number" },
    { text: count(p.written_rows), class: "number" },
    second(p),
  ]);
  pager("passes", found);
  fill(byId("claims-rows"), found.tables, (t) => t.table, (t) => [
    t.table,
    { kind: "badge", state: t.clean === t.regions ? "equal" : "differs", text: `${count(t.clean)} of ${count(t.regions)} regions equal` },
    { text: t.oldest_clean_ms === null ? "not all yet" : time(t.oldest_clean_ms), class: "time" },
    { text: time(t.oldest_whole_ms), class: "time" },
  ]);
  show(byId("pair-differences"), found.differences.length > 0);
  fill(byId("pair-differences-rows"), found.differences, (d) => `${d.table} ${d.row}`, (d) => [
    d.table,
    { text: d.row, class: "key" },
    { kind: "badge", state: d.state === "differs" ? "failed" : "warning", text: d.state },
    { text: time(d.found_ms), class: "time" },
    { kind: "long", class: "long", text: d.detail },
  ]);
}
