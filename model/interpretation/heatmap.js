"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const UNIT = 65535; // a weight of 1
  const AVERAGE = "avg";
  const controls = {};
  for (const name of ["kind", "layer", "head", "units"]) controls[name] = document.getElementById(name);
  const table = document.getElementById("map");
  const readout = document.getElementById("readout");
  const hint = readout.textContent;
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  document.body.append(tip);
  const decoded = new Map();
  let shown = null; // {map, weights}
  let marked = [];

  /* All weights of one map: [layers, heads, rows, columns], little-endian uint16 in base64. */
  function weightsOf(map) {
    if (!decoded.has(map)) {
      const bytes = atob(map.weights);
      const values = new Uint16Array(bytes.length / 2);
      for (let i = 0; i < values.length; i++) {
        values[i] = bytes.charCodeAt(2 * i) | (bytes.charCodeAt(2 * i + 1) << 8);
      }
      decoded.set(map, values);
    }
    return decoded.get(map);
  }

  /* [rows * columns], 0 to 1: one layer and head, or the average over them. */
  function select(map, layer, head) {
    const all = weightsOf(map);
    const size = map.rows.length * map.columns.length;
    const sums = new Float64Array(size);
    let count = 0;
    for (let l = 0; l < map.layers; l++) {
      if (layer !== AVERAGE && Number(layer) !== l + 1) continue;
      for (let h = 0; h < map.heads; h++) {
        if (head !== AVERAGE && Number(head) !== h + 1) continue;
        const begin = (l * map.heads + h) * size;
        for (let i = 0; i < size; i++) sums[i] += all[begin + i];
        count++;
      }
    }
    return sums.map((sum) => sum / count / UNIT);
  }

  function fill(name, options, wanted) {
    const select = controls[name];
    const value = options.some(([known]) => known === wanted) ? wanted : options[0][0];
    select.replaceChildren(...options.map(([known, text]) => new Option(text, known)));
    select.value = value;
    return value;
  }

  function numbered(count) {
    if (count === 1) return [[AVERAGE, "1 of 1"]];
    const options = [[AVERAGE, "average of all"]];
    for (let i = 1; i <= count; i++) options.push([String(i), `${i} of ${count}`]);
    return options;
  }

  function show(wanted) {
    const kind = fill("kind", Object.entries(data.kinds).map(([name, { label }]) => [name, label]), wanted.kind);
    const units = fill("units", [["subwords", "subwords"], ["words", "words"]], wanted.units);
    const map = data.maps[kind][units];
    const layer = fill("layer", numbered(map.layers), wanted.layer);
    const head = fill("head", numbered(map.heads), wanted.head);
    shown = { map, weights: select(map, layer, head) };
    const causal = kind === "decoder" && units === "subwords"; // a word may be read in part
    const { label: name, meaning, unseen } = data.kinds[kind];
    document.getElementById("meaning").textContent = causal ? `${meaning} ${unseen}` : meaning;
    table.setAttribute("aria-label", name);
    draw(causal);
    history.replaceState(null, "", "#" + new URLSearchParams({ kind, layer, head, units }));
  }

  function label(tag, scope, text) {
    const cell = document.createElement(tag);
    cell.scope = scope;
    const isolated = document.createElement("bdi");
    isolated.textContent = text;
    cell.title = text;
    cell.append(isolated);
    return cell;
  }

  function draw(causal) {
    const { map, weights } = shown;
    const [rows, columns] = [map.rows.length, map.columns.length];
    let largest = 0;
    for (const weight of weights) largest = Math.max(largest, weight);
    document.getElementById("largest").textContent = largest.toFixed(3);
    const rem = columns <= 30 ? 2 : columns <= 60 ? 1.4 : 1.05;
    table.style.setProperty("--cell", rem + "rem");
    table.style.setProperty("--label", Math.min(0.95, rem * 0.8) + "rem");
    const head = document.createElement("tr");
    const corner = document.createElement(map.probabilities ? "th" : "td");
    corner.className = "corner";
    if (map.probabilities) corner.textContent = "probability";
    const header = document.createElement("thead");
    header.append(head);
    head.append(corner, ...map.columns.map((text) => label("th", "col", text)));
    const body = document.createElement("tbody");
    for (let r = 0; r < rows; r++) {
      const line = document.createElement("tr");
      const name = label("th", "row", map.rows[r]);
      const inner = document.createElement("span");
      inner.append(name.firstChild);
      if (map.probabilities) {
        const probability = document.createElement("span");
        probability.className = "probability";
        probability.textContent = map.probabilities[r].toFixed(3);
        inner.append(probability);
      }
      name.append(inner);
      line.append(name);
      for (let c = 0; c < columns; c++) {
        const cell = document.createElement("td");
        cell.tabIndex = r === 0 && c === 0 ? 0 : -1;
        if (causal && c > r) cell.className = "unseen";
        else cell.style.setProperty("--weight", (weights[r * columns + c] / (largest || 1)).toFixed(4));
        line.append(cell);
      }
      body.append(line);
    }
    table.replaceChildren(header, body);
    forget();
  }

  function place(cell) {
    return [cell.parentNode.sectionRowIndex, cell.cellIndex - 1];
  }

  function tell(cell) {
    const { map, weights } = shown;
    const [r, c] = place(cell);
    const weight = weights[r * map.columns.length + c];
    const isolate = (text) => `\u2068${text}\u2069`; // keeps right-to-left text from reordering the line
    let text = `${weight.toFixed(4)}: row ${isolate(map.rows[r])}, column ${isolate(map.columns[c])}`;
    if (map.probabilities) text += `; probability of ${isolate(map.rows[r])} ${map.probabilities[r].toFixed(4)}`;
    readout.textContent = text;
    cell.setAttribute("aria-label", text);
    for (const other of marked) other.classList.remove("here");
    marked = [cell.parentNode.cells[0], table.tHead.rows[0].cells[c + 1]];
    for (const other of marked) other.classList.add("here");
    tip.textContent = weight.toFixed(4);
    tip.hidden = false;
    const box = cell.getBoundingClientRect();
    const left = Math.min(box.right + 6, window.innerWidth - tip.offsetWidth - 4);
    tip.style.left = left + "px";
    tip.style.top = Math.max(box.top - tip.offsetHeight - 4, 2) + "px";
  }

  function forget() {
    for (const other of marked) other.classList.remove("here");
    marked = [];
    tip.hidden = true;
    readout.textContent = hint;
  }

  function cellOf(event) {
    return event.target.closest ? event.target.closest("#map tbody td") : null;
  }

  const MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

  function move(event) {
    const cell = cellOf(event);
    if (!cell || event.altKey || event.metaKey) return;
    const [rows, columns] = [shown.map.rows.length, shown.map.columns.length];
    let [r, c] = place(cell);
    if (MOVES[event.key]) {
      r += MOVES[event.key][0];
      c += MOVES[event.key][1];
    } else if (event.key === "Home" || event.key === "End") {
      c = event.key === "Home" ? 0 : columns - 1;
      if (event.ctrlKey) r = event.key === "Home" ? 0 : rows - 1;
    } else return;
    event.preventDefault();
    r = Math.min(Math.max(r, 0), rows - 1);
    c = Math.min(Math.max(c, 0), columns - 1);
    const next = table.tBodies[0].rows[r].cells[c + 1];
    cell.tabIndex = -1;
    next.tabIndex = 0;
    next.focus({ preventScroll: true });
    reveal(next);
  }

  /* Scrolls the cell out from under the labels, which stay in place. */
  function reveal(cell) {
    const frame = table.parentNode;
    const outer = frame.getBoundingClientRect();
    const box = cell.getBoundingClientRect();
    const left = outer.left + cell.parentNode.cells[0].offsetWidth;
    const top = outer.top + table.tHead.offsetHeight;
    const right = outer.left + frame.clientWidth;
    const bottom = outer.top + frame.clientHeight;
    frame.scrollLeft += Math.min(box.left - left, 0) + Math.max(box.right - right, 0);
    frame.scrollTop += Math.min(box.top - top, 0) + Math.max(box.bottom - bottom, 0);
    tell(cell);
  }

  function current() {
    const values = {};
    for (const name in controls) values[name] = controls[name].value;
    return values;
  }

  function fromAddress() {
    return { ...data.start, ...Object.fromEntries(new URLSearchParams(location.hash.slice(1))) };
  }

  for (const name in controls) controls[name].addEventListener("change", () => show(current()));
  document.querySelector(".controls").addEventListener("submit", (event) => event.preventDefault());
  table.addEventListener("pointerover", (event) => (cellOf(event) ? tell(cellOf(event)) : forget()));
  table.addEventListener("pointerleave", forget);
  table.addEventListener("focusin", (event) => cellOf(event) && tell(cellOf(event)));
  table.addEventListener("focusout", forget);
  table.addEventListener("keydown", move);
  table.parentNode.addEventListener("scroll", () => (tip.hidden = true));
  window.addEventListener("hashchange", () => show(fromAddress()));
  show(fromAddress());
})();
