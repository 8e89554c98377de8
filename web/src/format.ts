/** Numbers as people read them. */
export function count(value: number): string {
  if (!Number.isFinite(value)) return "–";
  return Math.abs(value) >= 1000 || Number.isInteger(value)
    ? Math.round(value).toLocaleString("en-US")
    : value.toLocaleString("en-US", { maximumFractionDigits: Math.abs(value) < 1 ? 3 : Math.abs(value) < 10 ? 2 : 1 });
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
  if (size >= 1000) return Math.round(value).toLocaleString("en-US");
  const decimals = Math.min(Math.max(digits - 1 - Math.floor(Math.log10(size)), 0), 8);
  const text = value.toFixed(decimals);
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

export const money = (value: number): string =>
  Number.isFinite(value) ? `$${value >= 1000 ? Math.round(value).toLocaleString("en-US") : significant(value)}` : "–";
