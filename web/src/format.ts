/** Numbers as people read them. Formatters are made once: a table of requests asks for thousands of numbers a second. */
const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const PARTS = [1, 2, 3].map((maximumFractionDigits) => new Intl.NumberFormat("en-US", { maximumFractionDigits }));

export function count(value: number): string {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (Number.isInteger(value)) return size < 1000 ? String(value) : WHOLE.format(value);
  return size >= 1000 ? WHOLE.format(Math.round(value)) : PARTS[size < 1 ? 2 : size < 10 ? 1 : 0]!.format(value);
}

export function seconds(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0 ms";
  if (size < 1e-3) return `${significant(value * 1e6)} µs`;
  if (size < 1) return `${significant(value * 1e3)} ms`;
  if (size < 120) return `${significant(value)} s`;
  return size < 7200 ? `${significant(value / 60)} min` : `${significant(value / 3600)} h`;
}

export const ms = (value: number | null | undefined): string =>
  value === null || value === undefined ? "–" : seconds(value / 1000);

export function bytes(value: number): string {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let rest = value;
  let unit = 0;
  while (Math.abs(rest) >= 1000 && unit < units.length - 1) {
    rest /= 1000;
    unit += 1;
  }
  return `${significant(rest)} ${units[unit]}`;
}

export const percent = (share: number): string =>
  Number.isFinite(share) ? `${significant(100 * share)} %` : "–";

export function significant(value: number, digits = 3): string {
  if (!Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1000) return WHOLE.format(Math.round(value));
  const decimals = Math.min(Math.max(digits - 1 - Math.floor(Math.log10(size)), 0), 8);
  const text = value.toFixed(decimals);
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

export const money = (value: number): string =>
  Number.isFinite(value) ? `$${value >= 1000 ? WHOLE.format(Math.round(value)) : significant(value)}` : "–";
