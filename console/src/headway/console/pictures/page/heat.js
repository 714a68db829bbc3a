// Heat map of one action: ranks as the grid, or ranks over steps.

const HEAT = { left: 56, top: 6, bottom: 20, gap: 5, widest: 256, timeHeight: 480 };

class Heat extends Sheet {
  constructor(figure, picture, page) {
    super(figure, picture, page);
    const { grid, outliers } = this.data;
    this.isOverSteps = false;
    this.columns = Math.min(grid.dp, HEAT.widest);
    this.wraps = Math.ceil(grid.dp / this.columns);
    this.marked = new Set(outliers);
    this.buttons = [["as the grid", false], ["over steps", true]].map(([name, value]) => {
      const made = element("button", this.head, name);
      made.onclick = () => { this.isOverSteps = value; page.redraw(this); };
      return [made, value];
    });
    page.list(this.head, outliers, (rank) => ratioText(this.data.overall[rank]));
  }

  get rows() { return this.data.grid.pp * this.data.grid.tp * this.wraps; }

  cellHeight() { return Math.max(2, Math.min(22, 480 / this.rows)); }

  height() {
    if (this.isOverSteps) return HEAT.top + HEAT.timeHeight + HEAT.bottom;
    return HEAT.top + this.rows * this.cellHeight() + (this.data.grid.pp - 1) * HEAT.gap + HEAT.bottom;
  }

  draw(pen, width, height) {
    for (const [made, value] of this.buttons) made.setAttribute("aria-pressed", String(value === this.isOverSteps));
    const layer = this.layer("cells", this.isOverSteps, width, height, (under) => (this.isOverSteps ? this.drawSteps(under, width) : this.drawGrid(under, width)));
    pen.drawImage(layer, 0, 0, width, height);
    const rank = this.page.selected;
    if (rank >= 0 && rank < this.data.overall.length) {
      pen.strokeStyle = this.page.colours.ink;
      pen.lineWidth = 2;
      pen.strokeRect(...this.box(rank, width));
      const place = placeText(placeOf(this.data.grid, rank));
      setText(this.words, `rank ${rank} (${place}): ${span(this.data.seconds[rank])} per step, ${ratioText(this.data.overall[rank])}`);
    }
    this.publish({ drawn: this.data.overall.length, marked: this.marked.size, view: this.isOverSteps ? "steps" : "grid" });
  }

  // Left, top, width and height of a rank's cell, or of its row of pixels.
  box(rank, width) {
    const plot = width - HEAT.left;
    if (this.isOverSteps) {
      const tall = HEAT.timeHeight / this.data.overall.length;
      return [HEAT.left, HEAT.top + rank * tall, plot, Math.max(1, tall)];
    }
    const { grid } = this.data, { tp, dp, pp } = placeOf(grid, rank), tall = this.cellHeight();
    const row = (pp * this.wraps + Math.floor(dp / this.columns)) * grid.tp + tp, wide = plot / this.columns;
    return [HEAT.left + dp % this.columns * wide, HEAT.top + row * tall + pp * HEAT.gap, wide, tall];
  }

  drawGrid(pen, width) {
    const { overall, grid } = this.data, inset = this.cellHeight() > 5 ? 0.5 : 0;
    for (let rank = 0; rank < overall.length; rank++) {
      const [x, y, wide, tall] = this.box(rank, width);
      pen.fillStyle = LEVEL_COLOURS[overall[rank]];
      pen.fillRect(x, y, Math.max(0.5, wide - inset), tall - inset);
    }
    pen.fillStyle = this.page.colours.soft;
    for (let stage = 0; stage < grid.pp; stage++) {
      const [, y] = this.box(stage * grid.tp * grid.dp, width);
      pen.fillText(`stage ${stage}`, 2, y + 10);
    }
    pen.fillText(`replicas 0 to ${this.columns - 1}${this.wraps > 1 ? ", then the next ones" : ""} \u2192`, HEAT.left, this.height() - 6);
    pen.strokeStyle = this.page.colours.mark;
    pen.lineWidth = 2;
    for (const rank of this.marked) {
      const [x, y, wide, tall] = this.box(rank, width);
      pen.strokeRect(x - 1, y - 1, Math.max(4, wide + 2), Math.max(4, tall + 2));
    }
  }

