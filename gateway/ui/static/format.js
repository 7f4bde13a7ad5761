// Numbers as people read them, always with their unit; what is not known is a dash.

export const MISSING = "–";

const known = value => value !== null && value !== undefined && !Number.isNaN(value);

const figures = value => {
  const size = Math.abs(value);
  return size >= 100 ? value.toFixed(0) : size >= 10 ? value.toFixed(1) : value.toFixed(2);
};

export function seconds(value) {
  if (!known(value)) return MISSING;
  if (value >= 120) return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
  return value >= 1 ? `${figures(value)} s` : `${figures(value * 1000)} ms`;
}

export const speed = value => (known(value) ? `${figures(value)} tok/s` : MISSING);
export const count = value => (known(value) ? Math.round(value).toLocaleString("en") : MISSING);
export const rate = value => (known(value) ? `${value >= 10 ? value.toFixed(0) : value.toFixed(1)} /s` : MISSING);
export const share = value => (known(value) ? `${(value * 100).toFixed(value > 0 && value < 0.1 ? 1 : 0)} %` : MISSING);

export function bytes(value) {
  if (!known(value)) return MISSING;
  const [unit, size] = value >= 2 ** 30 ? ["GiB", 2 ** 30] : value >= 2 ** 20 ? ["MiB", 2 ** 20] : ["KiB", 2 ** 10];
  return `${figures(value / size)} ${unit}`;
}

export function change(ratio) {
  const value = ratio * 100;
  return `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(Math.abs(value) >= 10 ? 0 : 1)} %`;
}

export const clock = epoch => new Date(epoch * 1000).toLocaleTimeString("en-GB");
export const date = iso => (iso ? iso.slice(0, 16).replace("T", " ") : MISSING);
export const precision = each => [each.precision, each.scheme].filter(Boolean).join(" ");
export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

export function median(values) {
  if (!values.length) return null;
  const sorted = [...values].sort((one, other) => one - other);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}
