// What each rank did, on absolute time: a window that was zoomed or chosen stays where it is.

const LANES = 64, FOLLOWED_S = 12, SHORTEST_S = 1e-4, ASK_MS = 250;
const TIMELINE = { left: 62, right: 8, top: 4, bottom: 18 };
// A bar that ends less than this past the last painted one is left out; more where lanes are so many that
// a frame would take longer than 33 ms.
const LEAST_PX = 0.7, MOST_BARS = 25000;

function laneHeight(lanes) { return lanes <= 8 ? 22 : lanes <= 16 ? 16 : lanes <= 32 ? 11 : 7; }

class Timeline {
  constructor(parent, model, store, { redraw, select, open }) {
    Object.assign(this, { model, store, redraw, select, open, first: 0, pointer: null, dragged: 0 });
    this.view = { from: 0, to: 1, follows: true };
    const bar = element("div", parent, "", "row");
    element("strong", bar, "timeline");
    const button = (text, title, action) => {
      const made = element("button", bar, text);
      made.title = title;
      made.onclick = action;
      return made;
    };
    this.followButton = button("follow", "show the newest 12 seconds as they come", () => this.follow());
    button("−", "show more time (key −)", () => this.zoom(1.6, 0.5)).setAttribute("aria-label", "zoom out");
    button("+", "show less time (key +)", () => this.zoom(0.625, 0.5)).setAttribute("aria-label", "zoom in");
    const legend = element("span", bar, "", "legend");
    legend.setAttribute("aria-label", "colours of the timeline");
    legend.setAttribute("role", "group");
    for (const [kind, name] of LEGEND) {
      const entry = element("span", legend, name, "key");
      entry.style.setProperty("--key", ACTION_COLOURS[kind]);
    }
    element("span", legend, "wait", "key key-wait");
    element("span", legend, "recovery", "key key-band");
    const frame = element("div", parent, "", "frame");
    this.canvas = element("canvas", frame);
    this.tip = element("div", frame, "", "tip");
    this.tip.hidden = true;
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.canvas.title = "";
    this.listen();
  }

  follow() { this.view.follows = true; this.redraw(); }

  show(from, to) {
    Object.assign(this.view, { from, to, follows: false });
    clearTimeout(this.asking);
    this.asking = setTimeout(() => this.model.send({ kind: "window", from_s: from, to_s: to }), ASK_MS);
    this.redraw();
  }

  showBand(band) {
    const end = band.end_s ?? Math.max(this.store.newest, band.start_s + 1);
    const margin = Math.max(0.3, (end - band.start_s) / 2);
    this.show(band.start_s - margin, end + margin);
  }

  zoom(factor, at) {
    const { from, to } = this.view, length = Math.max(SHORTEST_S, (to - from) * factor), middle = from + (to - from) * at;
    this.show(middle - length * at, middle + length * (1 - at));
  }

  pan(share) {
    const { from, to } = this.view, shift = share * (to - from);
    this.show(from + shift, to + shift);
  }

  timeAt(x) {
    const share = (x - TIMELINE.left) / (this.canvas.clientWidth - TIMELINE.left - TIMELINE.right);
    return this.view.from + Math.max(0, Math.min(1, share)) * (this.view.to - this.view.from);
  }

  rankAt(y) {
    const lane = Math.floor((y - TIMELINE.top) / laneHeight(this.lanes));
    return lane >= 0 && lane < this.lanes ? this.first + lane : -1;
  }

  bandAt(at) { return this.model.get("bands").findLast((band) => band.start_s <= at && at <= (band.end_s ?? Infinity)); }

