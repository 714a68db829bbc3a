// Elements, colours of the theme, numbers and times as text. The page loads nothing from elsewhere.

const ACTION_COLOURS = {
  FORWARD: "#4c8bf5", BACKWARD: "#f29d38", BACKWARD_INPUT: "#f29d38", BACKWARD_WEIGHT: "#c9741a",
  OPTIMIZER: "#8f6ff0", NORM: "#c45aa2", ALL_GATHER: "#2fa39a", REDUCE_SCATTER: "#1d8f87",
  SEND_FORWARD: "#9cc3ff", SEND_BACKWARD: "#f7c98b", RECV_FORWARD: "#9cc3ff",
  RECV_BACKWARD: "#f7c98b", DATA: "#8aa05a", SNAPSHOT: "#7282a8", EVAL: "#5fb4d9",
  SAMPLE: "#5fd0d9", RESTORE: "#3f9b4f", JOIN: "#8a7a3a",
  SUMS: "#c45aa2", AGREEMENT: "#a8478a", SNAPSHOT_WAIT: "#5c6a8c", GARBAGE_COLLECTION: "#b0563f",
  FLUSH: "#4f5b78", TENSOR_PARALLEL: "#2fa39a",
};
const SURROUNDS = new Set(["EVAL", "SAMPLE", "RESTORE", "JOIN"]);  // actions that take place around others
const LEGEND = [["FORWARD", "forward"], ["BACKWARD", "backward"], ["ALL_GATHER", "collective"],
  ["NORM", "norm"], ["OPTIMIZER", "optimizer"], ["SNAPSHOT", "snapshot"], ["EVAL", "evaluation"],
  ["SAMPLE", "sample"], ["RESTORE", "restore"]];
const STATUS_COLOURS = { running: "#3aa35a", finished: "#7d8597", idle: "#9aa3b5",
  joining: "#e0a325", left: "#e0a325" };
const LOST_COLOUR = "#d64545";

function element(tag, parent, text = "", className = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  if (className) made.className = className;
  parent.appendChild(made);
  return made;
}

// Sets text only where it changed, so that a selection by the reader survives the next picture.
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// The canvas colours: custom properties of the style sheet, which follow JupyterLab's theme.
function theme(root) {
  const style = getComputedStyle(root);
  const of = (name) => style.getPropertyValue(`--hw-${name}`).trim();
  return { ink: of("ink"), soft: of("soft"), grid: of("grid"), wait: of("wait"), band: of("band"),
    mark: of("mark"), a: of("a"), b: of("b") };
}

// Calls back when the theme of the page changes.
function onTheme(callback) {
  const observer = new MutationObserver(callback);
  const options = { attributes: true, attributeFilter: ["class", "data-jp-theme-light",
    "data-jp-theme-name"] };
  observer.observe(document.body, options);
  observer.observe(document.documentElement, options);
  return () => observer.disconnect();
}

function prepare(canvas, height) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth || 600;
  const size = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== size[0] || canvas.height !== size[1]) {  // a new size costs a new bitmap
    canvas.style.height = `${height}px`;
    [canvas.width, canvas.height] = size;
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = "11px system-ui, sans-serif";
  return { pen, width };
}

// Round values from low to high, about `number` of them.
function ticks(low, high, number) {
  const raw = (high - low) / Math.max(1, number);
  if (!(raw > 0) || !Number.isFinite(raw)) return [low];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= raw * 0.999);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(k * step);
  return found;
}

// 1, 2 and 5 times powers of ten, or the powers alone where that is too many.
function logTicks(low, high, number) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
    for (const factor of [1, 2, 5]) found.push(factor * 10 ** power);
  }
  const inside = found.filter((value) => low <= value && value <= high);
  return inside.length <= number ? inside : inside.filter((value) => Number.isInteger(Number(Math.log10(value).toFixed(9))));
}

function short(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return `${(value / 1e6).toPrecision(3)}M`;
  if (size >= 1e4) return `${(value / 1e3).toPrecision(3)}k`;
  if (size >= 100 || (Number.isInteger(value) && size >= 1)) return String(Math.round(value));
  return size === 0 ? "0" : size >= 0.001 ? String(Number(value.toPrecision(3))) : value.toExponential(1);
}

function span(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds === 0) return "0 s";
  if (seconds < 1e-3) return `${(seconds * 1e6).toFixed(0)} µs`;
  return seconds < 0.9995 ? `${(seconds * 1e3).toPrecision(3)} ms` : `${seconds.toPrecision(3)} s`;
}

// The reader's wall time; `digits` of a second's fraction.
function clock(unixS, digits = 0) {
  const date = new Date(unixS * 1000), two = (value) => String(value).padStart(2, "0");
  const seconds = date.getSeconds() + date.getMilliseconds() / 1000;
  const text = digits ? seconds.toFixed(digits).padStart(3 + digits, "0") : two(Math.floor(seconds));
  return `${two(date.getHours())}:${two(date.getMinutes())}:${text}`;
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // not a secure page
    const area = element("textarea", document.body, text);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}
