// Plots of the last hours, from the rings that the nodes keep on their disks.

import { Plot } from "./charts.js";
import { card, fill, h, select } from "./dom.js";
import { live } from "./live.js";

const RANGES = [[60, "1 hour"], [360, "6 hours"], [1440, "24 hours"]];
let minutes = 60;

/** Return a card with plots of the series that `path` answers. `plots`: [title, series, format, label of a node]. */
export function historyCard(title, path, plots, signal) {
  const place = h("div.plots", {}), note = h("p.quiet", { role: "status" });
  const range = select(RANGES, minutes, () => { minutes = Number(range.value); clear(); load(); });
  range.setAttribute("aria-label", `Time shown: ${title}`);
  let drawn = new Map(), watching = null;

  function clear() { for (const one of drawn.values()) one.ending.abort(); drawn = new Map(); place.replaceChildren(); }

  function draw(found) {
    const times = Array.from({ length: found.points }, (_, at) => found.from_ms + at * found.step_ms);
    let any = false;
    for (const [name, series, format] of plots) {
      const parts = found.series.filter((one) => one.name === series);
      any ||= parts.some((one) => one.values.some((value) => value !== null));
      const labels = parts.map((one) => (one.node === null || one.node === undefined ? name : `node ${one.node}`));
      const key = labels.join();
      let known = drawn.get(series);
      if (known?.key !== key) {
        known?.ending.abort();
        const ending = new AbortController();
        signal.addEventListener("abort", () => ending.abort());
        known = { key, ending, plot: new Plot(name, labels, format, ending.signal), place: h("figure.plot", {}) };
        fill(known.place, h("figcaption", {}, name), known.plot.element);
        if (drawn.has(series)) drawn.get(series).place.replaceWith(known.place); else place.append(known.place);
        drawn.set(series, known);
      }
      known.plot.show(times, ...parts.map((one) => one.values));
    }
    const silent = Object.keys(found.unanswered ?? {});
    fill(note, !found.series.length ? "There is nothing to show, or you may not describe all of it." : !any ? "The first sample comes within 20 seconds." : silent.length ? `Without node ${silent.join(", ")}, which did not answer.` : "");
  }

  async function load() {
    watching?.abort();
    const ending = (watching = new AbortController());
    signal.addEventListener("abort", () => ending.abort());
    try {
      await live.watch([`/v1/plots/${path}?minutes=${minutes}`], draw, ending.signal);
    } catch (error) {
      if (!ending.signal.aborted) fill(note, error.status === 403 ? "You may not see these numbers." : error.message);
    }
  }

  const shown = card(title, place, note);
  shown.querySelector("h2").replaceWith(h("div.heading.compact", {}, shown.querySelector("h2").cloneNode(true), h("div.actions", {}, range)));
  load();
  return shown;
}
