// One step of a group: bars of each rank, and arrows from what a chosen action waited for.

const STEPS = { left: 66, top: 6, bottom: 20, tallest: 26, height: 440, mostHops: 200, least: 1 };
const NO_TIME = -1;

// A colour such as #4c8bf5 as the number that it has in the memory of a canvas.
const asPixel = (colour) => {
  const value = parseInt(colour.slice(1), 16);
  return (0xff000000 | (value & 0xff) << 16 | value & 0xff00 | value >> 16) >>> 0;
};

class Steps extends Sheet {
  constructor(figure, picture, page) {
    super(figure, picture, page);
    const { lane, end, start, ranks } = this.data;
    this.last = end.reduce((a, b) => Math.max(a, b), 1);
    this.first = start.reduce((a, b) => Math.min(a, b), this.last);
    [this.from, this.to] = [this.first, this.last];
    this.chosen = this.data.chosen;
    this.laneOf = new Map([...ranks].map((rank, place) => [rank, place]));
    this.begins = Int32Array.from({ length: ranks.length + 1 }, (_, row) => lane.findIndex((one) => one >= row));
    for (let row = ranks.length; row >= 0; row--) if (this.begins[row] < 0) this.begins[row] = lane.length;
    element("button", this.head, "whole step").onclick = () => { [this.from, this.to] = [this.first, this.last]; page.redraw(this); };
  }

  laneHeight() { return Math.max(2, Math.min(STEPS.tallest, STEPS.height / this.data.ranks.length)); }

  height() { return STEPS.top + this.laneHeight() * this.data.ranks.length + STEPS.bottom; }

  scale() { return (this.canvas.clientWidth - STEPS.left) / Math.max(1, this.to - this.from); }

  x(time) { return STEPS.left + (time - this.from) * this.scale(); }

  y(lane) { return STEPS.top + (lane + 0.5) * this.laneHeight(); }

  drag(dx) { const by = -dx / this.scale(); this.from += by; this.to += by; }

  zoom(factor, x) {
    const at = this.from + (x - STEPS.left) / this.scale();
    this.from = at - (at - this.from) / factor;
    this.to = Math.max(this.from + 1, at + (this.to - at) / factor);
  }

  draw(pen, width, height) {
    const window = `${this.from} ${this.to}`;
    pen.drawImage(this.layer("bars", window, width, height, (under) => this.drawBars(under, width)), 0, 0, width, height);
    const hops = this.chain(this.chosen);
    pen.save();
    pen.beginPath(); pen.rect(STEPS.left, 0, width, height); pen.clip();
    pen.strokeStyle = this.page.colours.ink;
    pen.lineWidth = 2;
    if (this.chosen >= 0) pen.strokeRect(...this.box(this.chosen));
    pen.strokeStyle = this.page.colours.mark;
    for (const { bar, lane, at } of hops) if (lane !== undefined) arrow(pen, [this.x(at), this.y(lane)], [this.x(this.data.end[bar]), this.y(this.data.lane[bar])]);
    pen.restore();
    setText(this.words, this.inWords(hops));
    this.publish({ drawn: this.numDrawn, arrows: hops.length, bars: this.data.lane.length });
  }

  box(bar) {
    const { lane, start, end, waits } = this.data, tall = this.laneHeight() * (waits[bar] ? 0.4 : 0.8), left = this.x(start[bar]);
    return [left, this.y(lane[bar]) - tall / 2, Math.max(STEPS.least, this.x(end[bar]) - left), Math.max(1, tall)];
  }

