// Sort a table by the column whose title is clicked: ascending, then descending. Cells without a figure stay last.
const BYTES = { kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12 };
const valueOf = (cell) => {
  const name = cell.querySelector(".who");
  if (name) return name.title;
  const text = cell.firstChild?.data?.trim() ?? "";
  const figure = /^(-?[\d.]+(?:e[+-]?\d+)?)\s*([kMGT]?B\b)?/.exec(text.replace(/,(?=\d{3})/g, "").replace("−", "-"));
  return figure ? figure[1] * (BYTES[figure[2]] ?? 1) : text;
};
const isMissing = (value) => value === "" || value === "–";
const compare = (a, b, sign) => {
  if (isMissing(a) || isMissing(b)) return isMissing(a) - isMissing(b);
  if (typeof a === "number" && typeof b === "number") return sign * (a - b);
  return sign * String(a).localeCompare(String(b), "en", { numeric: true });
};
for (const table of document.querySelectorAll("table:not(.values)")) {
  const body = table.tBodies[0], titles = [...table.tHead.rows[0].cells];
  if (body.rows.length < 2) continue;
  titles.forEach((title, column) => {
    const button = document.createElement("button");
    button.append(...title.childNodes);
    title.append(button);
    button.addEventListener("click", () => {
      const sign = title.ariaSort === "ascending" ? -1 : 1;
      for (const other of titles) other.removeAttribute("aria-sort");
      title.ariaSort = sign > 0 ? "ascending" : "descending";
      const keyed = [...body.rows].map((row) => [valueOf(row.cells[column]), row]);
      body.append(...keyed.sort(([a], [b]) => compare(a, b, sign)).map(([, row]) => row));
    });
  });
}
