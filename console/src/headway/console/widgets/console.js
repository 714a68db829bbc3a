// The page's half of the live console: draws what the traits hold, sends what is pressed. No network, no library.
// State that tests read stands in data attributes of the root: step, points, bars, bands, selected, draws.

const COLOURS = {
  FORWARD: "#4c8bf5", BACKWARD: "#f29d38", BACKWARD_INPUT: "#f29d38", BACKWARD_WEIGHT: "#c9741a",
  OPTIMIZER: "#7b5cd6", NORM: "#b04a8f", ALL_GATHER: "#2fa39a", REDUCE_SCATTER: "#1d7f78",
  SEND_FORWARD: "#9cc3ff", SEND_BACKWARD: "#f7c98b", RECV_FORWARD: "#9cc3ff", RECV_BACKWARD: "#f7c98b",
  DATA: "#8aa05a", SNAPSHOT: "#55607a", EVAL: "#5fb4d9", RESTORE: "#d64545", JOIN: "#a8322f",
};
const SPANS = new Set(["EVAL", "RESTORE", "JOIN"]);
const WAIT = "#dfe3ec";
const STATUS = { running: "#3aa35a", finished: "#7d8597", joining: "#e0a325", out: "#e0a325", idle: "#9aa3b5" };
const LOST = "#c9302c";
const AXIS = "#6b7488";
const FOLLOWED_S = 12;
const LANE = 22, TOP = 16, LEFT = 58, RIGHT = 64;

function element(tag, parent, text = "", className = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  if (className) made.className = className;
  parent.appendChild(made);
  return made;
}

function floats(view, columns) {
  if (!view || !view.byteLength) return { rows: 0, at: () => 0 };
  const bytes = new Uint8Array(view.buffer, view.byteOffset, view.byteLength).slice();
  const values = new Float32Array(bytes.buffer);
  return { rows: Math.floor(values.length / columns), at: (row, column) => values[row * columns + column] };
}

function prepare(canvas, height) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth || 900;
  canvas.style.height = `${height}px`;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = "11px system-ui, sans-serif";
  return { pen, width };
}

function extent(table, column) {
  let low = Infinity, high = -Infinity;
  for (let row = 0; row < table.rows; row++) {
    const value = table.at(row, column);
    if (Number.isFinite(value)) { low = Math.min(low, value); high = Math.max(high, value); }
  }
  return low > high ? [0, 1] : low === high ? [low - 0.5, high + 0.5] : [low, high];
}

function drawChart(canvas, curve, validation, step, steps) {
  const height = 190, { pen, width } = prepare(canvas, height);
  const bottom = height - 20, right = width - RIGHT, last = Math.max(10, Math.min(steps, Math.ceil(step * 1.15)));
  const [low, high] = extent(curve, 1), fastest = extent(curve, 2)[1] * 1.1 || 1;
  const x = (step) => LEFT + (right - LEFT) * step / last;
  const yLoss = (v) => bottom - (bottom - TOP) * (v - low) / (high - low);
  const yRate = (v) => bottom - (bottom - TOP) * v / fastest;
  pen.fillStyle = AXIS;
  pen.strokeStyle = "#e3e7ef";
  for (let tick = 0; tick <= 4; tick++) {
    const y = bottom - (bottom - TOP) * tick / 4;
    pen.beginPath(); pen.moveTo(LEFT, y); pen.lineTo(right, y); pen.stroke();
    pen.textAlign = "right"; pen.fillText((low + (high - low) * tick / 4).toFixed(2), LEFT - 6, y + 4);
    pen.textAlign = "left"; pen.fillText(Math.round(fastest * tick / 4).toLocaleString(), right + 6, y + 4);
    pen.textAlign = "center"; pen.fillText(Math.round(last * tick / 4), x(last * tick / 4), height - 5);
  }
  const line = (table, column, y, colour, thickness) => {
    pen.strokeStyle = colour; pen.lineWidth = thickness; pen.beginPath();
    for (let row = 0; row < table.rows; row++) pen.lineTo(x(table.at(row, 0)), y(table.at(row, column)));
    pen.stroke(); pen.lineWidth = 1;
  };
  line(curve, 2, yRate, "#b9c6dd", 1);
  line(curve, 1, yLoss, "#2a5bd7", 1.6);
  pen.fillStyle = "#d64545";
  for (let row = 0; row < validation.rows; row++) {
    const y = Math.min(bottom, Math.max(TOP, yLoss(validation.at(row, 1))));
    pen.beginPath(); pen.arc(x(validation.at(row, 0)), y, 4, 0, 7); pen.fill();
  }
  legend(pen, [["#2a5bd7", "loss (nats)"], ["#d64545", "validation"], ["#b9c6dd", "tokens/s"]]);
}

