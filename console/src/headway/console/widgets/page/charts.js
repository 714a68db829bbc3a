// The four charts: loss, throughput, step time, gradient norm. Lines over steps, with marks.

const CHART_HEIGHT = 150, CHART = { left: 54, right: 46, top: 8, bottom: 18 };

class Chart {
  // series: {name, column, colour ("a" or "b"), text(value)}; right: {factor(), text} of a second axis.
  // A logarithmic scale keeps a slow first step from flattening all others.
  constructor(parent, title, series, { fromZero = false, isLog = false, right = null } = {}) {
    this.figure = element("figure", parent, "", "chart");
    this.caption = element("figcaption", this.figure);
    element("strong", this.caption, title);
    this.values = series.map((one) => {
      const entry = element("span", this.caption, "", `key key-${one.colour}`);
      return { ...one, entry };
    });
    this.extra = element("span", this.caption, "", "extra");
    this.canvas = element("canvas", this.figure);
    this.canvas.setAttribute("role", "img");
    Object.assign(this, { title, fromZero, isLog, right, hovered: null });
    this.canvas.addEventListener("pointermove", (event) => { this.hovered = event.offsetX; this.redraw?.(); });
    this.canvas.addEventListener("pointerleave", () => { this.hovered = null; this.redraw?.(); });
  }

  // `dots` are [step, value]; `marks` steps; `facts` are those of the run.
  draw(store, colours, facts, { dots = [], marks = [] } = {}) {
    const { pen, width } = prepare(this.canvas, CHART_HEIGHT);
    const right = width - CHART.right, bottom = CHART_HEIGHT - CHART.bottom;
    const newest = store.numPoints ? store.point(store.numPoints - 1, POINT.step) : 0;
    const last = Math.max(10, Math.min(facts.steps || 10, Math.ceil(newest * 1.05)));
    const [low, high] = this.extent(store, dots), scale = this.isLog ? Math.log10 : (value) => value;
    const x = (step) => CHART.left + (right - CHART.left) * step / last;
    const y = (value) => bottom - (bottom - CHART.top) * (scale(value) - scale(low)) / (scale(high) - scale(low));
    this.axes(pen, { low, high, last, x, y, right, bottom }, colours);
    pen.save();
    pen.beginPath(); pen.rect(CHART.left, 0, right - CHART.left + 3, bottom + 1); pen.clip();
    for (const one of this.values.slice().reverse()) this.line(pen, store, one, x, y, colours);
    pen.fillStyle = colours.b;
    for (const [step, value] of dots) {
      pen.beginPath(); pen.arc(x(step), Math.max(CHART.top, Math.min(bottom, y(value))), 3.5, 0, 7); pen.fill();
    }
    pen.fillStyle = colours.mark;
    for (const step of marks) {
      pen.beginPath(); pen.moveTo(x(step), bottom - 8); pen.lineTo(x(step) - 4, bottom); pen.lineTo(x(step) + 4, bottom); pen.fill();
    }
    pen.restore();
    this.label(store, dots, marks, facts, this.hovered === null ? null : (this.hovered - CHART.left) / (right - CHART.left) * last);
  }

  extent(store, dots) {
    let low = Infinity, high = -Infinity;
    const take = (value) => { if (Number.isFinite(value) && !(this.isLog && value <= 0)) { low = Math.min(low, value); high = Math.max(high, value); } };
    for (const { column } of this.values) {
      if (column === null) continue;
      for (let row = 0; row < store.numPoints; row++) take(store.point(row, column));
    }
    for (const [, value] of dots) take(value);
    if (low > high) return this.isLog ? [0.1, 1] : [0, 1];
    if (this.isLog) return [low / 1.3, high * 1.3];
    if (this.fromZero) return [0, high * 1.1 || 1];
    const margin = (high - low) * 0.05 || Math.abs(high) * 0.05 || 0.5;
    return [low - margin, high + margin];
  }

  axes(pen, { low, high, last, x, y, right, bottom }, colours) {
    pen.strokeStyle = colours.grid; pen.fillStyle = colours.soft; pen.lineWidth = 1;
    const factor = this.right?.factor();
    for (const value of this.isLog ? logTicks(low, high, 5) : ticks(low, high, 4)) {
      pen.beginPath(); pen.moveTo(CHART.left, y(value)); pen.lineTo(right, y(value)); pen.stroke();
      pen.textAlign = "right"; pen.fillText(this.values[0].text(value, true), CHART.left - 5, y(value) + 4);
      if (factor) { pen.textAlign = "left"; pen.fillText(this.right.text(value * factor), right + 5, y(value) + 4); }
    }
    pen.textAlign = "center";
    const shown = ticks(0, last, 5).filter(Number.isInteger);
    for (const step of shown) pen.fillText(short(step), x(step), bottom + 14);
  }

