// SPDX-License-Identifier: MIT OR Apache-2.0
// Numbers as people read them: binary units, thousands set apart, exact bytes beside.

const UNITS = ["KiB", "MiB", "GiB", "TiB", "PiB"];

/** Bytes in binary units, two decimals from KiB on. */
export function bytes(value: number): string {
  const sign = value < 0 ? "−" : "";
  let size = Math.abs(value);
  if (size < 1024) return `${sign}${Math.round(size)} B`;
  let unit = -1;
  while (size >= 1024 && unit + 1 < UNITS.length) {
    size /= 1024;
    unit += 1;
  }
  return `${sign}${size.toFixed(2)} ${UNITS[unit]}`;
}

/** Bytes of an axis: no decimals that are all zero. */
export function roundBytes(value: number): string {
  return bytes(value).replace(/\.00 /, " ").replace(/(\.\d)0 /, "$1 ");
}

const grouped = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** A whole number with thousands set apart. */
export function count(value: number): string {
  return grouped.format(value);
}

/** A count with its noun. */
export function plural(value: number, noun: string, many = `${noun}s`): string {
  return `${count(value)} ${value === 1 ? noun : many}`;
}

/** Both: the size to read and the bytes to compare. */
export function exact(value: number): string {
  return value < 1024 ? bytes(value) : `${bytes(value)} (${count(value)} B)`;
}

/** The number of an event as the terminal counts them: rows count from 0, events from 1. */
export function event(row: number): string {
  return `event ${count(Math.floor(row) + 1)}`;
}

/** A share of a whole. */
export function share(part: number, whole: number): string {
  if (whole <= 0) return "0 %";
  const percent = (100 * part) / whole;
  if (percent > 0 && percent < 0.1) return "< 0.1 %";
  return `${percent.toFixed(percent < 10 ? 1 : 0)} %`;
}

/** A duration since the start of the recording. */
export function duration(nanoseconds: number): string {
  // Rounded first, so that no minute has sixty seconds.
  const seconds = nanoseconds / 1e9;
  const tenths = Math.round(seconds * 10) / 10;
  if (tenths >= 3600) return `${Math.floor(tenths / 3600)} h ${Math.floor((tenths % 3600) / 60)} min`;
  if (tenths >= 60) return `${Math.floor(tenths / 60)} min ${(tenths % 60).toFixed(1)} s`;
  if (seconds >= 1) return `${seconds.toFixed(2)} s`;
  return `${(seconds * 1000).toFixed(2)} ms`;
}

/** A round step of about this size or more; sizes count within binary units: 1, 2, 5 … 500 MiB, then 1 GiB. */
export function niceStep(rough: number, binary: boolean): number {
  if (!(rough > 0)) return 1;
  const steps = [1, 2, 5, 10, 20, 50, 100, 200, 500];
  for (let unit = 1; unit < 1e18; unit *= binary ? 1024 : 1000) {
    for (const step of steps) if (step * unit >= rough) return step * unit;
  }
  return rough;
}
