// The overview: one line per run.
import { bytes, byId, count, duration, fill, live, pager, pages, say, show, time } from "./live.js";

const LOUD = ["amber", "violet", "red"]; // colours of states that need a person
const short = (text) => (text.length <= 140 ? text : `${text.slice(0, 140)}…`);
const alarm = (n, kind) => ({ text: n ? `${n} ▲` : "0", class: n ? `number ${kind}` : "number" });

live(
  () => `/api/runs?page=${pages.runs ?? 0}`,
  (facts) => {
    const { rows, total } = facts.runs;
    show(byId("runs"), total > 0);
    show(byId("none"), total === 0);
    say(byId("ledger"), `Ledger: ${facts.ledger}`);
    fill(byId("runs").tBodies[0], rows, (run) => run.run, (run) => [
      { kind: "link", text: run.run, href: `${document.body.dataset.root}/runs/${encodeURIComponent(run.run)}` },
      { kind: "state", state: run.state, colour: run.colour },
      { kind: "lines", class: "now", list: LOUD.includes(run.colour) && !run.ended ? [run.phase, short(run.cause)] : [run.phase] },
      ["stream", "keep", "replication", "receive"].includes(run.kind) ? "–" : { kind: "done", percent: run.percent }, // it has no end to be near to
      { text: run.lag_seconds === null ? "N/A" : duration(run.lag_seconds), class: "number" },
      { text: bytes(run.backlog_bytes), class: "number" },
      { text: count(run.edits_applied), class: "number" },
      alarm(run.gaps, "bad"),
      alarm(run.held, "warn"),
      { kind: "lines", class: "time", list: [...time(run.created_ms).split(" "), `${run.ended ? "took" : "for"} ${duration(run.elapsed_seconds)}`] },
    ]);
    pager("runs", facts.runs);
    const open = rows.filter((run) => !run.ended);
    const waiting = open.filter((run) => LOUD.includes(run.colour)).length;
    const runs = total === 1 ? "1 run" : `${total} runs`;
    say(byId("status"), `${runs}; of those on this page ${open.length} not ended, ${waiting} waiting for a person`);
  },
);
