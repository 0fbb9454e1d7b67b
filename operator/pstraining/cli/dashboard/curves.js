// Curves as SVG: time to the right, a break where a value is missing, a dashed line at each failover and restart.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 400, HEIGHT = 170, LEFT = 52, RIGHT = 8, TOP = 18, BOTTOM = 22, MARKS = 20;

/** Create an SVG element. Texts are never markup. */
function shape(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  if (text !== undefined) made.textContent = text;
  return made;
}

/** Format a number with four digits at most. */
export function short(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-3)) return value.toExponential(2);
  return size >= 100 ? String(Math.round(value)) : String(Number(value.toPrecision(3)));
}

/** Return round values between two limits, for the lines of the grid. */
export function ticks(low, high) {
  // A step below the precision of the limits would not reach the end.
  const raw = Math.max((high - low) / 3, Math.abs(high) * 1e-12) || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= raw);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) found.push(value);
  return found;
}

/** Return a function that formats times of a curve, with the date if they are of more than one day. */
function clockOf(times) {
  const [first, last] = [times[0], times[times.length - 1]].map((seconds) => new Date(seconds * 1000));
  const dated = first.toDateString() !== last.toDateString();
  return (seconds) => new Date(seconds * 1000)[dated ? "toLocaleString" : "toLocaleTimeString"]("en-GB");
}

/** Return the last times at which a counter of the job increased. */
function increases(times, counts) {
  return times.filter((_, n) => n > 0 && counts[n] > counts[n - 1]).slice(-MARKS);
}

/** Return the parts of a curve without missing values, as indices of the lists. */
function pieces(values) {
  const found = [];
  values.forEach((value, n) => {
    if (value === null) return;
    if (n > 0 && values[n - 1] !== null && found.length) found[found.length - 1].push(n);
    else found.push([n]);
  });
  return found;
}

/**
  * Return a figure of one curve.
 *
 * @param {string} title title of the figure
 * @param {object} points lists: at (seconds since 1970), failovers, restarts, and the list `name`
 * @param {string} name name of the list to show
 * @param {boolean} fromZero whether the scale begins at 0, so that small changes of a rate look small
 */
export function figure(title, points, name, fromZero) {
  const values = points[name], times = points.at, known = values.filter((value) => value !== null);
  const made = document.createElement("figure"), caption = document.createElement("figcaption");
  const latest = known.length ? known[known.length - 1] : null;
  caption.textContent = `${title}: ${short(latest)} `;
  made.append(caption);
  if (!known.length) {
    caption.textContent = `${title}: no value yet`;
    return made;
  }
  const lowest = Math.min(...known), highest = Math.max(...known);
  const range = document.createElement("small");
  range.textContent = `between ${short(lowest)} and ${short(highest)} since ${clockOf(times)(times[0])}`;
  caption.append(range);
  made.append(drawn(points, values, fromZero ? Math.min(0, lowest) : lowest, highest, caption.textContent));
  return made;
}

function drawn(points, values, lowest, highest, words) {
  const times = points.at, first = times[0], span = times[times.length - 1] - first || 1;
  const room = (highest - lowest || Math.abs(highest) || 1) * 0.06;
  // No space below 0 for values that are never negative.
  const low = lowest >= 0 ? Math.max(0, lowest - room) : lowest - room, high = highest + room;
  const x = (at) => LEFT + ((at - first) / span) * (WIDTH - LEFT - RIGHT);
  const y = (value) => HEIGHT - BOTTOM - ((value - low) / (high - low)) * (HEIGHT - TOP - BOTTOM);
  const picture = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": words });
  for (const value of ticks(low, high)) {
    picture.append(shape("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }));
    picture.append(shape("text", { x: LEFT - 4, y: y(value) + 4, "text-anchor": "end" }, short(value)));
  }
  const clock = clockOf(times);
  picture.append(shape("text", { x: LEFT, y: HEIGHT - 7 }, clock(first)));
  picture.append(shape("text", { x: WIDTH - RIGHT, y: HEIGHT - 7, "text-anchor": "end" }, clock(times[times.length - 1])));
  for (const [counts, word] of [[points.restarts, "restart"], [points.failovers, "failover"]]) {
    for (const at of increases(times, counts)) {
      picture.append(shape("line", { class: "mark", x1: x(at), x2: x(at), y1: TOP, y2: HEIGHT - BOTTOM }));
      picture.append(shape("text", { class: "mark", x: x(at), y: TOP - 5, "text-anchor": "middle" }, word));
    }
  }
  for (const piece of pieces(values)) {
    if (piece.length === 1) picture.append(shape("circle", { class: "dot", cx: x(times[piece[0]]), cy: y(values[piece[0]]), r: 2.5 }));
    else picture.append(shape("polyline", { class: "curve", points: piece.map((n) => `${x(times[n])},${y(values[n])}`).join(" ") }));
  }
  return picture;
}
