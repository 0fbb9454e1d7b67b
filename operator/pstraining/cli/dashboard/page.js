// The page: requests data from the server and shows it. Data from a cluster is inserted as text (textContent), never as
// markup. A section is rendered again only if its data has changed, so that selections and the focus stay.

import { figure, short } from "./curves.js";

const JOBS_MS = 5000, JOB_MS = 3000, CURVES_MS = 5000, LOG_MS = 2000, KEPT_LINES = 3000;
const $ = (id) => document.getElementById(id);

/** Create an element with classes, attributes and children (texts or elements). */
function el(name, given = {}, ...inside) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(given)) if (value !== undefined) made.setAttribute(key, value);
  made.append(...inside.filter((part) => part !== null && part !== undefined && part !== ""));
  return made;
}

// --- texts

const SHAPES = { good: "●", bad: "✖", wait: "◌", rest: "■" };
const KINDS = {
  Running: "good", Succeeded: "good", Ready: "good", Completed: "good", Failed: "bad", Invalid: "bad", Error: "bad",
  OOMKilled: "bad", CrashLoopBackOff: "bad", Suspended: "rest", Terminating: "rest",
};

/** Render a state as a word with a symbol, so that no information depends on colour. */
function stateOf(word) {
  const kind = KINDS[word] || "wait";
  return el("span", { class: `state ${kind}` }, `${SHAPES[kind]} ${word}`);
}

function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  for (const [large, small, size, part] of [["d", "h", 86400, 3600], ["h", "m", 3600, 60], ["m", "s", 60, 1]]) {
    if (whole >= size) {
      const rest = Math.floor((whole % size) / part);
      return `${Math.floor(whole / size)}${large}${rest ? rest + small : ""}`;
    }
  }
  return `${whole}s`;
}

/** Render the time since a timestamp; `age` keeps it up to date. */
const since = (stamp) => (stamp ? el("time", { datetime: stamp, title: stamp }, ago(stamp)) : "");
const ago = (stamp) => duration((Date.now() - Date.parse(stamp)) / 1000);

function age() {
  for (const time of document.querySelectorAll("time")) time.textContent = ago(time.getAttribute("datetime"));
}

const devices = (numbers) =>
  Object.entries(numbers || {}).sort().map(([kind, n]) => (kind === "CPU" && n === 1 ? kind : `${n} ${kind}${n === 1 ? "" : "s"}`)).join(", ");

function bytes(value) {
  if (value === null || value === undefined) return "–";
  for (const unit of ["", "k", "M", "G"]) {
    if (value < 999.5) return `${short(value)} ${unit}B/s`;
    value /= 1000;
  }
  return `${short(value)} TB/s`;
}

// --- tables and sections

/** Create a table with a caption. A column is [title, class, cell of a row]; the first one names the row. */
function table(caption, columns, rows, marked = () => false) {
  const head = el("tr", {}, ...columns.map(([title, kind]) => el("th", { scope: "col", class: kind }, title)));
  const body = rows.map((row) =>
    el("tr", { "aria-current": marked(row) ? "true" : undefined },
      ...columns.map(([, kind, cell], n) => el(n ? "td" : "th", n ? { class: kind } : { scope: "row" }, ...[cell(row)].flat().map(text)))));
  return el("div", { class: "scroll" }, el("table", {}, el("caption", {}, caption), el("thead", {}, head), el("tbody", {}, ...body)));
}

const text = (cell) => (typeof cell === "number" ? String(cell) : cell);
const problem = (words) => el("p", { class: "problem" }, `⚠ ${words}`);
const lines = (texts) => texts.map((line) => el("div", {}, line));

const shownData = {};

/** Render a section if its data has changed, and keep the focus. */
function section(id, data, make) {
  const key = JSON.stringify(data);
  if (shownData[id] === key) return;
  shownData[id] = key;
  const focused = $(id).contains(document.activeElement) && document.activeElement.getAttribute("href");
  $(id).replaceChildren(...make().filter(Boolean));
  if (focused) [...$(id).querySelectorAll("a")].find((link) => link.getAttribute("href") === focused)?.focus();
}

/** Empty sections, until they are rendered again. */
function clear(ids) {
  for (const id of ids) section(id, null, () => []);
}

// --- requests

/** An error with a message. With `passing`, a later request may succeed, so the shown data stays. */
class Problem extends Error {
  constructor(words, passing) {
    super(words);
    this.passing = passing;
  }
}

