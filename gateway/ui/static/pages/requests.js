import { empty, html, render } from "../parts.js";
export const title = "Requests";
export function open(view) { render(html`<div class="head"><h1>Requests</h1></div>${empty("None.", "")}`, view); }
