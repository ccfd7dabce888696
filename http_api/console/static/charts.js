// Plots by uPlot, in the colours of the page, with the newest values as text for those who do not see them.

import uPlot from "./uPlot.esm.js";
import { h, when } from "./dom.js";

/** The shortest span that a plot shows, in seconds. */
const LEAST_SPAN_S = 120;
/** Up to this many values are shown as points, too: a line needs two neighbours. */
const FEW = 20;
const SERIES = ["--s0", "--s1", "--s2", "--s3", "--s4", "--s5"];

/** Return the times that a plot shows. Of a single point uPlot makes years. */
function range(plot, low, high) {
  const end = plot.data[0].length === 1 ? low : high;
  return [Math.min(low, end - LEAST_SPAN_S), end];
}

function colour(name) {
  const probe = h("span", { class: "visually-hidden" });
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

/** A plot of series over time. `labels`: one name a line; `format`: number to text. */
export class Plot {
  constructor(title, labels, format, signal) {
    this.labels = labels;
    this.format = format;
    this.data = [[], ...labels.map(() => [])];
    this.element = h("div.chart", { role: "img", "aria-label": `${title}: no data yet` });
    this.title = title;
    this.watch = new ResizeObserver(() => this.resize());
    this.watch.observe(this.element);
    const redraw = () => this.draw();
    addEventListener("raftlog:theme", redraw);
    const system = matchMedia("(prefers-color-scheme: dark)");
    system.addEventListener("change", redraw);
    signal.addEventListener("abort", () => {
      this.watch.disconnect();
      removeEventListener("raftlog:theme", redraw);
      system.removeEventListener("change", redraw);
      this.drawn?.destroy();
      this.drawn = null;
    });
  }

  /** Show these columns: times in milliseconds, then one list of numbers (or nulls) for each label. */
  show(times, ...columns) {
    this.data = [times.map((time) => time / 1000), ...columns];
    const last = columns.map((one, number) => `${this.labels[number]} ${this.format(one.findLast((value) => value !== null) ?? null)}`);
    this.element.setAttribute("aria-label", `${this.title}; newest values: ${last.join(", ")}`);
    if (this.drawn) this.drawn.setData(this.data);
    else this.draw();
  }

  resize() {
    const width = this.element.clientWidth;
    if (this.drawn && width && Math.abs(width - this.drawn.width) > 1) this.drawn.setSize({ width, height: 170 });
    else if (!this.drawn) this.draw();
  }

  draw() {
    const width = this.element.clientWidth;
    if (!width || !this.data[0].length) return;
    this.drawn?.destroy();
    const soft = colour("--soft"), line = colour("--line");
    const axis = { stroke: soft, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1, size: 4 }, font: "12px system-ui, sans-serif" };
    const clock = (plot, ticks) => ticks.map((tick, at) => {
      const text = when(tick * 1000);
      return at && when(ticks[at - 1] * 1000).slice(0, 10) === text.slice(0, 10) ? text.slice(11, 16) : `${text.slice(11, 16)}\n${text.slice(5, 10)}`;
    });
    this.drawn = new uPlot({
      width, height: 170,
      cursor: { points: { size: 6 }, y: false },
      legend: { live: true },
      scales: { x: { range }, y: { range: (plot, low, high) => [Math.min(0, low ?? 0), high > 0 ? high * 1.1 : 1] } },
      axes: [{ ...axis, values: clock }, { ...axis, size: 68, values: (plot, ticks) => ticks.map((tick) => this.format(tick)) }],
      series: [{ label: "Time", value: (plot, at) => (at === null ? "–" : when(at * 1000).slice(0, 19)) }, ...this.labels.map((label, number) => {
        const stroke = colour(SERIES[number % SERIES.length]);
        return { label, stroke, width: 1.75, points: { show: (plot, number) => plot.data[number].reduce((sum, value) => sum + (value !== null), 0) <= FEW, size: 5 }, fill: this.labels.length === 1 ? stroke.replace("rgb(", "rgba(").replace(")", ", 0.12)") : undefined, value: (plot, value) => this.format(value) };
      })],
    }, this.data, this.element);
  }
}
