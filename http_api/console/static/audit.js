// The newest lines of this node's audit log, for administrators.

import { get } from "./api.js";
import { badge, count, fill, h, table, when } from "./dom.js";

export const title = () => "Audit";

const MOST = 1000;

export async function show(root, parameters, signal) {
  const search = h("input", { type: "search", placeholder: "Principal, resource, address, …", "aria-label": "Filter lines", input: () => draw() });
  const refused = h("input", { type: "checkbox", change: () => draw() });
  const list = h("div.card", {}), note = h("p.quiet", { role: "status" });
  let found = null;
  fill(root, h("div.heading", {}, h("div", {}, h("h1", {}, "Audit log"), note), h("div.actions", {}, h("label.toggle", {}, refused, "refused only"), search, h("button.ghost", { type: "button", click: () => load() }, "Refresh"))), list);

  function draw() {
    if (!found) return;
    const wanted = search.value.trim().toLowerCase();
    const shown = found.lines.filter((one) => (!refused.checked || !one.allowed) && (!wanted || Object.values(one).join("\n").toLowerCase().includes(wanted)));
    fill(note, found.recorded ? `Node ${found.node_id} · level ${found.level} · ${shown.length === found.lines.length ? "" : `${count(shown.length)} of `}${count(found.lines.length)} ${found.lines.length === 1 ? "line" : "lines"}, the newest first` : `Node ${found.node_id}`);
    fill(list, table("Audit log", [
      { head: "Time", cell: (one) => h("span.mono.time", {}, when(one.until_ms || one.time_ms).slice(0, 19)) },
      { head: "Outcome", cell: (one) => h("span", {}, one.kind === "gap" ? badge("warn", "not recorded") : one.allowed ? badge("good", "allowed") : badge("bad", one.kind === "authentication" ? "login failed" : "refused"), (one.count ?? 1) > 1 ? badge("plain", `${count(one.count)} times`) : null) },
      { head: "Caller", cell: (one) => h("span", {}, h("strong", {}, one.principal || "no name"), h("span.remedy.time", {}, `${one.host ?? ""}${one.mechanism ? ` by ${one.mechanism.replace("_", " ")}` : ""}`)) },
      { head: "Request", cell: (one) => h("span", {}, one.operation ? h("code", {}, one.operation) : null, one.resource ? ` ${(one.resource_type ?? "").replace("_", " ")} ${one.resource}` : null, one.action ? h("span.remedy.mono", {}, one.action) : null) },
      { head: "Because", cell: (one) => h("span.quiet.detail", {}, one.rule || one.reason || "") },
    ], shown, { empty: found.recorded ? "No line fits." : "This node writes no audit log: security is off, or [security.audit] names no destination." }));
  }

  async function load() {
    found = await get(`/v1/audit?limit=${MOST}`, signal);
    draw();
  }
  await load();
}
