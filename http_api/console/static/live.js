// Everything that the console shows live: one stream of events of the node, whichever page is open.
//
// Pages name the documents that they show; the stream watches those of the open page, and the node sends each one when
// it changes. A hidden tab has no stream.

import { Problem, options } from "./api.js";
import { fill } from "./dom.js";

const ALWAYS = ["/v1/cluster", "/v1/health"];
const RETRY_MS = 3000;
const SETTLE_MS = 30;
/** The node sends at least a comment in 15 seconds; after this time without anything the stream is lost. */
const SILENCE_MS = 40000;

class Live {
  constructor() {
    this.watchers = new Map(); // path → listeners
    this.newest = new Map(); // path → {status, document}
    this.ending = null;
    this.settling = null;
    document.addEventListener("visibilitychange", () => { if (this.started) { if (document.hidden) this.ending?.abort(); else this.open(); } });
  }

  start() { this.started = true; this.newest.clear(); this.open(); }

  stop() { this.started = false; this.ending?.abort(); this.newest.clear(); this.say("", ""); }

  say(state, text) {
    const place = document.getElementById("live");
    if (place.dataset.state === state) return;
    place.dataset.state = state;
    fill(place, text);
  }

  /** Watch the documents of these paths until `signal` aborts. `draw` gets all of them, in order, at first when all are
   * there and then after each change; null for a refused one of `optional`. The promise ends with the first call, or with
   * the problem of a document that is not optional. */
  watch(paths, draw, signal, { optional = [] } = {}) {
    return new Promise((resolve, reject) => {
      let drawn = false;
      const look = () => {
        const found = paths.map((path) => this.newest.get(path));
        if (found.some((one) => one === undefined)) return;
        const wrong = found.findIndex((one, at) => one.status >= 400 && !(one.status === 503 && one.document.code === undefined) && !optional.includes(paths[at]));
        if (wrong >= 0) {
          const { status, document } = found[wrong];
          if (!drawn) reject(new Problem(status, document.code, document.detail ?? document.title ?? "", document));
          return;
        }
        draw(...found.map((one) => (one.status >= 400 && one.document.code !== undefined ? null : one.document)));
        drawn = true;
        resolve();
      };
      for (const path of paths) this.watchers.set(path, (this.watchers.get(path) ?? new Set()).add(look));
      signal.addEventListener("abort", () => {
        for (const path of paths) {
          const known = this.watchers.get(path);
          known?.delete(look);
          if (!known?.size) this.watchers.delete(path);
        }
        this.settle();
      });
      look();
      this.settle();
    });
  }

  /** Open the stream again if it does not watch what is wanted; a page that changes names several paths at once. */
  settle() {
    clearTimeout(this.settling);
    this.settling = setTimeout(() => { if (this.started && !document.hidden && this.wanted().join() !== this.watched) this.open(); }, SETTLE_MS);
  }

  wanted() { return [...new Set([...ALWAYS, ...this.watchers.keys()])].sort(); }

  open() {
    if (document.hidden) return;
    this.ending?.abort();
    this.ending = new AbortController();
    this.run(this.ending.signal);
  }

  async run(signal) {
    while (!signal.aborted) {
      const wanted = this.wanted();
      this.watched = wanted.join();
      for (const path of [...this.newest.keys()]) if (!wanted.includes(path)) this.newest.delete(path);
      const silent = new AbortController();
      let timer;
      const alive = () => { clearTimeout(timer); timer = setTimeout(() => silent.abort(), SILENCE_MS); };
      try {
        alive();
        const response = await fetch(`../v1/events?${wanted.map((path) => `watch=${encodeURIComponent(path)}`).join("&")}`, options(AbortSignal.any([signal, silent.signal])));
        if (response.status === 401) { dispatchEvent(new CustomEvent("raftlog:unauthenticated")); return; }
        if (!response.ok) throw new Error((await response.json()).detail);
        this.say("on", "Live");
        await this.read(response.body, alive);
      } catch (error) {
        if (signal.aborted) return;
        this.say("off", "Not connected");
      } finally {
        clearTimeout(timer);
      }
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }

  /** Read events to the end of the stream (HTML standard, 9.2.6; the node sends one line of data an event). */
  async read(body, alive) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      alive();
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        const data = event.split("\n").find((line) => line.startsWith("data: "));
        if (data) this.take(JSON.parse(data.slice(6)));
      }
    }
  }

  take({ watch, status, document }) {
    this.newest.set(watch, { status, document });
    for (const look of [...(this.watchers.get(watch) ?? [])]) look();
  }
}

export const live = new Live();
