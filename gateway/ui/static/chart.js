// Lines over time or over a length, drawn by uPlot in the page's own colours, with the same numbers as a table.

import uPlot from "./vendor/uplot/uPlot.esm.js";
import { html, svg } from "./parts.js";

const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3], [4, 4], [1, 5]];
const HEIGHT = 200;

const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colourOf = index => colour(`--series-${(index % DASHES.length) + 1}`);

/** Round places on a logarithmic axis. */
function steps(least, most) {
  const found = [];
  for (let power = 10 ** Math.floor(Math.log10(least)); power <= most; power *= 10)
    for (const each of [1, 2, 5]) if (each * power >= least && each * power <= most) found.push(each * power);
  return found;
}

/** The lines' names, each with its stroke. */
export const legend = labels => html`<ul class="legend">${labels.map((label, index) => html`<li>
  <svg width="26" height="8" aria-hidden="true">${svg`<line x2="26" y1="4" y2="4" stroke=${`var(--series-${(index % DASHES.length) + 1})`}
    stroke-width="2" stroke-dasharray=${DASHES[index % DASHES.length].join(" ")}></line>`}</svg>${label}</li>`)}</ul>`;

/**
 * A chart in `container`. `x` is `{ time }` or `{ log, ticks }`, `y` is `{ format, log }`; `labels` name the lines.
 * `set([xs, ys, …])` shows numbers (null where there is none); `ranges[i]` are `[low, high]` by place, drawn as whiskers.
 */
export class Chart {
  constructor(container, { x = {}, y = {}, labels }) {
    Object.assign(this, { container, x, y, labels, data: [[], ...labels.map(() => [])], ranges: [] });
    this.sizes = new ResizeObserver(() => this.plot?.setSize({ width: this.width(), height: HEIGHT }));
    this.sizes.observe(container);
    this.redraw = () => this.build();
    document.addEventListener("themechange", this.redraw);
    this.build();
  }

  width() { return Math.max(200, this.container.clientWidth); }

  build() {
    this.plot?.destroy();
    const muted = colour("--muted"), line = colour("--line"), font = "12px system-ui, sans-serif";
    const axis = { stroke: muted, font, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
    const spread = (least, most) => (this.x.log ? [least * 0.85, most * 1.18] : [least, most > least ? most : least + 1]);
    this.plot = new uPlot({
      width: this.width(),
      height: HEIGHT,
      scales: {
        x: { time: !!this.x.time, ...(this.x.log ? { distr: 3, log: 2 } : {}), range: (_, least, most) => spread(least, most) },
        y: this.y.log ? { distr: 3, range: (_, least, most) => [least * 0.8, most * 1.25] } : { range: (_, __, most) => [0, (most || 1) * 1.1] },
      },
      axes: [
        { ...axis, ...(this.x.ticks ? { splits: () => this.x.ticks, values: (_, places) => places.map(String), filter: (_, places) => places } : {}), space: 80,
          ...(this.x.time ? { values: (_, places) => places.map(at => new Date(at * 1000).toLocaleTimeString("en-GB").slice(0, 5 + 3 * (places.at(-1) - places[0] < 300))) } : {}) },
        { ...axis, size: 68, ...(this.y.log ? { splits: (_, __, least, most) => steps(least, most), filter: (_, places) => places } : {}), values: (_, places) => places.map(value => (value === null ? "" : this.y.format(value))) },
      ],
      series: [{}, ...this.labels.map((label, index) => ({
        label, stroke: colourOf(index), width: 2, dash: DASHES[index % DASHES.length], spanGaps: !this.x.time,
        points: { show: !this.x.time, size: 6 },
      }))],
      cursor: { points: { size: 6 }, drag: { x: false, y: false } },
      legend: { show: false },
      hooks: { draw: [plot => this.whiskers(plot)] },
    }, this.data, this.container);
  }

  whiskers(plot) {
    const { ctx } = plot;
    this.ranges.forEach((ranges, index) => {
      ctx.save();
      ctx.strokeStyle = colourOf(index);
      ctx.lineWidth = devicePixelRatio;
      ranges?.forEach((range, place) => {
        if (!range) return;
        const x = plot.valToPos(this.data[0][place], "x", true);
        ctx.beginPath();
        ctx.moveTo(x, plot.valToPos(range[0], "y", true));
        ctx.lineTo(x, plot.valToPos(range[1], "y", true));
        ctx.stroke();
      });
      ctx.restore();
    });
  }

  set(data, ranges = []) {
    this.data = data;
    this.ranges = ranges;
    this.plot.setData(data);
  }

  destroy() {
    this.sizes.disconnect();
    document.removeEventListener("themechange", this.redraw);
    this.plot.destroy();
  }
}
