// The cluster at a glance: nodes by rack, leaders and in-sync replicas, problems with their remedies.

import { segment } from "./api.js";
import { badge, bytes, card, compact, fill, h, icon, link, perSecond, tile, tiles } from "./dom.js";
import { historyCard } from "./history.js";
import { live } from "./live.js";

export const title = () => "Overview";

const WARNING = "M12 4 2.5 20h19zM12 10v4M12 17v.1";

export async function show(root, parameters, signal) {
  const figures = h("div", {}), problems = h("div", {}), map = h("div", {}), lacking = h("div", {}), note = h("p.quiet", {});
  fill(root, h("div.heading", {}, h("div", {}, h("h1", {}, "Overview"), note)), figures, problems, card("Nodes", map), lacking,
    historyCard("Nodes over time", "nodes", [["Records per second at leaders", "records_per_second", perSecond], ["Disk used", "disk_used_bytes", bytes], ["Median fsync, ms", "fsync_median_ms", perSecond], ["Longest stall of the event loop in a minute, ms", "loop_longest_ms", perSecond]], signal));

  await live.watch(["/v1/cluster", "/v1/health", "/v1/cluster/partitions", "/v1/groups"], (cluster, health, sum, known) => {
    fill(note, `Cluster ${cluster.cluster_id} · version ${cluster.version} · feature level ${cluster.feature_level}`);
    const alive = cluster.nodes.filter((node) => !node.fenced).length;
    const wrong = health.problems?.length ?? 0;
    const groups = known.groups.length;
    fill(figures, tiles(
      tile("Nodes alive", `${alive} / ${cluster.nodes.length}`, alive === cluster.nodes.length ? "all alive" : "a node is missing", alive === cluster.nodes.length ? "" : "bad"),
      tile("Topics", compact(sum.topics), `${compact(groups)} ${groups === 1 ? "group" : "groups"}`),
      tile("Partitions", compact(sum.partitions), sum.moving ? `${compact(sum.moving)} moving` : "none moving"),
      tile("Without a leader", compact(sum.without_leader), sum.without_leader ? "unavailable" : "all available", sum.without_leader ? "bad" : "good"),
      tile("Under-replicated", compact(sum.under_replicated), sum.under_replicated ? "replicas are missing" : "all in sync", sum.under_replicated ? "warn" : "good"),
      tile("Health", health.ready && !wrong ? "Well" : `${wrong} ${wrong === 1 ? "problem" : "problems"}`, health.event_loop ? `longest stall ${Math.round(health.event_loop.worst_ms_last_minute)} ms in a minute` : "", health.ready && !wrong ? "good" : "bad")));
    fill(problems, wrong ? card("Problems", h("ul.problems", {}, health.problems.map((line) => h("li", {}, icon(WARNING), explained(line))))) : null);
    const racks = new Map();
    for (const node of cluster.nodes) racks.set(node.rack ?? "", [...(racks.get(node.rack ?? "") ?? []), node]);
    const shares = new Map(sum.nodes.map((one) => [one.node, one]));
    const most = Math.max(1, ...sum.nodes.map((one) => one.leaders));
    const cards = (nodes) => nodes.map((node) => nodeCard(node, cluster.controller === node.id, shares.get(node.id) ?? { leaders: 0, replicas: 0, in_sync: 0 }, most));
    fill(map, racks.size === 1 && racks.has("") ? h("div.racks", {}, cards(cluster.nodes)) : h("div.racks", {}, Array.from(racks, ([rack, nodes]) => h("div.rack", {}, h("h3", {}, rack ? `Rack ${rack}` : "No rack"), cards(nodes)))));
    const thin = sum.without_leader + sum.under_replicated;
    fill(lacking, sum.lacking.length ? card("Partitions that lack replicas", h("ul.problems", {}, sum.lacking.map((one) =>
      h("li", {}, icon(WARNING), h("span", {}, link(`explain/topics/${segment(one.topic)}/${one.partition}`, `${one.topic}/${one.partition}`), one.leader === null ? " has no leader" : ` is led by node ${one.leader}`, `; in sync: ${one.isr.join(", ") || "none"} of ${one.replicas.join(", ")}`, h("span.remedy", {}, one.leader === null ? `Start a node of its in-sync replicas: ${one.isr.join(", ")}.` : `Start or reach node ${one.replicas.filter((id) => !one.isr.includes(id)).join(", ")}; it catches up by itself.`))))), thin > sum.lacking.length ? h("p.quiet", {}, "and more") : null) : null);
  }, signal);
}

/** Split a problem's line at its remedy, which follows a colon or semicolon. */
export function explained(line) {
  const at = line.search(/[:;] (?=[a-z])/);
  if (at < 12) return h("span", {}, line);
  return h("span", {}, line.slice(0, at), h("span.remedy", {}, line.slice(at + 2)));
}

function nodeCard(node, controls, sum, most) {
  return h(`article.node${node.fenced ? ".down" : ""}`, { "aria-label": `Node ${node.id}` },
    h("header", {}, `Node ${node.id}`, node.fenced ? badge("bad", "not alive") : badge("good", "alive"), controls ? badge("accent", "controller") : null),
    h("dl", {}, h("dt", {}, "Leads"), h("dd", {}, compact(sum.leaders)), h("dt", {}, "Replicas in sync"), h("dd", {}, `${compact(sum.in_sync)} / ${compact(sum.replicas)}`), h("dt", {}, "API"), h("dd.mono", {}, node.api), h("dt", {}, "Data"), h("dd.mono", {}, node.data)),
    h("meter.meter", { min: 0, max: most, value: sum.leaders, "aria-label": `Leaders on node ${node.id}` }));
}
