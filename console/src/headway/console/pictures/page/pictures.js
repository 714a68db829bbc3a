// Puts the pictures on the page. A rank that is selected in one is selected in all.

const KINDS = { heat: Heat, grid: Grid3, graph: Graph, steps: Steps };
const MOST_BUTTONS = 12;

class PicturePage {
  constructor(root) {
    Object.assign(this, { root, selected: -1, theme: 0, sheets: [], waiting: new Set() });
    this.useTheme();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.useTheme(); this.redrawAll(); });
    window.addEventListener("resize", () => this.redrawAll());
  }

  useTheme() {
    const probe = element("span", this.root), of = (name) => { probe.style.color = `var(--hw-${name})`; return getComputedStyle(probe).color; };
    this.colours = Object.fromEntries(["ink", "soft", "grid", "mark", "a", "b", "wait"].map((name) => [name, of(name)]));
    this.theme += 1;
    probe.remove();
  }

  show(pictures) {
    for (const picture of pictures) {
      const figure = element("figure", this.root);
      figure.dataset.kind = picture.kind;
      element("h2", figure, picture.title);
      this.sheets.push(new KINDS[picture.kind](figure, picture, this));
      element("p", figure, picture.note, "soft");
    }
    const marked = pictures.map(({ data }) => data.marked ?? data.outliers).find((ranks) => ranks?.length);
    this.select(marked ? marked[0] : 0);
  }

  // Buttons for the first of the marked ranks.
  list(parent, ranks, why) {
    for (const rank of ranks.slice(0, MOST_BUTTONS)) {
      const made = element("button", parent, rank < 0 ? "unknown" : `rank ${rank}`);
      made.title = why(rank);
      made.onclick = () => this.select(rank);
    }
    if (ranks.length > MOST_BUTTONS) element("span", parent, `and ${ranks.length - MOST_BUTTONS} more`);
  }

  select(rank) {
    this.selected = rank;
    this.root.dataset.selected = rank;
    this.redrawAll();
  }

  redrawAll() { for (const sheet of this.sheets) this.redraw(sheet); }

  redraw(sheet) {
    if (!this.waiting.size) requestAnimationFrame(() => this.paint());
    this.waiting.add(sheet);
  }

  paint() {
    const sheets = [...this.waiting];
    this.waiting.clear();
    for (const sheet of sheets) sheet.paint();
    this.root.dataset.pictures = this.sheets.filter(({ figure }) => figure.dataset.draws).length;
  }
}

async function main() {
  const root = document.querySelector(".headway-pictures"), status = root.querySelector("[role=status]");
  if (typeof DecompressionStream === "undefined") {
    setText(status, "This browser is too old for the pictures: use one of 2023 or later.");
    return;
  }
  const packed = Uint8Array.from(atob(document.getElementById("data").textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const pictures = JSON.parse(await new Response(stream).text());
  status.hidden = pictures.length > 0;
  setText(status, "Nothing was recorded that could be drawn.");
  new PicturePage(root).show(unpack(pictures));
}

main();