  // Straight into pixels: tens of thousands of rectangles of a canvas would take longer than a frame.
  drawBars(pen, width) {
    const { lane, start, end, kind, waits, kinds, ranks, unitUs } = this.data, tall = this.laneHeight();
    const ratio = window.devicePixelRatio || 1, image = pen.createImageData(pen.canvas.width, pen.canvas.height);
    const pixels = new Uint32Array(image.data.buffer), stride = image.width, scale = this.scale() * ratio;
    const edge = Math.round(STEPS.left * ratio), colours = Object.fromEntries(Object.keys(kinds).map((number) => [number, asPixel(ACTION_COLOURS[kinds[number]] || UNKNOWN_COLOUR)]));
    this.numDrawn = 0;
    for (let bar = 0; bar < lane.length; bar++) {
      const left = Math.max(edge, Math.round(edge + (start[bar] - this.from) * scale));
      const right = Math.min(stride, Math.max(left + 1, Math.round(edge + (end[bar] - this.from) * scale)));
      if (right <= edge || left >= stride || end[bar] < this.from) continue;
      const half = tall * ratio * (waits[bar] ? 0.2 : 0.4), middle = this.y(lane[bar]) * ratio, last = Math.max(middle - half + 1, middle + half);
      for (let row = Math.round(middle - half); row < last; row++) pixels.fill(colours[kind[bar]], row * stride + left, row * stride + right);
      this.numDrawn += 1;
    }
    pen.putImageData(image, 0, 0);
    pen.fillStyle = this.page.colours.soft;
    const every = Math.ceil(13 / tall);
    ranks.forEach((rank, place) => { if (place % every === 0) pen.fillText(`rank ${rank}`, 4, this.y(place) + 4); });
    for (const at of ticks((this.from - this.first) * unitUs * 1e-6, (this.to - this.first) * unitUs * 1e-6, 6)) {
      pen.fillText(span(at), this.x(this.first + at / (unitUs * 1e-6)), this.height() - 6);
    }
  }

  // What an action waited for, what that rank had waited for before, and so on: bar, and rank, lane and time of
  // the other side.
  chain(bar) {
    const { ready, readyRank, lane, ranks } = this.data, found = [];
    for (let hops = 0; bar >= 0 && hops < STEPS.mostHops; hops++) {
      const other = readyRank[bar];
      if (other < 0 || ready[bar] === NO_TIME || other === ranks[lane[bar]]) break;
      found.push({ bar, rank: other, lane: this.laneOf.get(other), at: ready[bar] });
      bar = this.waitBefore(this.laneOf.get(other), ready[bar]);
    }
    return found;
  }

  // The last action of a lane before a time that waited for another rank; -1 without one.
  waitBefore(lane, time) {
    if (lane === undefined) return -1;
    for (let bar = this.begins[lane + 1] - 1; bar >= this.begins[lane]; bar--) {
      if (this.data.end[bar] <= time && this.data.late[bar] > 0) return bar;
    }
    return -1;
  }

  inWords(hops) {
    if (this.chosen < 0) return "no action of this step waited for another rank";
    const words = [this.describe(this.chosen)];
    for (const { rank, lane } of hops) words.push(`waited for rank ${rank}${lane === undefined ? " (of another group)" : ""}`);
    return words.join(" \u2190 ");
  }

  describe(bar) {
    const { kind, kinds, waits, chunk, microBatch, start, end, late, unitUs, ranks, lane } = this.data, seconds = unitUs * 1e-6;
    const parts = [`rank ${ranks[lane[bar]]}: ${kinds[kind[bar]].toLowerCase().replaceAll("_", " ")}${waits[bar] ? " (wait)" : ""}`];
    if (microBatch[bar] >= 0) parts.push(`micro-batch ${microBatch[bar]} of chunk ${chunk[bar]}`);
    parts.push(span((end[bar] - start[bar]) * seconds));
    if (late[bar] > 0) parts.push(`${span(late[bar] * seconds)} of it for another rank`);
    return parts.join(", ");
  }

  find(x, y) {
    const lane = Math.floor((y - STEPS.top) / this.laneHeight()), time = this.from + (x - STEPS.left) / this.scale(), slack = 2 / this.scale();
    let best = -1;
    if (lane < 0 || lane >= this.data.ranks.length || x < STEPS.left) return best;
    for (let bar = this.begins[lane]; bar < this.begins[lane + 1]; bar++) {
      if (this.data.start[bar] - slack <= time && time <= this.data.end[bar] + slack) best = bar;
    }
    return best;
  }

  hint(x, y) { const bar = this.find(x, y); return bar < 0 ? "" : this.describe(bar); }

  click(x, y) {
    const bar = this.find(x, y);
    if (bar < 0) return;
    this.chosen = bar;
    this.page.select(this.data.ranks[this.data.lane[bar]]);
  }

  move(by) {
    this.chosen = Math.max(0, Math.min(this.data.lane.length - 1, this.chosen + by));
    this.page.redraw(this);
  }
}
