// SPDX-License-Identifier: MIT OR Apache-2.0
// Fields that filter the table after an element of the class `table-filter`: one for words, and a list for each column
// with few values. Without this script the page shows the whole table.
"use strict";

const MAX_VALUES = 20;
const MAX_LENGTH = 40;

function find_table(place) {
  const tables = [...document.querySelectorAll("table")];
  return tables.find((table) => place.compareDocumentPosition(table) & Node.DOCUMENT_POSITION_FOLLOWING);
}

function read_values(rows, column) {
  const values = [...new Set(rows.map((row) => row.cells[column].textContent.trim()))];
  const is_short = values.every((value) => value.length <= MAX_LENGTH);
  return is_short && values.length > 1 && values.length <= MAX_VALUES ? values.sort() : [];
}

function make_list(name, values) {
  const list = document.createElement("select");
  list.setAttribute("aria-label", name);
  list.add(new Option(`${name}: all`, ""));
  for (const value of values) {
    list.add(new Option(value === "" ? "(empty)" : value, value === "" ? " " : value));
  }
  return list;
}

function add_filter(place) {
  const table = find_table(place);
  if (!table || place.childElementCount) {
    return;
  }
  const rows = [...table.tBodies[0].rows];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const words = document.createElement("input");
  words.type = "search";
  words.placeholder = "Filter rows";
  words.setAttribute("aria-label", "Filter rows");
  const lists = new Map();
  [...table.tHead.rows[0].cells].forEach((cell, column) => {
    const values = read_values(rows, column);
    if (values.length) {
      lists.set(column, make_list(cell.textContent.trim(), values));
    }
  });
  const count = document.createElement("output");

  function show_rows() {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, number) => {
      const matches =
        wanted.every((word) => texts[number].includes(word)) &&
        [...lists].every(([column, list]) => {
          return list.value === "" || row.cells[column].textContent.trim() === list.value.trim();
        });
      row.hidden = !matches;
      shown += matches ? 1 : 0;
    });
    count.textContent = `${shown} of ${rows.length} rows`;
  }

  place.append(words, ...lists.values(), count);
  place.addEventListener("input", show_rows);
  show_rows();
}

document.addEventListener("DOMContentLoaded", () => document.querySelectorAll(".table-filter").forEach(add_filter));
