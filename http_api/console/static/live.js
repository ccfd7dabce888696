// What the console shows live. One place for all pages: they subscribe here, and never poll for it themselves.

import { get } from "./api.js";
import { fill } from "./dom.js";

const POLL_MS = 5000;

class Live {
  constructor() { this.listeners = new Map(); this.newest = new Map(); this.ending = null; }

  /** Call `listener(document)` with the newest document of a section, and with each further one until `signal` aborts. */
  on(section, listener, signal) {
    const known = this.listeners.get(section) ?? new Set();
    this.listeners.set(section, known.add(listener));
    signal.addEventListener("abort", () => known.delete(listener));
    if (this.newest.has(section)) listener(this.newest.get(section));
  }

  start() {
    this.stop();
    this.ending = new AbortController();
    this.run(this.ending.signal);
  }

  stop() { this.ending?.abort(); this.ending = null; this.newest.clear(); this.say("", ""); }

  say(state, text) {
    const place = document.getElementById("live");
    if (place.dataset.state === state) return;
    place.dataset.state = state;
    fill(place, text);
  }

  publish(section, document) {
    this.newest.set(section, document);
    for (const listener of this.listeners.get(section) ?? []) listener(document);
  }

  async run(signal) {
    while (!signal.aborted) {
      if (!document.hidden) {
        try {
          const [cluster, health] = await Promise.all([get("/v1/cluster", signal), get("/v1/health", signal, { accept: [503] })]);
          if (signal.aborted) return;
          this.publish("cluster", cluster);
          this.publish("health", health);
          this.say("on", "Live");
        } catch (error) {
          if (signal.aborted) return;
          this.say("off", "Not connected");
        }
      }
      await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    }
  }
}

export const live = new Live();