/** Return the data of a response, or throw a Problem. */
async function ask(what, given = {}) {
  let answer;
  try {
    answer = await fetch(`${what}?${new URLSearchParams(given)}`);
  } catch {
    throw new Problem("The command `kubectl pstraining dashboard` no longer responds: start it again, and open its new address.", true);
  }
  const data = await answer.json().catch(() => ({ error: "The answer of the dashboard is not readable." }));
  if (!answer.ok) throw new Problem(data.error, answer.status >= 500);
  return data;
}

/** Show a problem in a section. A passing problem is shown at the top, above the former data. */
function failed(id, error) {
  if (error.passing) connection(error.message);
  if (!error.passing || !shownData[id]) section(id, error.message, () => [problem(error.message)]);
}

/** Return the job in the address, such as #default/digits. */
function selected() {
  try {
    const [namespace, name] = location.hash.slice(1).split("/").map(decodeURIComponent);
    return name ? { namespace, name } : null;
  } catch {
    return null; // not an address of this page
  }
}
const address = (job) => `#${encodeURIComponent(job.namespace)}/${encodeURIComponent(job.name)}`;
const isSelected = (job) => address(job) === (selected() ? address(selected()) : "");

// --- the list

const done = (training) =>
  training?.progressPercentage === undefined || training?.progressPercentage === null ? "" :
    [el("progress", { max: 100, value: training.progressPercentage, "aria-label": "Progress" }), ` ${training.progressPercentage} %`];

function jobsTable({ namespace, jobs }) {
  const columns = [
    ["Name", "", (j) => el("a", { href: address(j) }, j.name)],
    ...(namespace === null ? [["Namespace", "short", (j) => j.namespace]] : []),
    ["State", "short", (j) => stateOf(j.phase)],
    ["PS", "number", (j) => j.ps], ["Workers", "number", (j) => j.workers],
    ["Step", "number", (j) => j.training?.step ?? ""], ["Progress", "short", (j) => done(j.training)],
    ["Loss", "number", (j) => j.training?.loss ?? ""],
    ["Restarts", "number", (j) => j.restarts], ["Failovers", "number", (j) => j.takeovers],
    ["Age", "number", (j) => since(j.created)], ["Why", "", (j) => j.why],
  ];
  const where = namespace === null ? "all namespaces" : `namespace ${namespace}`;
  if (!jobs.length) return [el("p", {}, `No PSTrainingJobs in ${where}.`)];
  return [table(`Jobs of ${where}`, columns, jobs, isSelected)];
}

async function showJobs() {
  try {
    const found = await ask("jobs");
    section("jobs", [found, location.hash], () => jobsTable(found));
    connection("");
  } catch (error) {
    failed("jobs", error);
  }
}

/** Show once, at the top, that the data is old. */
function connection(words) {
  const shown = words ? `⚠ not up to date: ${words}` : "";
  if ($("connection").textContent !== shown) $("connection").textContent = shown;
}

// --- one job

const known = (value) => value !== undefined && value !== null;

function facts(job) {
  const t = job.training || {};
  const found = [
    ["Step", known(t.step) ? t.step + (known(t.steps) ? ` of ${t.steps}` : "") : null], ["Epoch", t.epoch],
    ["Progress", known(t.progressPercentage) ? done(t) : null],
    ["Remaining", known(t.estimatedRemainingSeconds) ? duration(t.estimatedRemainingSeconds) : null],
    ["Loss", t.loss], ["Examples/s", t.samplesPerSecond],
    ...(t.metrics || []).map((m) => [m.name, m.value]),
    ["Checkpoint", known(t.checkpointStep) ? [`step ${t.checkpointStep}`, t.checkpointTime ? ", " : "", since(t.checkpointTime), t.checkpointTime ? " ago" : ""] : null],
    ["Restarts", job.restarts], ["Failovers", job.takeovers], ["Age", since(job.created)],
  ];
  return el("dl", {}, ...found.filter(([, value]) => known(value)).map(([name, value]) =>
    el("div", {}, el("dt", {}, name), el("dd", {}, ...[value].flat().map(text).filter((part) => part !== "")))));
}

function head(job) {
  return [
    el("h2", {}, `${job.namespace}/${job.name} `, stateOf(job.phase)),
    ...job.notes.map(problem), job.why ? problem(job.why) : null, facts(job),
  ];
}

const endOf = (failure) =>
  [failure.pod, failure.reason, known(failure.exitCode) ? `exit code ${failure.exitCode}` : "", failure.message].filter(Boolean).join(", ");