  listen() {
    const canvas = this.canvas;
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const share = (event.offsetX - TIMELINE.left) / (canvas.clientWidth - TIMELINE.left - TIMELINE.right);
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, Math.max(0, Math.min(1, share)));
    }, { passive: false });
    canvas.addEventListener("pointerdown", () => { this.dragged = 0; });
    canvas.addEventListener("pointermove", (event) => {
      this.pointer = [event.offsetX, event.offsetY];
      if (event.buttons) {
        this.dragged += Math.abs(event.movementX);
        if (this.dragged > 3) this.pan(-event.movementX / (canvas.clientWidth - TIMELINE.left - TIMELINE.right));
      }
      this.redraw();
    });
    canvas.addEventListener("pointerleave", () => { this.pointer = null; this.redraw(); });
    canvas.addEventListener("dblclick", () => this.follow());
    canvas.addEventListener("click", (event) => {
      if (this.dragged > 3) return;
      const rank = this.rankAt(event.offsetY), band = this.bandAt(this.timeAt(event.offsetX));
      if (rank >= 0) this.select(rank);
      if (band) this.open(band);
    });
    canvas.addEventListener("keydown", (event) => {
      const keys = { "+": () => this.zoom(0.625, 0.5), "-": () => this.zoom(1.6, 0.5), ArrowLeft: () => this.pan(-0.2),
        ArrowRight: () => this.pan(0.2), Home: () => this.follow() };
      if (!keys[event.key]) return;
      event.preventDefault();
      event.stopPropagation();
      keys[event.key]();
    });
  }

  draw(colours, selected, numRanks) {
    const view = this.view, store = this.store, facts = this.model.get("facts");
    if (view.follows) { view.to = store.newest || 1; view.from = view.to - FOLLOWED_S; }
    const ranks = Math.max(1, numRanks || store.numRanks);
    this.lanes = Math.min(LANES, ranks);
    this.first = ranks <= LANES ? 0 : Math.max(0, Math.min(ranks - LANES, selected - LANES / 2));
    const lane = laneHeight(this.lanes), height = TIMELINE.top + this.lanes * lane + TIMELINE.bottom;
    const { pen, width } = prepare(this.canvas, height), right = width - TIMELINE.right;
    const x = (at) => TIMELINE.left + (right - TIMELINE.left) * (at - view.from) / (view.to - view.from);
    this.labels(pen, lane, selected, colours);
    this.times(pen, x, right, height, facts.clock_offset_s || 0, colours);
    pen.save();
    pen.beginPath(); pen.rect(TIMELINE.left, TIMELINE.top, right - TIMELINE.left, this.lanes * lane); pen.clip();
    for (const band of this.model.get("bands")) {
      const left = x(band.start_s), end = x(band.end_s ?? view.to);
      if (end < TIMELINE.left || left > right) continue;
      pen.fillStyle = colours.band;
      pen.fillRect(left, TIMELINE.top, Math.max(2, end - left), this.lanes * lane);
    }
    const drawn = this.bars(pen, x, right, lane, colours);
    pen.restore();
    this.followButton.setAttribute("aria-pressed", String(view.follows));
    this.hover(width);
    this.canvas.setAttribute("aria-label", `Timeline of ${this.lanes} of ${ranks} ranks, ${span(view.to - view.from)} long, `
      + `${view.follows ? "following the run" : "kept in place"}, ${this.model.get("bands").length} recoveries. `
      + "Arrow keys move it, plus and minus zoom, Home follows the run.");
    return drawn;
  }

  labels(pen, lane, selected, colours) {
    const every = lane >= 11 ? 1 : 8;
    pen.textAlign = "right";
    for (let row = 0; row < this.lanes; row++) {
      const rank = this.first + row, y = TIMELINE.top + row * lane;
      pen.fillStyle = rank === selected ? colours.a : colours.soft;
      if (rank % every === 0 || rank === selected) pen.fillText(`rank ${rank}`, TIMELINE.left - 6, y + lane / 2 + 4);
      if (rank === selected) pen.fillRect(TIMELINE.left - 3, y + 1, 3, lane - 2);
    }
  }

  times(pen, x, right, height, offsetS, colours) {
    const { from, to } = this.view, marks = ticks(from + offsetS, to + offsetS, Math.max(2, (right - TIMELINE.left) / 130));
    const size = marks.length > 1 ? marks[1] - marks[0] : 1, digits = size >= 1 ? 0 : size >= 0.01 ? 2 : 4;
    pen.textAlign = "center"; pen.fillStyle = colours.soft; pen.strokeStyle = colours.grid;
    for (const mark of marks) {
      const at = x(mark - offsetS);
      if (at < TIMELINE.left + 25 || at > right - 25) continue;
      pen.beginPath(); pen.moveTo(at, TIMELINE.top); pen.lineTo(at, height - TIMELINE.bottom); pen.stroke();
      pen.fillText(clock(mark, digits), at, height - 4);
    }
  }

  // Waits and what surrounds other actions first, then the work; nothing that adds less than a pixel.
  bars(pen, x, right, height, colours) {
    const kinds = this.model.get("kinds");
    const paint = Array.from({ length: 2 * WAITS }, (_, kind) => (
      kind >= WAITS ? colours.wait : ACTION_COLOURS[kinds[String(kind)]] || colours.soft));
    const crowded = this.lanes * (right - TIMELINE.left) / MOST_BARS;
    const least = crowded > LEAST_PX ? Math.ceil(crowded) : LEAST_PX;
    let drawn = 0;
    for (let place = 0; place < this.lanes; place++) {
      for (const isBehind of [true, false]) {
        const lane = this.store.lane(this.first + place, isBehind), top = TIMELINE.top + place * height + 1;
        drawn += this.lane(pen, lane, paint, { right, top, height: height - 2, isBehind, least });
      }
    }
    return drawn;
  }

  lane(pen, lane, paint, { right, top, height, isBehind, least }) {
    const { from, to } = this.view, scale = (right - TIMELINE.left) / (to - from), { start, end, kind, count } = lane;
    const snap = least > LEAST_PX ? Math.round : (value) => value;  // whole pixels are painted faster
    let painted = -1, last = -1, drawn = 0, y = 0, tall = 0;
    for (let row = lane.first(from); row < count && start[row] <= to; row++) {
      const left = TIMELINE.left + (start[row] - from) * scale, edge = TIMELINE.left + (end[row] - from) * scale;
      if (edge < painted + least && edge >= painted) continue;
      if (edge < TIMELINE.left) continue;
      if (kind[row] !== last) {
        last = kind[row];
        pen.fillStyle = paint[last];
        const inset = snap(height * (last >= WAITS ? 0.28 : isBehind ? 0 : 0.12));
        y = top + inset;
        tall = Math.max(1, height - 2 * inset);
      }
      const shown = snap(Math.max(left, TIMELINE.left));
      pen.fillRect(shown, y, Math.max(least, snap(Math.min(edge, right)) - shown), tall);
      painted = Math.max(painted, edge);
      drawn += 1;
    }
    return drawn;
  }

  hover(width) {
    const words = this.pointer ? this.describe(...this.pointer) : "";
    this.tip.hidden = !words;
    if (!words) return;
    setText(this.tip, words);
    const left = Math.min(this.pointer[0] + 12, width - this.tip.offsetWidth - 4);
    Object.assign(this.tip.style, { left: `${Math.max(0, left)}px`, top: `${this.pointer[1] + 14}px` });
  }

  describe(x, y) {
    const rank = this.rankAt(y), at = this.timeAt(x), pixel = this.timeAt(x + 1) - at, store = this.store;
    if (x < TIMELINE.left || rank < 0) return "";
    const bar = store.find(rank, at, pixel), band = this.bandAt(at);
    if (!bar) return band ? `recovery: ${band.reason}; ${band.cost} (click to open)` : "";
    const name = this.model.get("kinds")[String(bar.kind % WAITS)] || "action";
    const parts = [`rank ${rank}`, name.toLowerCase().replaceAll("_", " ") + (bar.kind >= WAITS ? " (wait)" : "")];
    if (bar.microBatch !== NO_MICRO_BATCH) parts.push(`micro-batch ${bar.microBatch}`);
    parts.push(span(bar.end - bar.start));
    parts.push(clock(bar.start + (this.model.get("facts").clock_offset_s || 0), 3));
    return parts.join(" · ");
  }
}
