// Adds a filter above the table of presets: words that a row must contain, and a choice of families.
document.addEventListener("DOMContentLoaded", () => {
  const table = document.querySelector("table.presets");
  if (!table) return;
  const rows = [...table.tBodies[0].rows];
  const family = (row) => row.cells[1].textContent;

  const words = Object.assign(document.createElement("input"), {type: "search", placeholder: "large uncased"});
  const select = document.createElement("select");
  for (const name of ["", ...new Set(rows.map(family))]) select.add(new Option(name || "all", name));
  const count = document.createElement("output");

  const labelled = (text, control) => {
    const label = document.createElement("label");
    label.append(text, control);
    return label;
  };
  const form = document.createElement("form");
  form.className = "presets";
  form.append(labelled("Filter ", words), labelled("Family ", select), count);
  table.parentElement.before(form);

  const update = () => {
    const wanted = words.value.toLowerCase().split(/\s+/);
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !wanted.every((word) => text.includes(word)) || (select.value && select.value !== family(row));
    }
    count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} presets`;
  };
  form.addEventListener("input", update);
  form.addEventListener("submit", (event) => event.preventDefault());
  update();
});
