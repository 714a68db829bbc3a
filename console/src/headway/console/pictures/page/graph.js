// Who waits for whom: culprits on the left, and behind each column those that wait for it.

const GRAPH = { height: 460, top: 22, margin: 14, largest: 16, allEdges: 1500, labels: 6, named: 64 };

const nameOf = (rank) => (rank < 0 ? "ranks that nothing is known of" : `rank ${rank}`);

class Graph extends Sheet {
  constructor(figure, picture, page) {
    super(figure, picture, page);
    const { ranks, marked, why } = this.data;
    this.place = new Map([...ranks].map((rank, place) => [rank, place]));
    this.why = new Map([...marked].map((rank, place) => [rank, why[place]]));
    page.list(this.head, marked, (rank) => this.why.get(rank));
  }

  height() { return GRAPH.height; }

  // Column of each node: ranks in even ones, operations in odd ones; what leads to no end is last.
  columns() {
    const { rankDepth, operationDepth } = this.data, last = 2 + 2 * rankDepth.reduce((a, b) => Math.max(a, b), 0);
    return { ranks: Array.from(rankDepth, (depth) => (depth < 0 ? last : 2 * depth)), operations: Array.from(operationDepth, (depth) => (depth < 0 ? last + 1 : 2 * depth + 1)) };
  }

  // Nodes of a column fill a block from top to bottom.
  arrange(width) {
    if (this.arranged === width) return;
    this.arranged = width;
    const columns = this.columns(), counts = [];
    for (const column of [...columns.ranks, ...columns.operations]) counts[column] = (counts[column] || 0) + 1;
    const used = Object.keys(counts).map(Number), wide = (width - 2 * GRAPH.margin) / used.length, most = Math.max(1, ...counts.filter(Boolean));
    const tall = GRAPH.height - GRAPH.top - GRAPH.margin;
    this.step = Math.min(GRAPH.largest + 6, Math.sqrt(wide * 0.75 * tall / most));
    const perLine = Math.max(1, Math.floor(tall / this.step)), seen = [], put = (column) => {
      const number = seen[column] = (seen[column] ?? -1) + 1, whole = Math.min(perLine, counts[column]);
      const left = GRAPH.margin + used.indexOf(column) * wide;
      return [left + (Math.floor(number / perLine) + 0.5) * this.step, GRAPH.top + (tall - whole * this.step) / 2 + (number % perLine + 0.5) * this.step];
    };
    this.rankAt = columns.ranks.map(put);
    this.operationAt = columns.operations.map(put);
  }

  draw(pen, width, height) {
    this.arrange(width);
    pen.drawImage(this.layer("nodes", "", width, height, (under) => this.drawNodes(under)), 0, 0, width, height);
    const place = this.place.get(this.page.selected);
    setText(this.words, place === undefined ? this.silent() : this.drawWay(pen, place));
    this.publish({ drawn: this.rankAt.length, operations: this.operationAt.length, marked: this.numMarked });
  }

  silent() {
    const { others } = this.data, rank = this.page.selected;
    return rank < 0 ? `${others} ranks wait for nobody and nobody waits for them` : `rank ${rank} waits for nobody, and nobody waits for it`;
  }

