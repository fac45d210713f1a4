// Makes the rows of large tables from the data in the page: a hundred at a time, sorted by a click on a title, narrowed by the
// inputs below the titles. An input holds a range such as 10..20, ..20 or 10.., or a word that a cell contains. Dots of charts
// that belong to rows are narrowed too, and say what their row is.
"use strict";
const ROWS = 100;
const number = (text) => Number.parseFloat(text.replaceAll(",", ""));
const shown = (value, decimals) => {
  if (value === null) return "–";
  if (typeof value !== "number") return value;
  const written = decimals !== null && (value === 0 || Math.abs(value) >= 0.5 * 10 ** -decimals);
  if (written) return value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
  if (Number.isInteger(value) || Math.abs(value) >= 1e4) return value.toLocaleString("en-US", { maximumFractionDigits: 0 });
  return Math.abs(value) < 1e-4 ? value.toExponential(1) : String(Number(value.toPrecision(4)));
};
const test = (text, decimals) => {
  const range = /^\s*([-+.\deE]*?)\s*\.\.\s*([-+.\deE]*)\s*$/.exec(text);
  if (!range) return (value) => String(shown(value, decimals)).toLowerCase().includes(text.trim().toLowerCase());
  const low = range[1] ? number(range[1]) : -Infinity;
  const high = range[2] ? number(range[2]) : Infinity;
  return (value) => typeof value === "number" && value >= low && value <= high;
};
const compare = (a, b) => {
  if (typeof a === typeof b && a !== null) return a < b ? -1 : a > b ? 1 : 0;
  const rank = (value) => (value === null ? 2 : typeof value === "number" ? 0 : 1);
  return rank(a) - rank(b);
};
for (const table of document.querySelectorAll("table.live")) {
  const { columns, decimals, marked } = JSON.parse(table.nextElementSibling.textContent);
  const best = new Set(marked);
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const numeric = columns.map((column) => column.every((value) => value === null || typeof value === "number"));
  heads.forEach((head, place) => head.classList.toggle("number", numeric[place]));
  const titles = heads.map((head) => head.textContent);
  const inputs = [...table.querySelectorAll("thead input")];
  const pages = table.parentElement.nextElementSibling;
  const [back, on] = pages.querySelectorAll("button");
  const all = columns[0].map((_, row) => row);
  const linked = "linked" in table.dataset;
  const dots = [...document.querySelectorAll(linked ? "[data-row]" : "no-dots")].map((dot) => [dot, Number(dot.dataset.row)]);
  let order = all;
  let first = 0;

  const draw = () => {
    const rows = order.slice(first, first + ROWS).map((row) => {
      const made = document.createElement("tr");
      if (best.has(row)) made.className = "chosen";
      columns.forEach((column, place) => {
        const cell = made.insertCell();
        cell.textContent = shown(column[row], decimals[place]);
        if (numeric[place]) cell.className = "number";
      });
      return made;
    });
    body.replaceChildren(...rows);
    const [from, to, count] = [first + 1, first + rows.length, order.length].map((n) => n.toLocaleString("en-US"));
    pages.querySelector("span").textContent = rows.length ? `${from}–${to} of ${count} rows` : "no row";
    back.hidden = on.hidden = order.length <= ROWS;
    back.disabled = first === 0;
    on.disabled = first + ROWS >= order.length;
  };
  const arrange = () => {
    const tests = inputs.filter((input) => input.value.trim()).map((input) => [columns[input.dataset.column], test(input.value, decimals[input.dataset.column])]);
    order = all.filter((row) => tests.every(([column, passes]) => passes(column[row])));
    const place = heads.findIndex((head) => head.ariaSort);
    if (place >= 0) {
      const sign = heads[place].ariaSort === "ascending" ? 1 : -1;
      order.sort((a, b) => sign * compare(columns[place][a], columns[place][b]));
    }
    first = 0;
    draw();
  };
  const narrow = () => {
    arrange();
    const kept = new Set(order);
    for (const [dot, row] of dots) dot.style.display = kept.has(row) ? "" : "none";
  };
  const turn = (rows) => {
    first += rows;
    draw();
    table.parentElement.scrollTop = 0;
  };
  table.addEventListener("input", narrow);
  heads.forEach((head) => head.addEventListener("click", () => {
    const before = head.ariaSort;
    for (const other of heads) other.ariaSort = null;
    head.ariaSort = before === "ascending" ? "descending" : "ascending";
    arrange();
  }));
  back.addEventListener("click", () => turn(-ROWS));
  on.addEventListener("click", () => turn(ROWS));
  if (linked) document.addEventListener("pointerover", ({ target }) => {
    if (!target.dataset?.row || target.firstChild) return;
    const tip = document.createElementNS("http://www.w3.org/2000/svg", "title");
    const row = Number(target.dataset.row);
    tip.textContent = titles.slice(0, 8).map((title, place) => `${title}: ${shown(columns[place][row], decimals[place])}`).join("\n");
    target.append(tip);
  });
  draw();
}