function legend(pen, entries) {
  let x = LEFT;
  pen.textAlign = "left";
  for (const [colour, text] of entries) {
    pen.fillStyle = colour; pen.fillRect(x, 3, 10, 8);
    pen.fillStyle = AXIS; pen.fillText(text, x + 14, 11);
    x += 26 + pen.measureText(text).width;
  }
}

function drawTimeline(canvas, bars, bands, kinds, view) {
  let lanes = 1;
  for (let row = 0; row < bars.rows; row++) lanes = Math.max(lanes, bars.at(row, 0) + 1);
  const height = TOP + lanes * LANE + 20, { pen, width } = prepare(canvas, height);
  const x = (s) => LEFT + (width - LEFT - 8) * (s - view.from) / (view.to - view.from);
  pen.fillStyle = AXIS; pen.textAlign = "right";
  for (let rank = 0; rank < lanes; rank++) pen.fillText(`rank ${rank}`, LEFT - 6, TOP + rank * LANE + 14);
  pen.save();
  pen.beginPath(); pen.rect(LEFT, TOP, width - LEFT - 8, lanes * LANE); pen.clip();
  for (const [start, end] of bands) {
    pen.fillStyle = "rgba(214, 69, 69, 0.16)";
    pen.fillRect(x(start), TOP, Math.max(2, x(end === null ? view.to : end) - x(start)), lanes * LANE);
  }
  let drawn = 0;
  for (const behind of [true, false]) {  // waits and what spans other actions first, then the work itself
    let lane = -1, painted = -1;
    for (let row = 0; row < bars.rows; row++) {
      const rank = bars.at(row, 0), kind = bars.at(row, 3), waits = kind >= 100, name = kinds[String(kind)];
      if ((waits || SPANS.has(name)) !== behind) continue;
      const right = x(bars.at(row, 2)), left = x(bars.at(row, 1));
      if (rank !== lane) { lane = rank; painted = -1; }
      if (right < LEFT || left > width || right - painted < 0.7) continue;  // less than a pixel more
      pen.fillStyle = waits ? WAIT : COLOURS[name] || "#888";
      const inset = waits ? 6 : behind ? 0 : 3;
      pen.fillRect(left, TOP + rank * LANE + 1 + inset, Math.max(0.7, right - left), LANE - 2 - 2 * inset);
      painted = Math.max(painted, right);
      drawn++;
    }
  }
  pen.restore();
  pen.fillStyle = AXIS; pen.textAlign = "center";
  for (let tick = 0; tick <= 6; tick++) {
    const s = view.from + (view.to - view.from) * tick / 6;
    pen.textAlign = tick === 6 ? "right" : "center";
    pen.fillText(`${s.toFixed(view.to - view.from < 3 ? 3 : 1)} s`, x(s), height - 5);
  }
  legend(pen, [[COLOURS.FORWARD, "forward"], [COLOURS.BACKWARD, "backward"], [COLOURS.ALL_GATHER, "collective"], [COLOURS.NORM, "norm"],
    [COLOURS.OPTIMIZER, "optimizer"], [COLOURS.EVAL, "eval"], [COLOURS.RESTORE, "restore"], [WAIT, "wait"], ["rgba(214,69,69,.3)", "recovery"]]);
  return drawn;
}

