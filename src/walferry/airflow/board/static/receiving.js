// A run to which a source replicates: the processes that take its calls, and what came of each table.
import { bytes, byId, count, duration, fill, pager, rate, say, show, time } from "./live.js";

const BADGE = { serving: "done", gone: "failed", left: "not begun" };
const when = (ms) => (ms === null ? "never" : time(ms));

function short(server) {
  const [host, port] = server.split(",");
  return port === undefined ? host : `${host}:${port}`;
}

function outOfOrder(found) {
  if (!found.late) return "";
  return found.into_kafka ? "entries; the header version says so" : "entries; their rows are marked as dirty";
}

export function receiveTiles(facts) {
  const { run: r, receiving: found } = facts;
  const gone = found.processes.total - found.serving;
  return [
    ["Processes", count(found.serving), found.serving || r.ended ? "" : "bad", gone ? `and ${count(gone)} that ended or are gone` : ""],
    ["Edits applied", count(r.edits_applied), "", r.ended ? "" : `${rate(r.edits_per_second)} a second`],
    ["Lag", r.lag_seconds === null ? "N/A" : duration(r.lag_seconds), "", r.lag_unknown],
    ["Newest write", found.newest_ms === null ? "none yet" : time(found.newest_ms)],
    ["Calls refused", count(found.refused), r.state === "refusing" ? "bad" : ""],
    ["Out of order", `${count(found.late)}`, "", outOfOrder(found)],
    [r.ended ? "Received for" : "Receives for", duration(r.elapsed_seconds)],
  ];
}

export function receiving(found) {
  show(byId("processes-none"), found.processes.total === 0);
  fill(byId("processes-rows"), found.processes.rows, (p) => p.server, (p) => [
    { kind: "lines", list: [short(p.server), p.server], class: "hex" },
    { kind: "badge", state: BADGE[p.state], text: p.state },
    { kind: "lines", list: [`since ${time(p.since_ms)}`, `heard at ${time(p.at_ms)}`], class: "time" },
    { kind: "lines", list: p.state === "serving" ? p.tables : [] },
    { text: count(p.calls), class: "number" },
    { text: count(p.refused), class: "number" },
    { text: bytes(p.held_bytes), class: "number" },
    { kind: "lines", class: "long", list: p.last_refusal_ms === null ? ["none"] : [time(p.last_refusal_ms), p.last_refusal] },
  ]);
  pager("processes", found.processes);
  show(byId("left"), found.left.length > 0);
  say(byId("left"), `An abort has not removed ${found.left.join(", ")} in ZooKeeper: abort the run again to remove it.`);
  fill(byId("received-rows"), found.tables.rows, (t) => t.table, (t) => [
    t.table,
    found.into_kafka ? `topic ${t.target}` : t.target,
    { text: count(t.entries), class: "number" },
    { text: count(t.cells), class: "number" },
    { text: bytes(t.bytes), class: "number" },
    { text: count(t.calls), class: "number" },
    { text: count(t.repeated), class: "number" },
    { text: count(t.late), class: "number" },
    { text: count(t.left_out), class: "number" },
    { text: when(t.newest_ms), class: "time" },
    { text: when(t.last_call_ms), class: "time" },
    t.history,
  ]);
  pager("tables", found.tables);
}