  // The slowest rank of each row of pixels, so that one among thousands is seen.
  drawSteps(pen, width) {
    const { steps, overall } = this.data, lines = Math.min(HEAT.timeHeight, overall.length), wide = (width - HEAT.left) / steps.length;
    const tall = HEAT.timeHeight / lines;
    for (let line = 0; line < lines; line++) {
      for (let step = 0; step < steps.length; step++) {
        pen.fillStyle = LEVEL_COLOURS[this.slowest(line, lines, step)[1]];
        pen.fillRect(HEAT.left + step * wide, HEAT.top + line * tall, Math.ceil(wide), Math.ceil(tall));
      }
    }
    pen.fillStyle = this.page.colours.soft;
    for (const at of ticks(0, steps.length - 1, 8)) {
      if (Number.isInteger(at)) pen.fillText(`step ${steps[at]}`, HEAT.left + at * wide, HEAT.top + HEAT.timeHeight + 14);
    }
    for (const rank of ticks(0, overall.length - 1, 6)) {
      if (Number.isInteger(rank)) pen.fillText(String(rank), 14, HEAT.top + (rank + 0.5) / overall.length * HEAT.timeHeight + 4);
    }
    pen.fillStyle = this.page.colours.mark;
    for (const rank of this.marked) {
      const y = HEAT.top + (rank + 0.5) / overall.length * HEAT.timeHeight;
      pen.beginPath(); pen.moveTo(HEAT.left - 1, y); pen.lineTo(HEAT.left - 9, y - 4); pen.lineTo(HEAT.left - 9, y + 4); pen.fill();
    }
  }

  // Rank and level of the slowest one in a line of pixels.
  slowest(line, lines, step) {
    const num = this.data.overall.length, from = Math.floor(line * num / lines), to = Math.floor((line + 1) * num / lines);
    let best = from;
    for (let rank = from + 1; rank < to; rank++) if (this.data.ratios[step * num + rank] > this.data.ratios[step * num + best]) best = rank;
    return [best, this.data.ratios[step * num + best]];
  }

  // Rank and level under the pointer; null beside the map.
  find(x, y) {
    const { grid, steps, overall } = this.data, across = x - HEAT.left, plot = this.canvas.clientWidth - HEAT.left;
    if (across < 0 || across >= plot || y < HEAT.top) return null;
    if (this.isOverSteps) {
      const lines = Math.min(HEAT.timeHeight, overall.length), line = Math.floor((y - HEAT.top) / HEAT.timeHeight * lines);
      const step = Math.floor(across / plot * steps.length);
      return line < lines ? [...this.slowest(line, lines, step), steps[step]] : null;
    }
    const block = this.wraps * grid.tp * this.cellHeight() + HEAT.gap, pp = Math.floor((y - HEAT.top) / block);
    const row = Math.floor((y - HEAT.top - pp * block) / this.cellHeight());
    const dp = Math.floor(row / grid.tp) * this.columns + Math.floor(across / plot * this.columns);
    if (pp >= grid.pp || row >= this.wraps * grid.tp || dp >= grid.dp) return null;
    const rank = rankOf(grid, { pp, dp, tp: row % grid.tp });
    return [rank, overall[rank], null];
  }

  hint(x, y) {
    const found = this.find(x, y);
    if (!found) return "";
    const [rank, level, step] = found, when = step === null ? "" : `, step ${step}`;
    return `rank ${rank} (${placeText(placeOf(this.data.grid, rank))})${when}: ${ratioText(level)}${this.marked.has(rank) ? ", an outlier" : ""}`;
  }

  click(x, y) { const found = this.find(x, y); if (found) this.page.select(found[0]); }

  move(by) { this.page.select(Math.max(0, Math.min(this.data.overall.length - 1, this.page.selected + by))); }
}
