// Small pieces that several pages are made of.

import { html, nothing, svg } from "./vendor/lit-html/lit-html.js";

export { html, nothing, render, svg } from "./vendor/lit-html/lit-html.js";

/** A page or section that has nothing to show: why, and what to do. */
export const empty = (why, what) => html`<p class="empty"><strong>${why}</strong>${what}</p>`;

export const problem = error => html`<p class="problem" role="alert">${[error.message, error.fix].filter(Boolean).join("\n")}</p>`;

/** A state as a sign, a word and a colour; `kind` is good, warn, bad or none. */
export const is = (kind, word) => html`<span class="is ${kind}">${word}</span>`;

export const tag = word => html`<span class="tag">${word}</span>`;

/** Figures side by side: `[label, value, note]`. */
export const tiles = figures => html`<dl class="tiles">${figures.map(([label, value, note]) => html`
  <div><dt>${label}</dt><dd>${value}${note ? html`<p>${note}</p>` : nothing}</dd></div>`)}</dl>`;

/** How much of something is taken; what is over it is drawn in another colour, and `label` says it in words. */
export function bar(value, of, label) {
  const full = of ? Math.min(1, value / of) : 0, over = of && value > of ? Math.min(1, (value - of) / of) : 0;
  return html`<svg class="bar" width="96" height="10" role="img" aria-label=${label}>${svg`
    <rect class="track" width="96" height="10" rx="2"></rect>
    <rect class="full" width=${96 * full} height="10" rx="2"></rect>
    <rect class="over" x=${96 * (1 - over)} width=${96 * over} height="10" rx="2"></rect>`}</svg>`;
}

/** A line without axes through the last values, oldest first. */
export function spark(values, label) {
  if (values.length < 2) return nothing;
  const most = Math.max(...values), least = Math.min(...values), height = 20, width = 96;
  const place = (value, index) => [
    (index * width) / (values.length - 1),
    height - 2 - (most > least ? ((value - least) / (most - least)) * (height - 4) : (height - 4) / 2),
  ];
  const points = values.map(place), [x, y] = points.at(-1);
  return html`<svg class="spark" width=${width} height=${height} role="img" aria-label=${label}>${svg`
    <polyline points=${points.map(point => point.map(each => each.toFixed(1)).join(",")).join(" ")}></polyline>
    <circle cx=${x} cy=${y} r="2"></circle>`}</svg>`;
}

/** An interval on a common scale from `least` to `most`, with what is tolerated as dashed lines. */
export function interval(low, at, high, { least, most, zero = null, limits = [], label }) {
  const width = 180, place = value => (Math.max(0, Math.min(1, (value - least) / (most - least || 1))) * width).toFixed(1);
  return html`<svg class="interval" width=${width} height="18" role="img" aria-label=${label}>${svg`
    <line class="axis" x2=${width} y1="9" y2="9"></line>
    ${zero === null ? nothing : svg`<line class="zero" x1=${place(zero)} x2=${place(zero)} y1="1" y2="17"></line>`}
    ${limits.map(limit => svg`<line class="limit" x1=${place(limit)} x2=${place(limit)} y1="1" y2="17"></line>`)}
    <line class="span" x1=${place(low)} x2=${place(high)} y1="9" y2="9"></line>
    <circle class="at" cx=${place(at)} cy="9" r="3.5"></circle>`}</svg>`;
}

/** A table that may be wider than its place: it scrolls, by keyboard too. */
export const wide = (label, table) => html`<div class="scroll" tabindex="0" role="group" aria-label=${label}>${table}</div>`;

const QUALITY = { passed: "good", baseline: "good", failed: "bad", untested: "none" };
export const quality = word => is(QUALITY[word] ?? "none", word);

const STATE = { up: "good", unmeasured: "warn", loading: "warn", failing: "bad", down: "bad" };
export const health = word => is(STATE[word] ?? "warn", word);

const ENDED = { done: "good", cancelled: "none", failed: "bad", refused: "bad" };
export const ended = word => is(ENDED[word] ?? "warn", word);