  line(pen, store, { column, colour }, x, y, colours) {
    if (column === null) return;
    pen.strokeStyle = colours[colour]; pen.lineWidth = 1.5; pen.beginPath();
    let isDown = false;
    for (let row = 0; row < store.numPoints; row++) {
      const value = store.point(row, column);
      if (!Number.isFinite(value)) { isDown = false; continue; }
      const at = [x(store.point(row, POINT.step)), y(value)];
      if (isDown) pen.lineTo(...at); else { pen.moveTo(...at); pen.lineTo(at[0] + 0.5, at[1]); }
      isDown = true;
    }
    pen.stroke();
  }

  // The figures of the step under the pointer, else the newest ones; and the same as a text alternative.
  label(store, dots, marks, facts, step) {
    const row = nearest(store, step), at = row < 0 ? NaN : store.point(row, POINT.step);
    for (const { entry, name, column, text } of this.values) {
      const dot = dots.filter(([when]) => step === null || when <= step + 1).at(-1);
      const value = column === null ? dot?.[1] ?? NaN : row < 0 ? NaN : store.point(row, column);
      setText(entry, `${name} ${text(value)}`);
    }
    const factor = this.right?.factor(), rate = row < 0 ? NaN : store.point(row, this.values[0].column);
    const more = [];
    if (factor && Number.isFinite(rate)) more.push(`${this.right.name} ${this.right.text(rate * factor)}`);
    if (marks.length) more.push(`▲ ${marks.length} skipped, last at step ${marks.at(-1)}`);
    if (step !== null && row >= 0) more.push(`at step ${at}`);
    setText(this.extra, more.join(" · "));
    const words = [...this.values.map(({ entry }) => entry.textContent), ...more].join(", ");
    this.canvas.setAttribute("aria-label", `Chart of ${this.title} over ${facts.step ?? 0} steps: ${words}`);
  }
}

// The point at or before a step; the newest for null, -1 if there is none.
function nearest(store, step) {
  let row = store.numPoints - 1;
  if (step !== null) while (row > 0 && store.point(row, POINT.step) > step) row -= 1;
  return row;
}

function pairs(values) {
  const found = [];
  for (let k = 0; k + 1 < values.length; k += 2) found.push([values[k], values[k + 1]]);
  return found;
}

class Charts {
  constructor(parent, model, redraw) {
    const grid = element("div", parent, "", "charts");
    const loss = (value, isTick) => (isTick ? short(value) : Number.isFinite(value) ? value.toFixed(3) : "–");
    const percent = (value) => `${(value * 100).toFixed(value < 0.0995 ? 1 : 0)}%`;
    const times = (value, isTick) => (isTick ? span(value).replace(/\.0+ /, " ") : span(value)), factor = () => model.get("facts").mfu_per_rate;
    this.model = model;
    this.loss = new Chart(grid, "loss", [
      { name: "training", column: POINT.loss, colour: "a", text: loss },
      { name: "validation", column: null, colour: "b", text: loss }]);
    this.rate = new Chart(grid, "throughput", [{ name: "tokens/s", column: POINT.rate, colour: "a", text: short }],
      { fromZero: true, right: { name: "MFU", factor, text: percent } });
    this.time = new Chart(grid, "step time", [
      { name: "p50", column: POINT.p50, colour: "a", text: times },
      { name: "p99", column: POINT.p99, colour: "b", text: times }], { isLog: true });
    this.norm = new Chart(grid, "gradient norm", [{ name: "norm", column: POINT.norm, colour: "a", text: short }],
      { fromZero: true });
    for (const chart of [this.loss, this.rate, this.time, this.norm]) chart.redraw = redraw;
  }

  draw(store, colours) {
    const facts = this.model.get("facts"), marks = this.model.get("skipped");
    const dots = pairs(floats(this.model.get("validation")));
    this.loss.draw(store, colours, facts, { dots, marks });
    this.rate.draw(store, colours, facts);
    this.time.draw(store, colours, facts);
    this.norm.draw(store, colours, facts, { marks });
  }
}