function tasks(job) {
  const counts = job.roles.map((r) => `${r.role} ${r.ready}/${r.desired} ready${r.succeeded ? `, ${r.succeeded} succeeded` : ""}`);
  const caption = `Tasks: ${counts.join(", ")}`;
  if (job.denied.pods) return [el("h3", {}, caption), problem(job.denied.pods)];
  const found = [];
  for (const role of job.roles) {
    if (role.givenUp.length) found.push(problem(`Given up, and the job continues without: ${role.givenUp.join(", ")}`));
    if (role.withoutPod.length) found.push(problem(`No pod: ${role.withoutPod.join(", ")}`));
    if (role.sizing) found.push(el("p", { class: "dim" }, `Size of ${role.role}: ${role.sizing}`));
    const failure = role.lastFailure;
    if (failure) found.push(el("p", { class: "dim" }, `Last failure of ${role.role}: ${endOf(failure)}`, ...(failure.time ? [", ", since(failure.time), " ago"] : [])));
  }
  const pods = job.roles.flatMap((role) => role.pods);
  if (!pods.length) return [el("h3", {}, caption), el("p", {}, "No pods."), ...found];
  const columns = [
    ["Task", "", (p) => p.task], ["State", "short", (p) => stateOf(p.state)],
    ["Member", "short", (p) => (p.primary === undefined ? "" : p.primary ? "primary" : "standby")],
    ["Pod", "", (p) => p.pod], ["Node", "", (p) => p.node || "not on a node yet"],
    ["Restarts", "number", (p) => p.restarts], ["Age", "number", (p) => since(p.created)], ["Why", "", (p) => lines(p.why)],
  ];
  return [table(caption, columns, pods), ...found];
}

function shards(job) {
  if (!job.shards.length) return [];
  return [table("Shards", [
    ["Shard", "", (s) => s.index], ["Primary", "", (s) => s.primary || stateOf("none")],
    ["Standbys ready", "number", (s) => `${s.readyStandbys ?? 0}/${s.standbys}`],
    ["Failovers", "number", (s) => s.takeovers ?? 0], ["Cause of the last one", "", (s) => s.lastCause || ""],
  ], job.shards)];
}

function conditions(job) {
  if (!job.conditions.length) return [];
  return [table("Conditions", [
    ["Condition", "", (c) => c.type], ["Status", "short", (c) => c.status], ["For", "number", (c) => since(c.lastTransitionTime)],
    ["Reason", "short", (c) => c.reason], ["Message", "", (c) => c.message || ""],
  ], job.conditions)];
}

function events(job) {
  if (job.denied.events) return [el("h3", {}, "Events"), problem(job.denied.events)];
  if (!job.events.length) return [];
  return [table("Events", [
    ["Reason", "", (e) => e.reason], ["Type", "short", (e) => e.type], ["Ago", "number", (e) => since(e.time)],
    ["Times", "number", (e) => e.count], ["Message", "", (e) => e.message],
  ], [...job.events].reverse())];
}

async function showJob() {
  const wanted = selected();
  $("job").hidden = !wanted;
  document.title = wanted ? `${wanted.name} - pstraining` : "pstraining";
  if (!wanted) return;
  try {
    const job = await ask("job", wanted);
    if (!isSelected(job)) return; // another one was chosen meanwhile
    for (const [id, make] of Object.entries({ head, tasks, shards, conditions, events })) section(id, job, () => make(job));
    logChoices(job);
  } catch (error) {
    failed("head", error);
    if (!error.passing) clear(["tasks", "shards", "conditions", "events"]); // of a job that no longer exists
  }
}

// --- curves and speed

function speed({ rates, denied }) {
  const title = el("h3", {}, "Speed");
  if (denied) return [title, problem(`${denied} The curves show what the job's status reports.`)];
  if (!rates) return [];
  const measured = rates.tasks.filter((task) => !task.problem);
  const slow = measured.filter((task) => task.straggler).map((task) => task.task);
  const missing = {};
  for (const task of rates.tasks) if (task.problem) (missing[task.problem] ||= []).push(task.task);
  return [
    slow.length ? problem(`Straggler: ${slow.join(", ")}. A straggler makes less than three quarters of the median worker's steps.`) : null,
    measured.length ? table("Speed of tasks", [
      ["Task", "", (t) => t.task], ["Devices", "short", (t) => devices(t.devices) || "–"],
      ["Steps/s", "number", (t) => short(t.stepsPerSecond)], ["Examples/s", "number", (t) => short(t.examplesPerSecond)],
      ["Step", "number", (t) => (known(t.stepSeconds) ? `${short(t.stepSeconds * 1000)} ms` : "–")],
      ["Staleness", "number", (t) => short(t.staleness)], ["Dropped", "number", (t) => t.dropped ?? "–"],
      ["Sent", "number", (t) => bytes(t.sentBytesPerSecond)], ["Received", "number", (t) => bytes(t.receivedBytesPerSecond)],
      ["", "short", (t) => (t.straggler ? el("strong", { class: "wait" }, "▲ straggler") : "")],
    ], measured) : title,
    ...Object.entries(missing).map(([words, names]) => problem(`${names.join(", ")}: ${words}`)),
    rates.servers.length ? table("Traffic of parameter servers", [
      ["Server", "", (s) => s.server], ["Sent", "number", (s) => bytes(s.sentBytesPerSecond)],
      ["Received", "number", (s) => bytes(s.receivedBytesPerSecond)],
    ], rates.servers) : null,
  ];
}

