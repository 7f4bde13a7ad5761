import { empty, html, render } from "../parts.js";
export const title = "Experiments";
export function open(view) { render(html`<div class="head"><h1>Experiments</h1></div>${empty("None.", "")}`, view); }
