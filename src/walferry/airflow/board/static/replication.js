// What a source replicates by itself: its peers, their queues, their trend, and what the settings of both clusters stop.
import { chart, line } from "./charts.js";
import { bytes, byId, count, duration, fill, pager, say, show, time } from "./live.js";

const least = (one) => `${one.bytes_at_least ? "at least " : ""}${bytes(one.bytes)}`;

function age(queue) {
  if (queue.age_ms !== null) return duration(queue.age_ms / 1000);
  return queue.read_whole ? "no edit waits" : "not known";
}

function waits(queue) {
  const edit = queue.oldest;
  if (edit === null || !queue.word) return [];
  const what = edit.row === null ? "a bulk load into" : `row '${edit.row}' of`;
  const families = `${edit.families.length === 1 ? "family" : "families"} ${edit.families.join(", ")}`;
  return [`waits: ${what} ${edit.table}, ${families}, written ${time(edit.write_ms)}: ${edit.file} at byte ${count(edit.offset)}`];
}

function trend(list) {
  const some = list.some((peer) => peer.at_ms.length > 1);
  show(byId("peers-charts"), some);
  if (!some || !window.Plotly) return;
  const all = list.flatMap((peer) => peer.at_ms);
  const range = [Math.min(...all), Math.max(...all)].map((ms) => new Date(ms).toISOString());
  const named = { showlegend: list.length > 1, legend: { orientation: "h", y: -0.2 } };
  const last = (values) => values[values.length - 1];
  const told = (key, unit) => list.map((p) => `peer ${p.peer} ${last(p[key]) === null ? "not known" : `${last(p[key])} ${unit}`}`).join(", ");
  const lines = (key, scale) => list.map((p) => {
    const { line: own, ...rest } = line(p.at_ms, p[key].map((n) => (n === null ? null : n * scale)), `peer ${p.peer}`);
    return { ...rest, line: list.length > 1 ? { width: 2 } : own };
  });
  chart("peers-age", lines("seconds", 1), range, named, `Age of the oldest edit that waits: ${told("seconds", "seconds")}`);
  chart("peers-bytes", lines("bytes", 1e-6), range, named, `Log not shipped: ${told("bytes", "bytes")}`);
}

function canary(found) {
  show(byId("canary"), found !== null);
  if (found === null) return;
  say(byId("canary-when"), `Flown at ${time(found.at_ms)}. ${found.kept_back.join(" ")}`);
  fill(byId("canary-rows"), found.rows, (row) => `${row.peer} ${row.server}`, (row) => [
    row.peer,
    { text: row.server, class: "hex" },
    { kind: "badge", state: row.seconds === null ? "failed" : "done", text: row.seconds === null ? "not arrived" : "arrived" },
    { text: row.seconds === null ? "–" : duration(row.seconds), class: "number" },
    { kind: "long", class: "long", text: row.why ?? "" },
  ]);
}

export function replication(found) {
  const looked = found.looked_ms === null ? "Nobody has looked yet." : `As of ${time(found.looked_ms)}.`;
  say(byId("peers-when"), looked);
  fill(byId("peers-rows"), found.peers, (p) => p.peer, (p) => [
    p.peer,
    { kind: "lines", list: [p.leads_to, p.fault ?? ""].filter(Boolean) },
    { kind: "lines", list: [p.summary, p.serial ? "serial" : "", p.servers_without_queue.length ? `no queue at ${p.servers_without_queue.join(", ")}` : ""].filter(Boolean), class: "long" },
    p.replicates ?? "–",
    { text: least(p), class: "number" },
    { text: bytes(p.pinned_bytes), class: "number" },
    { text: count(p.waiting_files), class: "number" },
    { text: count(p.all_queues), class: "number" },
  ]);
  trend(found.trend);
  show(byId("queues-none"), found.looked_ms !== null && found.queues.total === 0);
  fill(byId("queues-rows"), found.queues.rows, (q, at) => `${at} ${q.peer} ${q.place}`, (q) => [
    q.peer,
    { text: q.place, class: "hex" },
    { kind: "badge", state: q.word ? "failed" : "done", text: q.word ? q.word.toLowerCase() : "in time" },
    { text: age(q), class: "number" },
    { text: least(q), class: "number" },
    { text: count(q.logs), class: "number" },
    { kind: "lines", class: "long", list: [...waits(q), ...q.causes] },
  ]);
  pager("queues", found.queues);
  show(byId("queues-more"), found.queues.not_listed > 0);
  say(byId("queues-more"), `and ${count(found.queues.not_listed)} more queues, which are further ahead than these`);
  say(byId("findings-when"), found.plan_ms === null ? "Nobody has looked at the settings yet." : `As of ${time(found.plan_ms)}.`);
  const badge = { stop: "failed", warn: "warning", note: "not begun" };
  fill(byId("findings-rows"), found.findings.rows, (f, at) => `${at} ${f.subject}`, (f) => [
    f.subject,
    { kind: "badge", state: badge[f.level], text: f.level },
    { kind: "long", class: "long", text: f.message },
  ]);
  pager("findings", found.findings);
  canary(found.canary);
}