const CURVES = [
  ["Loss", "loss", false], ["Steps per second", "steps_per_second", true], ["Examples per second", "examples_per_second", true],
];

function curves(points) {
  if (points.at.length) return CURVES.map(([title, name, fromZero]) => figure(title, points, name, fromZero));
  return [el("p", { class: "dim" }, "No curves: nothing has reported a step since a page was opened.")];
}

async function showCurves() {
  const wanted = selected();
  if (!wanted) return;
  try {
    const found = await ask("curves", wanted);
    if (selected()?.name !== wanted.name || selected()?.namespace !== wanted.namespace) return;
    section("curves", found.points, () => curves(found.points));
    section("speed", [found.rates, found.denied], () => speed(found));
  } catch (error) {
    failed("speed", error);
  }
}

// --- the log

let log = { key: "", last: "", busy: false };

function logChoices(job) {
  const pods = job.roles.flatMap((role) => role.pods);
  const key = pods.map((p) => [p.pod, p.task]);
  if (shownData.choices === JSON.stringify(key)) return;
  shownData.choices = JSON.stringify(key);
  const before = $("log-pod").value;
  $("log-pod").replaceChildren(...pods.map((p) => el("option", { value: p.pod }, `${p.task} (${p.pod})`)));
  if (pods.some((p) => p.pod === before)) $("log-pod").value = before;
}

function logProblem(words) {
  $("log-problem").hidden = !words;
  $("log-problem").textContent = words ? `⚠ ${words}` : "";
}

async function showLog() {
  const wanted = selected(), pod = $("log-pod").value, previous = $("log-previous").checked;
  const key = JSON.stringify([wanted, pod, previous]);
  if (key !== log.key) {
    log = { key, last: "", busy: false };
    $("log-lines").replaceChildren();
    logProblem(wanted && !pod ? "No task has a pod whose log you may read." : "");
  } else if (log.busy || !$("log-follow").checked || (previous && log.last)) return;
  if (!wanted || !pod) return;
  const mine = log;
  mine.busy = true;
  try {
    const found = await ask("log", { ...wanted, pod, after: mine.last, previous: previous ? "true" : "" });
    if (mine !== log) return; // another log was chosen meanwhile
    mine.last = found.last;
    logProblem(found.problem);
    append(found);
  } catch (error) {
    if (mine === log) logProblem(error.message);
  } finally {
    mine.busy = false;
  }
}

/** Append lines to the log. The scroll position stays, unless it is at the end. */
function append({ lines: found, skipped }) {
  const shown = $("log-lines");
  const atEnd = shown.scrollHeight - shown.scrollTop - shown.clientHeight < 30;
  const added = skipped ? ["… lines between were not read: the task writes faster than the page reads", ...found] : found;
  shown.append(...added.map((line) => el("div", {}, line || "\u00a0")));
  while (shown.childElementCount > KEPT_LINES) shown.firstElementChild.remove();
  if (atEnd) shown.scrollTop = shown.scrollHeight;
}

// --- polling

/** Poll and show data. Slow clusters are polled less often, so that requests take a fifth of the time at most. */
function repeat(show, every) {
  let running = false, timer;
  const once = async () => {
    if (running) return;
    running = true;
    clearTimeout(timer);
    const began = Date.now();
    try {
      await show();
    } finally {
      running = false;
      timer = setTimeout(once, Math.max(every, 4 * (Date.now() - began)));
    }
  };
  return once;
}

const all = [repeat(showJobs, JOBS_MS), repeat(showJob, JOB_MS), repeat(showCurves, CURVES_MS), repeat(showLog, LOG_MS)];
const again = async () => {
  await Promise.all([all[0](), all[1](), all[2]()]);
  await all[3]();
};
setInterval(age, 1000);
for (const id of ["log-pod", "log-previous", "log-follow"]) $(id).addEventListener("change", showLog);
window.addEventListener("hashchange", () => {
  clear(["head", "curves", "tasks", "speed", "shards", "conditions", "events"]);
  again();
});
again();
