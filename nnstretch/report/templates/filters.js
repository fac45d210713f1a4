// Narrows the rows of the table below the inputs, and the dots of the same rows in all charts.
// An input holds a range such as 10..20, ..20 or 10.., or a word that a cell contains.
"use strict";
for (const form of document.querySelectorAll(".filters")) {
  const inputs = [...form.querySelectorAll("input")];
  const rows = [...form.nextElementSibling.querySelectorAll("tbody tr")];
  const dots = new Map();
  for (const dot of document.querySelectorAll("[data-row]")) {
    const row = Number(dot.dataset.row);
    dots.set(row, [...(dots.get(row) ?? []), dot]);
  }
  const number = (text) => Number.parseFloat(text.replaceAll(",", ""));
  const test = (text) => {
    const range = /^\s*([-+.\deE]*?)\s*\.\.\s*([-+.\deE]*)\s*$/.exec(text);
    if (!range) return (cell) => cell.toLowerCase().includes(text.trim().toLowerCase());
    const low = range[1] ? number(range[1]) : -Infinity;
    const high = range[2] ? number(range[2]) : Infinity;
    return (cell) => number(cell) >= low && number(cell) <= high;
  };
  form.addEventListener("input", () => {
    const tests = inputs.filter((input) => input.value.trim()).map((input) => [Number(input.dataset.column), test(input.value)]);
    rows.forEach((row, index) => {
      const kept = tests.every(([column, passes]) => passes(row.cells[column].textContent));
      row.hidden = !kept;
      for (const dot of dots.get(index) ?? []) dot.style.display = kept ? "" : "none";
    });
  });
}
