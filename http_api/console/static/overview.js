// The cluster at a glance: nodes by rack, leaders and in-sync replicas, problems with their remedies.

import { each, get, segment } from "./api.js";
import { badge, bytes, card, compact, every, fill, h, icon, link, perSecond, tile, tiles } from "./dom.js";
import { historyCard } from "./history.js";
import { live } from "./live.js";

export const title = () => "Overview";

const MOST_TOPICS = 200;
const WARNING = "M12 4 2.5 20h19zM12 10v4M12 17v.1";

/** Return leaders, replicas and in-sync replicas by node, and the partitions that lack something. */
export function summed(topics) {
  const nodes = new Map();
  const of = (id) => { if (!nodes.has(id)) nodes.set(id, { leaders: 0, replicas: 0, insync: 0 }); return nodes.get(id); };
  const lacking = [];
  let partitions = 0, offline = 0, thin = 0, moving = 0;
  for (const topic of topics) {
    for (const one of topic.partitions) {
      partitions += 1;
      if (one.leader !== null) of(one.leader).leaders += 1; else offline += 1;
      for (const id of one.replicas) of(id).replicas += 1;
      for (const id of one.isr) of(id).insync += 1;
      if (one.adding_replicas.length || one.removing_replicas.length) moving += 1;
      if (one.isr.length < one.replicas.length - one.adding_replicas.length) thin += 1;
      if (one.leader === null || one.isr.length < one.replicas.length - one.adding_replicas.length) lacking.push({ topic: topic.name, ...one });
    }
  }
  return { nodes, lacking, partitions, offline, thin, moving };
}

export async function show(root, parameters, signal) {
  const figures = h("div", {}), problems = h("div", {}), map = h("div", {}), lacking = h("div", {}), note = h("p.quiet", {});
  let cluster = null, health = null, sum = summed([]), groups = null, topicCount = null, cut = false;

  fill(root, h("div.heading", {}, h("div", {}, h("h1", {}, "Overview"), note)), figures, problems, card("Nodes", map), lacking,
    historyCard("Nodes over time", "nodes", [["Records per second at leaders", "records_per_second", perSecond], ["Disk used", "disk_used_bytes", bytes], ["Median fsync, ms", "fsync_median_ms", perSecond], ["Longest stall of the event loop in a minute, ms", "loop_longest_ms", perSecond]], signal));

  const draw = () => {
    if (!cluster) return;
    fill(note, `Cluster ${cluster.cluster_id} · version ${cluster.version} · feature level ${cluster.feature_level}`);
    const alive = cluster.nodes.filter((node) => !node.fenced).length;
    const wrong = health?.problems?.length ?? 0;
    fill(figures, tiles(
      tile("Nodes alive", `${alive} / ${cluster.nodes.length}`, alive === cluster.nodes.length ? "all alive" : "a node is missing", alive === cluster.nodes.length ? "" : "bad"),
      tile("Topics", compact(topicCount), groups === null ? "" : `${compact(groups)} ${groups === 1 ? "group" : "groups"}`),
      tile("Partitions", compact(sum.partitions), sum.moving ? `${sum.moving} moving` : cut ? `of the first ${MOST_TOPICS} topics` : "none moving"),
      tile("Without a leader", compact(sum.offline), sum.offline ? "unavailable" : "all available", sum.offline ? "bad" : "good"),
      tile("Under-replicated", compact(sum.thin), sum.thin ? "replicas are missing" : "all in sync", sum.thin ? "warn" : "good"),
      tile("Health", health === null ? "–" : health.ready && !wrong ? "Well" : `${wrong} ${wrong === 1 ? "problem" : "problems"}`, health?.event_loop ? `longest stall ${Math.round(health.event_loop.worst_ms_last_minute)} ms in a minute` : "", health === null ? "" : health.ready && !wrong ? "good" : "bad")));
    fill(problems, wrong ? card("Problems", h("ul.problems", {}, health.problems.map((line) => h("li", {}, icon(WARNING), explained(line))))) : null);
    const racks = new Map();
    for (const node of cluster.nodes) racks.set(node.rack ?? "", [...(racks.get(node.rack ?? "") ?? []), node]);
    const most = Math.max(1, ...Array.from(sum.nodes.values(), (one) => one.leaders));
    const cards = (nodes) => nodes.map((node) => nodeCard(node, cluster.controller === node.id, sum.nodes.get(node.id) ?? { leaders: 0, replicas: 0, insync: 0 }, most));
    fill(map, racks.size === 1 && racks.has("") ? h("div.racks", {}, cards(cluster.nodes)) : h("div.racks", {}, Array.from(racks, ([rack, nodes]) => h("div.rack", {}, h("h3", {}, rack ? `Rack ${rack}` : "No rack"), cards(nodes)))));
    fill(lacking, sum.lacking.length ? card("Partitions that lack replicas", h("ul.problems", {}, sum.lacking.slice(0, 50).map((one) =>
      h("li", {}, icon(WARNING), h("span", {}, link(`explain/topics/${segment(one.topic)}/${one.partition}`, `${one.topic}/${one.partition}`), one.leader === null ? " has no leader" : ` is led by node ${one.leader}`, `; in sync: ${one.isr.join(", ") || "none"} of ${one.replicas.join(", ")}`, h("span.remedy", {}, one.leader === null ? `Start a node of its in-sync replicas: ${one.isr.join(", ")}.` : `Start or reach node ${one.replicas.filter((id) => !one.isr.includes(id)).join(", ")}; it catches up by itself.`))))), sum.lacking.length > 50 ? h("p.quiet", {}, `and ${sum.lacking.length - 50} more`) : null) : null);
  };

  live.on("cluster", (document) => { cluster = document; draw(); }, signal);
  live.on("health", (document) => { health = document; draw(); }, signal);
  await every(10000, async () => {
    const [listed, known] = await Promise.all([get("/v1/topics", signal), get("/v1/groups", signal)]);
    topicCount = listed.topics.length;
    groups = known.groups.length;
    cut = listed.topics.length > MOST_TOPICS;
    const described = await each(listed.topics.slice(0, MOST_TOPICS), 4, (one) => get(`/v1/topics/${segment(one.name)}`, signal).catch((error) => { if (error.status === 404) return null; throw error; }));
    sum = summed(described.filter(Boolean));
    draw();
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
    h("dl", {}, h("dt", {}, "Leads"), h("dd", {}, compact(sum.leaders)), h("dt", {}, "Replicas in sync"), h("dd", {}, `${compact(sum.insync)} / ${compact(sum.replicas)}`), h("dt", {}, "API"), h("dd.mono", {}, node.api), h("dt", {}, "Data"), h("dd.mono", {}, node.data)),
    h("meter.meter", { min: 0, max: most, value: sum.leaders, "aria-label": `Leaders on node ${node.id}` }));
}