  drawNodes(pen) {
    const { waits, missing, ranks } = this.data, colours = this.page.colours, side = Math.max(1, this.step * 0.6);
    if (waits.length + missing.length <= 2 * GRAPH.allEdges) {
      pen.strokeStyle = colours.wait;
      for (const [from, to] of this.edges()) arrow(pen, from, to, side / 2 + 2);
    }
    pen.fillStyle = colours.wait;
    for (const [x, y] of this.operationAt) {
      pen.beginPath(); pen.moveTo(x, y - side / 2); pen.lineTo(x + side / 2, y); pen.lineTo(x, y + side / 2); pen.lineTo(x - side / 2, y); pen.fill();
    }
    pen.fillStyle = colours.a;
    for (const [x, y] of this.rankAt) pen.fillRect(x - side / 2, y - side / 2, side, side);
    if (this.rankAt.length <= GRAPH.named) {
      pen.fillStyle = colours.soft;
      this.rankAt.forEach(([x, y], place) => { if (!this.why.has(ranks[place])) pen.fillText(String(ranks[place]), x + side / 2 + 4, y - 6); });
    }
    pen.fillStyle = pen.strokeStyle = colours.mark;
    pen.lineWidth = 2;
    this.numMarked = 0;
    for (const rank of this.why.keys()) {
      const at = this.rankAt[this.place.get(rank)];
      if (!at) continue;
      pen.beginPath(); pen.arc(...at, side / 2 + 4, 0, 7); pen.stroke();
      pen.fillRect(at[0] - side / 2, at[1] - side / 2, side, side);
      if (this.numMarked++ < GRAPH.labels) pen.fillText(nameOf(rank), at[0] - 4, at[1] - side / 2 - 9);
    }
    pen.fillStyle = colours.soft;
    pen.fillText("held up by \u2190", GRAPH.margin, 13);
  }

  *edges() {
    const { waits, missing } = this.data;
    for (let k = 0; k < waits.length; k += 2) yield [this.rankAt[this.place.get(waits[k])], this.operationAt[waits[k + 1]]];
    for (let k = 0; k < missing.length; k += 2) yield [this.operationAt[missing[k]], this.rankAt[this.place.get(missing[k + 1])]];
  }

  // Arrows from a rank to what holds it up; returns the same in words.
  drawWay(pen, start) {
    const { ranks, rankWaitsIn, operationWaitsFor, operations } = this.data, words = [nameOf(ranks[start])];
    pen.strokeStyle = pen.fillStyle = this.page.colours.ink;
    pen.lineWidth = 2;
    const [x, y] = this.rankAt[start], side = this.step * 0.6 + 6;
    pen.strokeRect(x - side / 2, y - side / 2, side, side);
    for (let place = start, hops = 0; hops < ranks.length; hops++) {
      const operation = rankWaitsIn[place];
      if (operation < 0) { words.push(this.why.has(ranks[place]) ? this.why.get(ranks[place]) : "waits for nobody"); break; }
      words.push(`waits in ${operations[operation]}`);
      arrow(pen, this.rankAt[place], this.operationAt[operation], side / 2);
      place = this.place.get(operationWaitsFor[operation]);
      if (place === undefined) { words.push("which all have entered and none finishes"); break; }
      words.push(`for ${nameOf(ranks[place])}`);
      arrow(pen, this.operationAt[operation], this.rankAt[place], side / 2);
    }
    return words.join(" \u2192 ");
  }

  find(x, y) {
    const near = (all) => all.reduce((best, at, place) => {
      const far = (at[0] - x) ** 2 + (at[1] - y) ** 2;
      return far < best[1] ? [place, far] : best;
    }, [-1, Math.max(5, this.step * 0.6) ** 2]);
    return [near(this.rankAt), near(this.operationAt)];
  }

  hint(x, y) {
    const [[rank, far], [operation, other]] = this.find(x, y);
    if (operation >= 0 && other < far) return this.data.operations[operation];
    if (rank < 0) return "";
    const number = this.data.ranks[rank], within = this.data.rankWaitsIn[rank];
    return `${nameOf(number)}: ${this.why.get(number) || (within < 0 ? "waits for nobody" : `in ${this.data.operations[within]}`)}`;
  }

  click(x, y) { const [[place]] = this.find(x, y); if (place >= 0) this.page.select(this.data.ranks[place]); }

  move(by) {
    const { ranks } = this.data, place = this.place.get(this.page.selected) ?? 0;
    this.page.select(ranks[Math.max(0, Math.min(ranks.length - 1, place + by))]);
  }
}