function render({ model, el }) {
  const root = element("div", el, "", "headway-console");
  root.setAttribute("aria-label", "Headway run console");
  const line = element("div", root, "", "row line"), chart = element("canvas", root);
  const ranks = element("div", root, "", "row"), timeline = element("canvas", root);
  const buttons = element("div", root, "", "row"), answer = element("div", root, "", "row answer");
  const news = element("div", root, "", "news");
  timeline.tabIndex = 0;
  const view = { from: 0, to: 1, follows: true };
  let selected = 0, draws = 0, sent = 0;

  const send = (operation, options = {}) => {
    sent += 1;
    model.set("command", { id: `${Date.now()}-${Math.random().toString(36).slice(2)}-${sent}`, operation, ...options });
    model.save_changes();
  };
  const button = (label, action, hint) => {
    const made = element("button", buttons, label);
    made.title = hint;
    made.onclick = action;
  };
  const name = () => model.get("facts").name || "RUN";
  for (const operation of ["pause", "resume", "checkpoint", "stop"]) {
    button(operation, () => send(operation), `headway ${operation} RUN`);
  }
  const lr = element("input", buttons);
  lr.placeholder = "lr"; lr.setAttribute("aria-label", "learning rate");
  button("set lr", () => {
    const value = Number(lr.value);
    send("set", { name: "lr", value: Number.isFinite(value) ? value : 0 });
  }, "headway set RUN lr=VALUE");
  button("unset lr", () => send("unset", { name: "lr" }), "headway unset RUN lr");
  button("kill rank", () => send("inject", { name: "worker", fault: "kill", rank: selected }), "headway inject RUN kill --rank R");
  button("stop rank (SIGSTOP)", () => send("inject", { name: "worker", fault: "stop", rank: selected }), "headway inject RUN stop --rank R");

  button("show recovery", () => {
    const band = model.get("bands").at(-1);
    if (!band) return;
    const margin = Math.max(0.5, ((band[1] ?? band[0] + 1) - band[0]) / 2);
    Object.assign(view, { from: band[0] - margin, to: (band[1] ?? span()) + margin, follows: false });
    soon();
  }, "the last recovery on the timeline; double-click follows again");

  const span = () => {
    const bars = floats(model.get("bars"), 4), last = extent(bars, 2)[1];
    return bars.rows ? last : 1;
  };
  const draw = () => {
    const facts = model.get("facts"), curve = floats(model.get("curve"), 3), bars = floats(model.get("bars"), 4);
    if (view.follows) { view.to = span(); view.from = Math.max(0, view.to - FOLLOWED_S); }
    line.textContent = facts.name ? `${facts.name}: ${facts.line}` : "waiting for the run";
    drawChart(chart, curve, floats(model.get("validation"), 2), facts.step || 0, facts.steps || 1);
    const drawn = drawTimeline(timeline, bars, model.get("bands"), model.get("kinds"), view);
    draws += 1;
    Object.assign(root.dataset, { step: facts.step ?? -1, points: curve.rows, bars: bars.rows, drawn,
      bands: model.get("bands").length, selected, draws });
  };
  const drawRanks = () => {
    ranks.replaceChildren();
    for (const rank of model.get("ranks")) {
      const made = element("button", ranks, `rank ${rank.rank} · n${rank.node} · ${rank.step}`, "rank");
      made.style.borderLeftColor = STATUS[rank.status] || LOST;
      made.title = `${rank.status}, pid ${rank.pid}`;
      made.setAttribute("aria-pressed", String(rank.rank === selected));
      made.onclick = () => { selected = rank.rank; drawRanks(); draw(); };
    }
  };
  const drawNews = () => {
    news.textContent = model.get("news").slice().reverse().join("\n");
    const said = model.get("answer");
    answer.className = said.is_error ? "row answer error" : "row answer";
    answer.replaceChildren();
    if (said.text) { element("span", answer, said.text); element("code", answer, said.cli || name()); }
  };

  let waiting = 0;
  const soon = () => { waiting ||= requestAnimationFrame(() => { waiting = 0; draw(); }); };
  const zoom = (factor, at) => {
    view.follows = false;
    const middle = view.from + (view.to - view.from) * at;
    view.from = middle - (middle - view.from) * factor;
    view.to = middle + (view.to - middle) * factor;
    if (view.to - view.from > 2 * span()) view.follows = true;
    soon();
  };
  timeline.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, Math.max(0, (event.offsetX - LEFT) / (timeline.clientWidth - LEFT)));
  }, { passive: false });
  timeline.addEventListener("pointermove", (event) => {
    if (!event.buttons) return;
    const shift = event.movementX / (timeline.clientWidth - LEFT) * (view.to - view.from);
    view.follows = false; view.from -= shift; view.to -= shift;
    soon();
  });
  timeline.addEventListener("dblclick", () => { view.follows = true; soon(); });
  timeline.addEventListener("keydown", (event) => {
    if (event.key === "+" || event.key === "-") zoom(event.key === "+" ? 0.8 : 1.25, 0.5);
  });

  const handlers = { "change:facts": soon, "change:curve": soon, "change:validation": soon, "change:bars": soon,
    "change:bands": soon, "change:ranks": drawRanks, "change:news": drawNews, "change:answer": drawNews };
  for (const [event, handler] of Object.entries(handlers)) model.on(event, handler);
  const observer = new ResizeObserver(soon);
  observer.observe(root);
  drawRanks(); drawNews(); soon();
  return () => {
    observer.disconnect();
    for (const [event, handler] of Object.entries(handlers)) model.off(event, handler);
  };
}

export default { render };
