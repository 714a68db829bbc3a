// A canvas with what all pictures share: pointer, wheel and keys, a cached layer, words for readers.

const LEVELS = { unknown: 0, usual: 128, perDoubling: 48 };  // as in ranks.py
const UNKNOWN_COLOUR = "#9aa3b5";
const COLD = [76, 139, 245], MIDDLE = [178, 190, 206], WARM = [240, 160, 48], HOT = [201, 48, 44];
const TYPES = { u1: Uint8Array, u2: Uint16Array, i2: Int16Array, i4: Int32Array, f4: Float32Array };
const CLICK_PIXELS = 4;

const LEVEL_COLOURS = Array.from({ length: 256 }, (_, level) => {
  if (level === LEVELS.unknown) return UNKNOWN_COLOUR;
  const doublings = (level - LEVELS.usual) / LEVELS.perDoubling;
  const stops = doublings < 0 ? [MIDDLE, COLD, COLD] : [MIDDLE, WARM, HOT];
  const at = Math.min(1.999, Math.abs(doublings) * 2), from = stops[Math.floor(at)], to = stops[Math.floor(at) + 1];
  return `rgb(${from.map((value, k) => Math.round(value + (to[k] - value) * (at % 1))).join(" ")})`;
});

function ratioText(level) {
  if (level === LEVELS.unknown) return "not recorded";
  return `${(2 ** ((level - LEVELS.usual) / LEVELS.perDoubling)).toFixed(2)} x its peers`;
}

// Arrays as they were packed: {type, base64}.
function unpack(value) {
  if (Array.isArray(value)) return value.map(unpack);
  if (value === null || typeof value !== "object") return value;
  if (typeof value.base64 !== "string") return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, unpack(one)]));
  return new TYPES[value.type](Uint8Array.from(atob(value.base64), (letter) => letter.charCodeAt(0)).buffer);
}

// Place of a rank in the grid, and back: tensor parallel ranks are neighbours, then replicas, then stages.
const placeOf = ({ tp, dp }, rank) => ({ tp: rank % tp, dp: Math.floor(rank / tp) % dp, pp: Math.floor(rank / (tp * dp)) });
const rankOf = ({ tp, dp }, place) => (place.pp * dp + place.dp) * tp + place.tp;
const placeText = (place) => `pp ${place.pp} dp ${place.dp} tp ${place.tp}`;

// Ends `gap` pixels before its aim.
function arrow(pen, [x, y], aim, gap = 0) {
  const angle = Math.atan2(aim[1] - y, aim[0] - x), size = 7;
  const toX = aim[0] - gap * Math.cos(angle), toY = aim[1] - gap * Math.sin(angle);
  pen.beginPath();
  pen.moveTo(x, y);
  pen.lineTo(toX, toY);
  for (const side of [-0.45, 0.45]) {
    pen.moveTo(toX, toY);
    pen.lineTo(toX - size * Math.cos(angle + side), toY - size * Math.sin(angle + side));
  }
  pen.stroke();
}

class Sheet {
  // A picture overrides height(width), draw(pen, width, height), hint(x, y) and click(x, y); and, where it can
  // be moved, drag(dx, dy) and zoom(factor, x).
  constructor(figure, { title, data }, page) {
    Object.assign(this, { figure, title, data, page, pointer: null, layers: new Map() });
    this.head = element("div", figure, "", "row");
    this.frame = element("div", figure, "", "frame");
    this.canvas = element("canvas", this.frame);
    this.tip = element("div", this.frame, "", "tip");
    this.words = element("p", figure, "", "words");
    this.tip.hidden = true;
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.listen();
  }

  listen() {
    const { canvas } = this;
    let down = null, moved = 0;
    canvas.addEventListener("pointerdown", (event) => { down = [event.offsetX, event.offsetY]; moved = 0; canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener("pointermove", (event) => {
      this.pointer = [event.offsetX, event.offsetY];
      if (down) {
        const by = [event.offsetX - down[0], event.offsetY - down[1]];
        moved += Math.abs(by[0]) + Math.abs(by[1]);
        if (moved > CLICK_PIXELS) this.drag?.(...by);
        down = this.pointer;
      }
      this.page.redraw(this);
    });
    canvas.addEventListener("pointerup", (event) => { if (down && moved <= CLICK_PIXELS) this.click(event.offsetX, event.offsetY); down = null; });
    canvas.addEventListener("pointerleave", () => { this.pointer = null; this.page.redraw(this); });
    canvas.addEventListener("wheel", (event) => {
      if (!this.zoom) return;
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY / 400), event.offsetX);
      this.page.redraw(this);
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!move) return;
      event.preventDefault();
      this.move?.(move);
    });
  }

  // A drawing that is made anew only if its key or the size has changed.
  layer(name, key, width, height, make) {
    const ratio = window.devicePixelRatio || 1, whole = `${key} ${width} ${height} ${ratio} ${this.page.theme}`;
    const known = this.layers.get(name);
    if (known?.key === whole) return known.canvas;
    const canvas = known?.canvas || document.createElement("canvas");
    [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.font = "11px system-ui, sans-serif";
    make(pen);
    this.layers.set(name, { key: whole, canvas });
    return canvas;
  }

  paint() {
    const began = performance.now(), height = this.height(this.canvas.clientWidth || 600), { pen, width } = prepare(this.canvas, height);
    this.draw(pen, width, height);
    const hint = this.pointer ? this.hint(...this.pointer) : "";
    this.tip.hidden = !hint;
    if (hint) {
      setText(this.tip, hint);
      const left = Math.min(this.pointer[0] + 14, width - this.tip.offsetWidth - 4);
      Object.assign(this.tip.style, { left: `${Math.max(0, left)}px`, top: `${this.pointer[1] + 16}px` });
    }
    this.canvas.setAttribute("aria-label", `${this.title}. ${this.words.textContent}`);
    Object.assign(this.figure.dataset, { draws: Number(this.figure.dataset.draws || 0) + 1, drawMs: performance.now() - began });
  }

  // What is shown, for those who look at the page with a program.
  publish(facts) { Object.assign(this.figure.dataset, facts); }
}
