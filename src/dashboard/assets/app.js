'use strict';
// The page of the dashboard. It reads the API beside it, follows the state by server-sent events, and writes text only.

// The path that the browser shows, which a proxy may have changed, with or without a slash at its end.
const API = `${location.origin}${location.pathname.replace(/\/*$/, '')}/api/`;
const KINDS = [
  { id: 'allowed', name: 'allowed' },
  { id: 'denied', name: 'denied' },
  { id: 'shadow', name: 'would deny' },
  { id: 'unavailable', name: 'unavailable' },
  { id: 'fallback', name: 'by fallback' },
];
const MAX_REASON = 200; // bytes
const CAPACITY = [300, 360];
const RECENT = 5; // seconds of which rates are the average
const REQUEST_TIMEOUT = 15_000; // more than a server needs that waits for Redis
const SILENCE = 5_000; // after which a stream with an event a second is dead
const MAX_GAP = 5; // seconds without events, beyond which the history is loaded again
const MODES = ['enforce', 'shadow', 'off'];

const LOGIN_HINT = 'The read token shows the numbers; the write token also allows changes. It stays in this tab.';
const FOREIGN_LOGIN_HINT = 'Sign in to the application, and load this page again: the application grants the access.';
const KEY_HINT = 'Shows what is left of each policy. Charges nothing.';

const $ = (id) => document.getElementById(id);
let session = null;
let state = null;
let history = null; // tracks with the numbers of each slot
let stream = null; // of the attempt to follow
let retryNow = () => {};
const spoken = new Map(); // timers of live regions
let lookedUp = null; // the key that is shown, its form, and its rows
let wanted = null; // the key that was asked for last
let versions = null; // of the rules
let edited = null; // the version of the rules with which the editor began
let listsTimer;

// === API ===

class ApiError extends Error {
  // The status is 0 without a response.
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function request(path, options = {}) {
  const asked = session;
  const headers = { 'x-tollgate-dashboard': '1' };
  const token = stored('tollgate-token');
  if (token) headers.authorization = `Bearer ${token}`;
  if (options.body !== undefined) headers['content-type'] = 'application/json';
  const response = await fetch(new URL(path, API), {
    method: options.body === undefined ? 'GET' : 'POST',
    body: options.body === undefined ? undefined : JSON.stringify(options.body),
    headers,
    signal: options.signal ?? AbortSignal.timeout(REQUEST_TIMEOUT),
    credentials: 'same-origin',
    cache: 'no-store',
  }).catch((error) => { throw lost(error); });
  if (response.ok) return response;
  if (response.status === 401 && session && session === asked) showLogin('Sign in again.');
  let message = `the server responded with ${response.status}`;
  try {
    message = (await response.json()).message || message;
  } catch { /* the body is not from the API */ }
  throw new ApiError(response.status, message);
}

const lost = ({ name }) =>
  new ApiError(0, name === 'TimeoutError' ? 'the server does not respond' : 'the connection is lost');
const read = async (path, body) => {
  const text = await (await request(path, { body })).text().catch((error) => { throw lost(error); });
  return JSON.parse(text);
};
const write = (path, body) => request(path, { body });

function stored(name, value) {
  try {
    if (value === undefined) return sessionStorage.getItem(name);
    if (value === null) sessionStorage.removeItem(name);
    else sessionStorage.setItem(name, value);
  } catch { /* without storage, the token lasts until the page is left */ }
  if (value === undefined) return stored.memory?.[name];
  stored.memory = { ...stored.memory, [name]: value };
  return value;
}

// === Signing in ===

async function start() {
  try {
    session = await read('session');
  } catch (error) {
    if (error.status === 429 && !$('login').hidden) {
      setText($('login-error'), failure(error));
      return;
    }
    setConnection('lost', `cannot reach the dashboard: ${error.message}`);
    setTimeout(start, 3000);
    return;
  }
  $('login-token').hidden = !session.accepts_tokens;
  setText($('login-hint'), session.accepts_tokens ? LOGIN_HINT : FOREIGN_LOGIN_HINT);
  if (!session.can_read) return showLogin(stored('tollgate-token') ? 'The token is wrong.' : '');
  $('login').hidden = true;
  $('main').hidden = false;
  $('leave').hidden = !stored('tollgate-token');
  $('block-form').hidden = $('refund-form').hidden = true;
  $('blocks-panel').hidden = !session.can_write;
  $('rules-panel').hidden = !session.has_rules;
  $('rules-editor').hidden = true;
  follow(session);
  refreshLists();
}

// Asks for a token. A draft of rules stays, since the token may have been replaced meanwhile.
function showLogin(message) {
  stored('tollgate-token', null);
  stream?.abort();
  clearTimeout(listsTimer);
  session = state = history = versions = null;
  if ($('question').open) $('question').close('no');
  clearMain();
  $('main').hidden = true;
  $('leave').hidden = true;
  $('login').hidden = false;
  $('login-error').textContent = message;
  $('token').value = '';
  if (!$('login-token').hidden) $('token').focus();
  setConnection('off', 'not signed in');
}

// Leaves nothing for the next one, who may have other rights.
function clearMain() {
  for (const timer of spoken.values()) clearTimeout(timer);
  forgetKey();
  const filled = '.note[role=status], table, .chart, .figures dd > *, #warnings, #store, #status-detail, #rules-note, #rules-error, #rules-result';
  for (const node of document.querySelectorAll(`main :is(${filled})`)) node.replaceChildren();
  for (const form of ['key-form', 'block-form', 'refund-form']) $(form).reset();
  setText($('status-text'), 'Waiting for numbers');
  setText($('key-message'), KEY_HINT);
  $('chart-policy').replaceChildren();
  $('diff-box').hidden = true;
  document.title = 'tollgate';
  setText($('title'), 'tollgate');
  setText($('announcer'), '');
}

$('login').addEventListener('submit', async (event) => {
  event.preventDefault();
  stored('tollgate-token', $('token').value.trim());
  await start();
  if (session?.can_read) $('main').focus({ preventScroll: true });
});
$('leave').addEventListener('click', () => {
  $('rules-form').reset();
  edited = null;
  showLogin('');
});

// === Following the state ===

async function follow(owner) {
  stream?.abort();
  for (let failures = 0; session === owner;) {
    const attempt = stream = new AbortController();
    let timer;
    // A connection that breaks silently stays open for minutes.
    const watch = () => {
      clearTimeout(timer);
      timer = setTimeout(() => attempt.abort(), SILENCE);
    };
    const catchUp = async () => {
      clearTimeout(timer); // events wait meanwhile
      await loadHistory();
      watch();
    };
    try {
      watch();
      const response = await request('live', { signal: attempt.signal });
      await catchUp();
      for await (const event of events(response.body)) {
        watch();
        failures = 0;
        setConnection('live', 'live');
        if (Math.abs(event.second - latestSecond()) > MAX_GAP) await catchUp();
        receive(event);
      }
    } catch (error) {
      if (session !== owner) return;
      failures += 1;
      if (!(error instanceof ApiError)) console.error(error);
      const reason = error instanceof ApiError ? error.message : `the page has a fault: ${error.message}`;
      setConnection('lost', `${reason}; trying again`);
    } finally {
      clearTimeout(timer);
      attempt.abort(); // also if only the history could not be read
    }
    await new Promise((resolve) => {
      retryNow = resolve;
      setTimeout(resolve, Math.min(15, 2 ** failures) * 500);
    });
  }
}

window.addEventListener('online', () => retryNow());
document.addEventListener('visibilitychange', () => { if (!document.hidden) retryNow(); });

async function* events(body) {
  const decoder = new TextDecoder();
  const reader = body.getReader();
  try {
    for (let text = ''; ;) {
      const { done, value } = await reader.read().catch((error) => { throw lost(error); });
      if (done) return;
      text += decoder.decode(value, { stream: true });
      const blocks = text.split('\n\n');
      text = blocks.pop();
      for (const block of blocks) {
        const lines = block.split('\n').filter((line) => line.startsWith('data: '));
        if (lines.length) yield JSON.parse(lines.map((line) => line.slice(6)).join('\n'));
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function loadHistory() {
  const loaded = await read('history');
  const tracks = loaded.tracks.map(({ step, latest, slots, latency, series: list }) => {
    const series = new Map();
    for (const { policy, tier, counts } of list) {
      const full = KINDS.map((_, kind) => counts[kind].length ? counts[kind] : new Array(slots).fill(0));
      series.set(pairOf(policy, tier), { policy, tier, counts: full });
    }
    // The latest second is over, the latest minute is not.
    return { step, latest, slots, latency, series, open: step === 1 ? 0 : 1 };
  });
  history = { decisions: loaded.decisions, tracks };
}

const latestSecond = () => history.tracks[0].latest;
const pairOf = (policy, tier) => `${policy}\n${tier}`;
const shownSlots = (track) => Math.max(0, track.slots - track.open);
const lastShown = (track) => track.latest - track.open * track.step;

function receive(next) {
  state = next;
  if (next.second > latestSecond()) extend(next); // or else the history contains it
  render();
}

function extend(next) {
  const growths = growth(history.decisions, next.decisions);
  history.tracks.forEach((track, number) => {
    const latest = Math.floor(next.second / track.step) * track.step;
    while (track.latest < latest) advance(track, CAPACITY[number]);
    for (const { policy, tier, counts } of growths) {
      const series = seriesOf(track, policy, tier);
      counts.forEach((count, kind) => { series.counts[kind][track.slots - 1] += count; });
    }
    track.latency[track.slots - 1] = next.latency[number];
  });
  history.decisions = next.decisions;
}

function growth(before, next) {
  const old = new Map(before.map((row) => [pairOf(row.policy, row.tier), row.totals]));
  return next.map(({ policy, tier, totals }) => {
    const base = old.get(pairOf(policy, tier)) ?? totals.map(() => 0);
    return { policy, tier, counts: totals.map((total, kind) => Math.max(0, total - base[kind])) };
  });
}

function seriesOf(track, policy, tier) {
  const pair = pairOf(policy, tier);
  if (!track.series.has(pair)) {
    track.series.set(pair, { policy, tier, counts: KINDS.map(() => new Array(track.slots).fill(0)) });
  }
  return track.series.get(pair);
}

function advance(track, capacity) {
  track.latest += track.step;
  const lists = [...track.series.values()].flatMap((series) => series.counts);
  for (const list of lists) list.push(0);
  track.latency.push({ median: null, p99: null, queue_p99: null });
  if (track.slots < capacity) track.slots += 1;
  else for (const list of [...lists, track.latency]) list.shift();
}

// Sums of the series that match, by kind, in the slots that are over.
function sums(track, matches) {
  const slots = shownSlots(track);
  const result = KINDS.map(() => new Array(slots).fill(0));
  for (const series of track.series.values()) {
    if (!matches(series)) continue;
    series.counts.forEach((counts, kind) => {
      for (let slot = 0; slot < slots; slot += 1) result[kind][slot] += counts[slot];
    });
  }
  return result;
}

// Candidates are tried beside their policies, and would count requests twice.
const isPolicy = (series) => !series.policy.endsWith('.candidate');
const sumOfLast = (list, count) => list.slice(-count).reduce((sum, value) => sum + value, 0);
const rates = (matches) => {
  const [track] = history.tracks;
  const seconds = Math.max(1, Math.min(RECENT, shownSlots(track)));
  return sums(track, matches).map((list) => sumOfLast(list, seconds) / seconds);
};

// === Rendering ===

function render() {
  if (!session || !state || !history) return;
  setText($('title'), state.title);
  renderStatus();
  renderFigures();
  renderDecisions();
  renderPolicies();
  renderTiers();
  renderStore();
}

function renderStatus() {
  if (!state) return;
  const { health, mode, servers } = state;
  const modes = (wanted) => state.policies.filter((policy) => policy.mode === wanted).map((policy) => policy.name);
  let [level, text] = ['good', 'Limiting normally'];
  const details = [];
  if (health.mode === 'degraded') {
    const isDown = health.outages.some((outage) => outage.stuck_slots === null);
    [level, text] = isDown ? ['bad', 'Redis is down: policies apply their choice for outages']
      : ['bad', 'No node decides on some slots of Redis: policies apply their choice for outages'];
    for (const outage of health.outages) {
      const place = outage.stuck_slots ? count(outage.stuck_slots, 'hash slot') : outage.server ?? 'Redis';
      details.push(`${place} for ${duration(state.time - outage.since)}: ${outage.cause}.`);
    }
    details.push(`This instance grants ${percent(health.share)} of each quota that it counts locally.`);
  } else if (!health.is_well) {
    [level, text] = ['soft', `${percent(health.affected_share)} of the decisions are made without Redis`];
    if (health.cause) details.push(`${health.cause}.`);
  }
  details.push(deniedText());
  if (mode === 'off') [level, text] = ['bad', 'Limits are off: nothing is counted or denied'];
  else if (mode === 'shadow') [level, text] = ['soft', 'In shadow: requests are counted, and none is denied'];
  else {
    if (modes('off').length) details.push(`Off: ${modes('off').join(', ')}.`);
    if (modes('shadow').length) details.push(`In shadow: ${modes('shadow').join(', ')}.`);
  }
  if (health.is_well) {
    const store = servers.length ? `Redis ${servers.map((server) => server.address ?? '').join(', ')}` : 'this process';
    const instances = health.instances ? `, by ${count(health.instances, 'instance')}` : '';
    details.push(`Counted in ${store}${instances}.`);
  }
  if ($('connection').dataset.state === 'lost') {
    [level, text] = ['soft', `Not current: the connection is lost, the last numbers are from ${time(state.time, true)}`];
  }
  if (health.pending_merges) details.push(`${count(health.pending_merges, 'key')} not merged into Redis yet.`);
  if ($('status-text').textContent !== text) readAloud($('announcer'), text);
  setText($('status-text'), text);
  document.title = level === 'good' ? `${state.title}: rate limits` : `${text} (${state.title})`;
  setText($('status-detail'), details.join(' '));
  $('status').dataset.state = level;
  const warnings = state.warnings.map((warning) =>
    `${warning.code}${warning.policy ? `, ${warning.policy}` : ''}: ${warning.detail}; ${warning.remedy}`);
  replaceChanged($('warnings'), warnings.map((warning) => element('li', {}, warning)));
}

// Which policies deny, those that deny most first.
function deniedText() {
  const minute = (policy) => sums(history.tracks[0], (series) => series.policy === policy).map((list) => sumOfLast(list, 60));
  const denied = state.policies.map(({ name }) => ({ name, count: minute(name)[1] })).filter(({ count }) => count > 0);
  if (!denied.length) return 'Nothing was denied in the last minute.';
  denied.sort((left, right) => right.count - left.count);
  const most = denied.slice(0, 3).map(({ name, count }) => `${number(count)} by ${name}`).join(', ');
  const rest = denied.slice(3).reduce((sum, { count: more }) => sum + more, 0);
  return `Denied in the last minute: ${most}${rest ? `, ${number(rest)} by others` : ''}.`;
}

function renderFigures() {
  rates(isPolicy).forEach((rate, kind) => {
    const total = state.decisions.filter(isPolicy).reduce((sum, row) => sum + row.totals[kind], 0);
    setText($(`rate-${kind}`), `${number(rate)} /s`);
    setText($(`total-${kind}`), `${number(total)} since the start`);
  });
}

function renderDecisions() {
  const select = $('chart-policy');
  const names = state.policies.flatMap(({ name, candidate }) => candidate ? [name, `${name}.candidate`] : [name]);
  const known = [...select.options].map(({ value }) => value);
  if (String(known) !== String(['', ...names])) {
    const chosen = select.value;
    select.replaceChildren(option('', 'all'), ...names.map((name) => option(name, name)));
    select.value = names.includes(chosen) ? chosen : '';
  }
  const track = history.tracks[Number($('chart-track').value)];
  const chosen = select.value;
  const lists = sums(track, chosen ? (series) => series.policy === chosen : isPolicy)
    .map((list) => list.map((value) => value / track.step));
  // What is denied begins at the ground line, where its size can be read.
  const stack = [3, 1, 2, 0].map((kind) => ({ ...KINDS[kind], values: lists[kind], shape: 'area' }));
  const lines = [{ ...KINDS[4], values: lists[4], shape: 'line' }];
  chart($('decisions-chart'), {
    label: `Decisions a second of ${chosen || 'all policies'}`,
    track, series: [...stack, ...lines], height: 220, unit: '/s', annotations: annotations(),
  });
  fillTimes($('decisions-table'), track, [...stack, ...lines], '/s');
  const zone = new Intl.DateTimeFormat().resolvedOptions().timeZone;
  setText($('decisions-note'), `Of this instance. A request has one decision for each policy that it matches. Times are in ${zone}.`);
}

// What may explain a step in the chart: new rules, and outages that last.
function annotations() {
  const replaced = (versions?.versions ?? []).map(({ number, time: at }) => ({ at, text: `rules ${number}` }));
  return [...replaced, ...state.health.outages.map(({ since }) => ({ at: since, text: 'outage' }))];
}

function renderPolicies() {
  const table = $('policies');
  const canSetModes = session.can_write && session.has_modes;
  if (!table.tHead) {
    const names = ['Policy', 'Limit', 'Decisions', 'Denied', 'Last 5 minutes', 'In an outage', 'Mode'];
    table.createTHead().append(row('th', names.map((name, column) => ({ text: name, number: [2, 3].includes(column) }))));
    table.createTBody();
  }
  const body = table.tBodies[0];
  const known = new Map([...body.rows].map((line) => [line.dataset.policy, line]));
  for (const policy of state.policies) {
    const line = known.get(policy.name) ?? body.appendChild(policyRow(policy, canSetModes));
    known.delete(policy.name);
    updatePolicy(line, policy, canSetModes);
  }
  for (const line of known.values()) line.remove();
  if (session.has_modes) {
    $('layer-mode-label').hidden = $('layer-mode-note').hidden = !canSetModes;
    if (canSetModes) updateSelect($('layer-mode'), state.mode);
  }
}

function policyRow(policy, canSetModes) {
  const line = document.createElement('tr');
  line.dataset.policy = policy.name;
  line.append(element('th', { scope: 'row' }, policy.name));
  for (const name of ['Limit', 'Decisions', 'Denied', 'Last 5 minutes', 'In an outage', 'Mode']) {
    const cell = element('td', {});
    cell.dataset.name = name;
    if (name === 'Decisions' || name === 'Denied') cell.className = 'number';
    line.append(cell);
  }
  line.cells[4].append(svg('svg', { class: 'spark', viewBox: '0 0 150 30', preserveAspectRatio: 'none', 'aria-hidden': 'true' }));
  if (canSetModes) {
    const select = modeSelect(`Mode of ${policy.name}`);
    select.addEventListener('change', () => changeMode(policy.name, select));
    line.cells[6].append(group(select, rolloutForm(policy.name)));
  } else {
    line.cells[6].append(element('span', { class: 'tag' }));
  }
  return line;
}

function updatePolicy(line, policy, canSetModes) {
  const [allowed, denied, shadow, unavailable] = rates((series) => series.policy === policy.name);
  const all = allowed + denied + shadow + unavailable;
  const candidate = policy.candidate ? `; candidate: ${limitText(policy.candidate)}` : '';
  setText(line.cells[1], limitText(policy) + candidate);
  setText(line.cells[2], `${number(all)} /s`);
  const wouldDeny = shadow ? `, ${percent(shadow / all)} would be` : '';
  setText(line.cells[3], all ? percent(denied / all) + wouldDeny : '–');
  sparkline(line.cells[4].firstChild, policy.name);
  setText(line.cells[5], { allow: 'allow', local: 'count locally', deny: 'deny (503)' }[policy.on_outage]);
  if (policy.mode === null) return setText(line.cells[6].firstChild, 'always');
  if (canSetModes) {
    updateSelect(line.querySelector('select'), policy.mode);
    updateRollout(line.querySelector('.rollout'), policy.rollout);
  } else {
    setText(line.cells[6].firstChild, policy.mode + (policy.rollout < 100 ? `, ${policy.rollout} % of keys` : ''));
    line.cells[6].firstChild.dataset.mode = policy.mode;
  }
}

function sparkline(target, policy) {
  const lists = sums(history.tracks[0], (series) => series.policy === policy);
  const bin = 5;
  const bins = Math.floor(CAPACITY[0] / bin);
  const binned = lists.map((list) => Array.from({ length: bins }, (_, index) => {
    const end = list.length - (bins - 1 - index) * bin;
    return end <= 0 ? 0 : sumOfLast(list.slice(Math.max(0, end - bin), end), bin);
  }));
  const total = binned[0].map((_, index) => binned[0][index] + binned[1][index] + binned[2][index] + binned[3][index]);
  const denied = binned[1].map((count, index) => count + binned[3][index]);
  const shadow = binned[2].map((count, index) => count + denied[index]);
  const top = Math.max(1, ...total);
  const path = (values) => {
    const points = values.map((value, index) => `${((index + 0.5) * 150 / bins).toFixed(1)} ${(29 - 28 * value / top).toFixed(1)}`);
    return `M0 29L${points.join('L')}L150 29Z`;
  };
  // Each in front of the one before.
  [['allowed', total], ['shadow', shadow], ['denied', denied]].forEach(([kind, values], index) => {
    if (!target.children[index]) target.append(svg('path', { 'data-kind': kind }));
    target.children[index].setAttribute('d', path(values));
  });
}

function renderTiers() {
  const [track] = history.tracks;
  const tiers = new Map();
  for (const { policy, tier } of state.decisions) {
    const series = seriesOf(track, policy, tier);
    const counts = series.counts.map((list) => sumOfLast(list, 60));
    tiers.set(pairOf(policy, tier), [tier === 'none' ? 'no tier' : tier, policy, ...counts.slice(0, 3)]);
  }
  const lines = [...tiers.values()].sort((left, right) => right[2] + right[3] - left[2] - left[3]);
  fill($('tiers'), ['Tier', 'Policy', 'Allowed', 'Denied', 'Would deny'], lines.map((line) => ({
    name: `${line[0]} ${line[1]}`,
    cells: line.map((value, column) => column < 2 ? { text: value, head: column === 0 } : { text: number(value), number: true }),
  })), 'No decisions yet');
}

function renderStore() {
  const { servers, keys, key_bytes: bytes, held_slots: slots, health, latency: [latency] } = state;
  const facts = [];
  const hasRedis = servers.length > 0;
  facts.push(['Counted in', hasRedis ? 'Redis' : 'this process']);
  if (hasRedis) {
    const network = servers.map((server) => server.network_micros).filter((value) => value !== null);
    facts.push(['Mode', health.mode]);
    facts.push(['Call round trip', latency.median === null ? 'no call in the last second'
      : `${millis(latency.median)} median, ${millis(latency.p99)} p99`]);
    if (latency.queue_p99 !== null) facts.push(['Queue', `${millis(latency.queue_p99)} p99`]);
    if (network.length) facts.push(['Network round trip', millis(Math.min(...network))]);
    facts.push(['Live instances', health.instances ?? 'not known yet']);
    facts.push(['Decided without Redis', `${number(health.fallback_decisions)} after failures, ${number(health.shed_decisions)} under load`]);
  }
  if (keys !== null) facts.push([hasRedis ? 'Keys here' : 'Keys', `${number(keys)}, ${size(bytes)}`]);
  if (slots) facts.push(['Slots held', number(slots)]);
  if (state.failed_decisions) facts.push(['Errors', number(state.failed_decisions)]);
  const list = $('store');
  if (list.childElementCount !== facts.length * 2) {
    list.replaceChildren(...facts.flatMap(() => [element('dt', {}), element('dd', {})]));
  }
  facts.forEach(([name, value], index) => {
    setText(list.children[2 * index], name);
    setText(list.children[2 * index + 1], String(value));
  });
  $('latency-title').hidden = $('latency-chart').hidden = $('latency-details').hidden = !hasRedis;
  if (hasRedis) renderLatency();
  fill($('servers'), ['Server', 'Breaker', 'Calls', 'Waiting'], servers.length < 2 ? [] : servers.map((server, index) => ({
    name: server.address ?? `${index}`,
    cells: [
      { text: server.address ?? 'of a pool', head: true },
      { text: server.is_breaker_open === null ? '–' : server.is_breaker_open ? 'open' : 'closed', bad: server.is_breaker_open },
      { text: String(server.calls_in_flight ?? '–'), number: true },
      { text: String(server.charges_waiting ?? '–'), number: true },
    ],
  })));
}

function renderLatency() {
  const track = history.tracks[Number($('chart-track').value)];
  const values = (name) => track.latency.slice(0, shownSlots(track)).map((slot) => slot[name] === null ? null : slot[name] / 1000);
  const series = [
    { id: 'denied', name: 'p99', values: values('p99'), shape: 'line' },
    { id: 'allowed', name: 'median', values: values('median'), shape: 'line' },
    { id: 'shadow', name: 'queue p99', values: values('queue_p99'), shape: 'line' },
  ];
  chart($('latency-chart'), { label: 'Latency of Redis in milliseconds', track, series, height: 130, unit: ' ms' });
  fillTimes($('latency-table'), track, series, ' ms');
}

// === Top keys ===

// Reads what the state does not contain, every five seconds.
async function refreshLists() {
  clearTimeout(listsTimer);
  const owner = session;
  if (!owner) return;
  const lists = [refreshTopKeys, refreshBlocks, refreshRules].map((refresh) => refresh(owner));
  for (const { reason } of await Promise.allSettled(lists)) {
    // The stream shows that the connection is lost.
    if (reason && !(reason instanceof ApiError)) console.error(reason);
  }
  if (session && session === owner) listsTimer = setTimeout(refreshLists, 5000);
}

async function refreshTopKeys(owner) {
  if (!owner.has_top_keys) return setText($('top-note'), 'Not recorded: build the limiter with top keys.');
  const list = await read('top-keys');
  if (session === owner) renderTopKeys(list);
}

function renderTopKeys(list) {
  const lines = list.policies.flatMap(({ policy, total, keys }) => keys.map((key) => ({ policy, total, ...key })));
  lines.sort((left, right) => right.count - left.count);
  const about = list.is_plain ? '' : ' Keys are shown as hashes.';
  setText($('top-note'), `Denied requests since ${time(list.since, true)}.${about}`);
  fill($('top-keys'), ['Key', 'Policy', 'Denied', ...(list.is_plain ? [''] : [])], lines.slice(0, 10).map((line) => {
    const share = line.error ? `${number(line.count - line.error)} to ${number(line.count)}` : number(line.count);
    const cells = [{ text: line.key, key: true }, { text: line.policy }, { text: share, number: true }];
    if (list.is_plain) {
      cells.push({ node: button('Look up', `Look up ${line.key}`, () => lookUp({ key: line.key, form: 'counted' })) });
    }
    return { name: `${line.key} ${line.policy}`, cells };
  }), 'Nothing was denied');
}

// === Keys ===

$('key-form').addEventListener('submit', (event) => {
  event.preventDefault();
  lookUp({ key: $('key').value, form: $('key-kind').value });
});
for (const input of [$('key'), $('key-kind')]) input.addEventListener('input', () => { forgetKey(); report('key', KEY_HINT); });

// Shows a key, after what was `done` with it.
async function lookUp(asked, done = '') {
  $('key').value = asked.key;
  $('key-kind').value = asked.form;
  wanted = asked;
  try {
    const found = await read('key', { key: asked.key, form: asked.form });
    if (wanted !== asked) return; // another key was asked for, or is being typed
    lookedUp = asked;
    renderKey(found);
    report('key', `${done} State at ${time(serverTime(), true)}. Nothing was charged.`.trim());
  } catch (error) {
    if (wanted !== asked) return;
    forgetKey();
    report('key', `${done} ${failure(error)}`.trim(), true);
  }
}

// No action may hit a key other than the one in the field.
function forgetKey() {
  wanted = lookedUp = null;
  $('block-form').hidden = $('refund-form').hidden = $('key-shown').hidden = true;
  fill($('key-states'), [], []);
  $('key-notes').replaceChildren();
}

// A secret is not repeated where others read along.
const nameOf = ({ key, form }) => form === 'secret' ? `the API key …${key.slice(-4)}` : key;

function renderKey({ policies: rows, without_key: keyless }) {
  lookedUp.rows = rows;
  setText($('key-shown'), `State of ${nameOf(lookedUp)}`);
  $('key-shown').hidden = false;
  renderKeyNotes(rows, keyless);
  const optional = [
    ['Counted as', rows.some(({ key }) => key !== lookedUp.key), ({ key }) => ({ text: key, key: true })],
    ['Penalty', rows.some(({ penalty }) => penalty), (entry) => ({ text: penaltyText(entry.penalty), bad: isBanned(entry) })],
    ['Last denial', rows.some((entry) => entry.last_denial), (entry) => ({ text: denialText(entry.last_denial) })],
    ['Blocked', rows.some(isBlocked), (entry) => ({ text: blockText(entry), bad: isBlocked(entry), isFree: true })],
    ['Change', session.can_write, (entry) => ({ node: keyButtons(entry) })],
  ].filter(([, isShown]) => isShown);
  const names = ['Policy', 'Left', 'Full again', 'Counted by', ...optional.map(([name]) => name)];
  fill($('key-states'), names, rows.map((entry) => {
    const left = element('span', { class: entry.remaining === 0 ? 'bad' : '' },
      entry.limit === null ? 'not counted now' : `${number(entry.remaining)} of ${number(entry.limit)}`);
    return { name: rowName(entry), cells: [
      { text: entry.policy, head: true },
      { node: entry.limit ? group(meter(entry.remaining / entry.limit), left) : left },
      { text: entry.reset_millis === null ? '–' : entry.reset_millis ? `in ${duration(entry.reset_millis)}` : 'now' },
      { text: entry.counted_by.replace('_', ' ') },
      ...optional.map(([, , cell]) => cell(entry)),
    ] };
  }), 'No policies');
  $('block-form').hidden = !session.can_write;
  const refundable = rows.filter((entry) => entry.is_refundable);
  $('refund-form').hidden = !session.can_write || !refundable.length;
  const isRepeated = (policy) => refundable.filter((entry) => entry.policy === policy).length > 1;
  fillOptions($('refund-policy'), refundable.map((entry) =>
    option(rowName(entry), isRepeated(entry.policy) ? `${entry.policy}, as ${entry.key}` : entry.policy)));
  const policies = ['', ...new Set(rows.map(({ policy }) => policy))];
  fillOptions($('block-policy'), policies.map((name) => option(name, name || 'all policies')));
}

// What may lead to a wrong conclusion from the numbers.
function renderKeyNotes(rows, keyless) {
  const notes = keyless.map(({ policy, reason }) => `${policy} cannot count this key: ${reason}.`);
  if (rows.length && !rows.some((entry) => entry.has_state)) {
    notes.unshift('No policy counts this key now. Check its spelling and its kind.');
  }
  const tiered = [...new Set(rows.filter((entry) => entry.has_tiers).map(({ policy }) => policy))];
  if (tiered.length) notes.push(`Without tiers: what callers of ${tiered.join(', ')} have left depends on their tier.`);
  replaceChanged($('key-notes'), notes.map((note) => element('li', {}, note)));
}

const rowName = ({ policy, key }) => `${policy} ${key}`;
const isBlocked = (entry) => entry.blocked_millis !== null;
const isBanned = ({ penalty }) => penalty !== null && penalty.banned_millis !== null;
const blockText = (entry) => isBlocked(entry)
  ? `${duration(entry.blocked_millis)}${entry.block_reason ? `: ${entry.block_reason}` : ''}` : 'no';

function keyButtons(entry) {
  const { key, policy, block_policy: blocked } = entry;
  const reset = isBanned(entry) ? 'Lift the ban' : 'Reset';
  const buttons = [button(reset, `${reset} of ${key} under ${policy}`, () => resetKey(key, policy, isBanned(entry)))];
  if (isBlocked(entry)) {
    const label = blocked ? 'Unblock' : 'Unblock under all policies';
    const act = () => unblock('key', { key, form: 'counted' }, blocked);
    buttons.push(button(label, `Unblock ${key} under ${blocked ?? 'all policies'}`, act));
  }
  return group(...buttons);
}

// Keeps what is chosen, if it is still there.
function fillOptions(select, options) {
  const values = (list) => [...list].map((it) => it.value).join();
  if (values(select.options) !== values(options)) select.replaceChildren(...options);
}

function penaltyText(penalty) {
  if (!penalty) return 'none';
  const bans = penalty.bans ? `, ban ${number(penalty.bans)}` : '';
  if (penalty.banned_millis !== null) return `banned for ${duration(penalty.banned_millis)}${bans}`;
  const after = penalty.bans ? ` after ${number(penalty.bans)} ${penalty.bans > 1 ? 'bans' : 'ban'}` : '';
  return `${number(penalty.denials)} of the ${number(penalty.most_denials)} denials that lead to a ban${after}`;
}

function denialText(denial) {
  if (!denial) return 'none';
  const times = denial.count > 1 ? `, ${number(denial.count)} in ${duration(denial.since_millis)}` : '';
  const effect = denial.is_shadow ? ', in shadow' : '';
  return `${duration(denial.ago_millis)} ago${times}${effect}`;
}

function button(text, label, act) {
  const node = element('button', { type: 'button', class: 'small', 'aria-label': label }, text);
  node.addEventListener('click', act);
  return node;
}

async function resetKey(key, policy, isBan) {
  const asked = lookedUp;
  const [title, yes, effect, done] = isBan
    ? [`Lift the ban of ${key}?`, 'Lift the ban', 'Its earlier bans no longer count, and it', 'Lifted the ban']
    : [`Reset ${key}?`, 'Reset', 'It', 'Reset'];
  if (!await confirmed(title, `${effect} gets its full quota under ${policy} again, ${where()}.`, yes)) return;
  await changeKey(asked, 'reset', { key, form: 'counted', policy }, `${done} under ${policy}.`);
}

$('refund-form').addEventListener('submit', async (event) => {
  event.preventDefault();
  const asked = lookedUp;
  const { key, policy } = asked.rows.find((entry) => rowName(entry) === $('refund-policy').value);
  const units = $('refund-units').valueAsNumber;
  const text = `It gets back up to ${count(units, 'unit')} that it has used under ${policy}, ${where()}.`;
  if (!await confirmed(`Refund ${key}?`, text, 'Refund')) return;
  await changeKey(asked, 'refund', { key, form: 'counted', policy, units }, `Refunded under ${policy}.`);
});

// Changes a key, and shows again what was looked up.
async function changeKey(asked, action, body, done) {
  if (!await change('key', () => write(`key/${action}`, body), done)) return;
  if (lookedUp === asked) await lookUp(asked, done);
}

const where = () => state.servers.length ? 'for all instances' : 'in this instance';

// === Blocks ===

$('block-form').addEventListener('submit', async (event) => {
  event.preventDefault();
  const asked = lookedUp;
  const policy = $('block-policy').value || null;
  const seconds = Number($('block-time').value);
  const reason = $('block-reason').value;
  const bytes = new TextEncoder().encode(reason).length;
  if (bytes > MAX_REASON) {
    return report('key', `The reason is too long: it has ${bytes} bytes, of at most ${MAX_REASON}.`, true);
  }
  const name = policy ?? 'all policies';
  const rows = asked.rows.filter((entry) => policy === null || entry.policy === policy);
  const keys = [...new Set(rows.map(({ key }) => key))];
  const counted = keys.join() === asked.key ? '' : ` It is counted as ${keys.join(', ')}.`;
  const text = `Its requests are denied under ${name} for ${duration(seconds * 1000)}, ${where()}.${counted}`;
  if (!await confirmed(`Block ${nameOf(asked)}?`, text, 'Block')) return;
  const { key, form } = asked;
  await changeKey(asked, 'block', { key, form, policy, seconds, reason }, `Blocked under ${name}.`);
  refreshLists();
});

// Ends a block, from the panel of the key or from the list.
async function unblock(panel, asked, policy) {
  const name = policy ?? 'all policies';
  if (!await confirmed(`Unblock ${nameOf(asked)}?`, `Its block under ${name} ends now.`, 'Unblock')) return;
  const done = `Unblocked ${nameOf(asked)} under ${name}.`;
  if (!await change(panel, () => write('key/unblock', { ...asked, policy }), done)) return;
  if (lookedUp) await lookUp(lookedUp, panel === 'key' ? done : '');
  refreshLists();
}

async function refreshBlocks(owner) {
  if (!owner.can_write) return;
  const list = await read('blocks');
  if (session !== owner) return;
  const more = list.count > list.blocks.length ? `: the ${number(list.blocks.length)} of ${number(list.count)} that end first` : '';
  setText($('blocks-title'), `Blocked keys${more}${list.store_error ? ', as known before the outage' : ''}`);
  fill($('blocks'), ['Key', 'Policy', 'Ends in', 'Reason', 'Change'], list.blocks.map((block) => {
    const policy = block.policy ?? 'all policies';
    const act = () => unblock('blocks', { key: block.key, form: 'counted' }, block.policy);
    return { name: `${block.key} ${policy}`, cells: [
      { text: block.key, key: true },
      { text: policy },
      { text: duration(Math.max(0, block.until - serverTime())) },
      { text: block.reason || '–', isFree: true },
      { node: button('Unblock', `Unblock ${block.key} under ${policy}`, act) },
    ] };
  }), 'No key is blocked');
}

// === Rules ===

async function refreshRules(owner) {
  if (!owner.has_rules) return;
  const latest = await read('rules');
  if (session !== owner) return;
  versions = latest;
  renderVersions();
  $('rules-editor').hidden = !canReplaceRules() || !edited;
  if (canReplaceRules()) await refreshEditor(owner);
}

const canReplaceRules = () => session.can_write && versions.can_push;

// Loads the rules in force into the editor, unless they are in it, or the operator has changed its text.
async function refreshEditor(owner) {
  if (edited?.replaced !== versions.latest && !isEdited()) {
    const replaced = versions.latest;
    const loaded = await read(`rules/${versions.present}`);
    if (session === owner && !isEdited()) load(loaded, replaced);
  }
  renderEditor();
}

// `replaced` is the latest version that is stored; it is not in force if it was refused here.
function load({ number: version, text, format }, replaced) {
  $('rules-text').value = text;
  $('rules-format').value = format;
  // The text as the field returns it, with its line ends.
  edited = { number: version, replaced, text: $('rules-text').value, format };
}

const isEdited = () => edited && ($('rules-text').value !== edited.text || $('rules-format').value !== edited.format);

// Warns if other rules are in force than those with which the operator began.
function renderEditor() {
  $('rules-editor').hidden = !edited;
  const isOutdated = edited && versions && edited.replaced !== versions.latest;
  $('rules-outdated').hidden = !isOutdated;
  if (!isOutdated) return;
  const text = `You began with version ${edited.number}. Since then, version ${versions.latest} was stored. `
    + 'Compare it with your text, and take over what it changed.';
  if ($('rules-outdated-text').textContent !== text) readAloud($('rules-outdated-text'), text);
}

// Keeps the text of the operator, who has seen what is in force now.
$('rules-keep').addEventListener('click', () => {
  Object.assign(edited, { number: versions.present, replaced: versions.latest });
  renderEditor();
  $('rules-text').focus();
});
$('rules-discard').addEventListener('click', async () => {
  try {
    const replaced = versions.latest;
    load(await read(`rules/${versions.present}`), replaced);
    renderEditor();
    $('rules-text').focus();
  } catch (error) {
    report('rules', failure(error), true);
  }
});

function renderVersions() {
  const present = versions.versions.find(({ number }) => number === versions.present);
  const by = present.author ? ` by ${present.author}` : '';
  const file = versions.can_push ? '' : ' The rules come from a file: to change them, edit it.';
  setText($('rules-note'), `Version ${present.number} is in force, since ${moment(present.time)}${by}.${file}`);
  const faults = [];
  if (versions.last_error) faults.push(`The latest rules were refused, and those above stay:\n${versions.last_error}`);
  if (versions.source_error) faults.push(`Older versions cannot be read: ${versions.source_error}.`);
  $('rules-error').hidden = !faults.length;
  setText($('rules-error'), faults.join('\n'));
  fill($('versions'), ['Version', 'When', 'By', 'Comment', ''], versions.versions.map((version) => {
    const isPresent = version.number === versions.present;
    const buttons = isPresent ? [document.createTextNode('in force')]
      : [button('Compare', `Compare version ${version.number} with the rules in force`, () => compare(version.number))];
    if (!isPresent && canReplaceRules()) {
      buttons.push(button('Roll back', `Roll back to version ${version.number}`, () => rollBack(version.number)));
    }
    return { name: String(version.number), cells: [
      { text: String(version.number), head: true },
      { text: moment(version.time) },
      { text: version.author ?? '–', isFree: true },
      { text: version.comment ?? '–', isFree: true },
      { node: group(...buttons) },
    ] };
  }));
}

async function compare(version) {
  try {
    const [old, present] = await Promise.all([read(`rules/${version}`), read(`rules/${versions.present}`)]);
    showDiff(`Version ${version} and version ${versions.present}, in force`, old.text, present.text);
  } catch (error) {
    report('rules', failure(error), true);
  }
}

async function rollBack(version) {
  if (!await confirmed(`Roll back to version ${version}?`, 'Its rules are put in force as a new version.', 'Roll back')) return;
  if (await change('rules', () => write('rules/roll-back', { version }), `Rolled back to version ${version}.`)) await refreshLists();
}

$('rules-compare').addEventListener('click', async () => {
  try {
    const present = await read(`rules/${versions.present}`);
    showDiff(`Version ${present.number}, in force, and your text`, present.text, $('rules-text').value);
  } catch (error) {
    report('rules', failure(error), true);
  }
});

$('rules-form').addEventListener('submit', async (event) => {
  event.preventDefault();
  const [text, format, replacing] = [$('rules-text').value, $('rules-format').value, edited.replaced];
  const effect = `They replace version ${replacing}. If they have a fault, nothing changes.`;
  if (!await confirmed('Put these rules in force?', effect, 'Put in force')) return;
  const comment = $('rules-comment').value || null;
  const result = $('rules-result');
  readAloud(result, '');
  try {
    const { number: version } = await read('rules/push', { text, format, replacing, comment });
    report('rules', `Version ${version} is in force.`);
    edited = { number: version, replaced: version, text, format };
    $('rules-comment').value = '';
    $('rules-editor').open = false;
  } catch (error) {
    if (session) readAloud(result, error.message);
  }
  await refreshLists();
});

// Shows the lines that differ, with three lines around them.
function showDiff(title, old, next) {
  const lines = diff(old.split('\n'), next.split('\n'));
  const isShown = lines.map((_, index) => lines.slice(Math.max(0, index - 3), index + 4).some(({ sign }) => sign !== ' '));
  const rows = [];
  lines.forEach(({ sign, text }, index) => {
    if (isShown[index]) rows.push({ sign, text: `${sign} ${text}` });
    else if (index === 0 || isShown[index - 1]) rows.push({ sign: ' ', text: '…' });
  });
  if (!lines.some(({ sign }) => sign !== ' ')) rows.splice(0, rows.length, { sign: ' ', text: 'no difference' });
  setText($('diff-title'), title);
  $('diff').replaceChildren(...rows.map(({ sign, text }) => {
    const line = element('tr', { 'data-sign': sign });
    line.append(element('td', {}, text));
    return line;
  }));
  $('diff-box').hidden = false;
}

// The shortest list of removed and added lines: a longest common subsequence, between what both have at their ends.
function diff(old, next) {
  let start = 0;
  while (start < old.length && start < next.length && old[start] === next[start]) start += 1;
  let end = 0;
  while (end < old.length - start && end < next.length - start && old.at(-1 - end) === next.at(-1 - end)) end += 1;
  const [a, b] = [old.slice(start, old.length - end), next.slice(start, next.length - end)];
  const same = (lines) => lines.map((text) => ({ sign: ' ', text }));
  const middle = [];
  if (a.length * b.length > 4e6) {
    middle.push(...a.map((text) => ({ sign: '-', text })), ...b.map((text) => ({ sign: '+', text })));
  } else {
    const width = b.length + 1;
    const common = new Uint32Array((a.length + 1) * width);
    for (let i = a.length - 1; i >= 0; i -= 1) {
      for (let j = b.length - 1; j >= 0; j -= 1) {
        common[i * width + j] = a[i] === b[j] ? common[(i + 1) * width + j + 1] + 1
          : Math.max(common[(i + 1) * width + j], common[i * width + j + 1]);
      }
    }
    let [i, j] = [0, 0];
    while (i < a.length || j < b.length) {
      if (i < a.length && j < b.length && a[i] === b[j]) {
        middle.push({ sign: ' ', text: a[i] });
        [i, j] = [i + 1, j + 1];
      } else if (j >= b.length || (i < a.length && common[(i + 1) * width + j] >= common[i * width + j + 1])) {
        middle.push({ sign: '-', text: a[i] });
        i += 1;
      } else {
        middle.push({ sign: '+', text: b[j] });
        j += 1;
      }
    }
  }
  return [...same(old.slice(0, start)), ...middle, ...same(old.slice(old.length - end))];
}

// === Modes ===

$('layer-mode').append(...MODES.map((mode) => option(mode, mode)));
$('layer-mode').addEventListener('change', () => changeMode(null, $('layer-mode')));

function modeSelect(label) {
  const select = element('select', { 'aria-label': label });
  select.append(...MODES.map((mode) => option(mode, mode)));
  return select;
}

async function changeMode(policy, select) {
  const mode = select.value;
  const name = policy ?? 'all policies';
  const effect = {
    off: 'Nothing is counted or denied until it is changed back, in this instance.',
    shadow: 'Requests are counted, and none is denied, in this instance.',
    enforce: 'Requests over the limit are denied, in this instance.',
  }[mode];
  select.dataset.busy = 'yes';
  if (await confirmed(`Set ${name} to ${mode}?`, effect, `Set to ${mode}`)) {
    await change('policies', () => write('mode', policy === null ? { mode } : { mode, policy }), `Set ${name} to ${mode}.`);
  }
  delete select.dataset.busy;
  if (state) updateSelect(select, policy === null ? state.mode : state.policies.find(({ name }) => name === policy)?.mode);
}

// A percentage that is being written has a button, and stays until it is set or given up.
function rolloutForm(policy) {
  const label = `Percent of keys for which ${policy} is enforced`;
  const input = element('input', { type: 'number', min: 0, max: 100, step: 'any', required: '', 'aria-label': label });
  const set = element('button', { class: 'small', 'aria-label': `Set the percent of keys for ${policy}` }, 'Set');
  set.hidden = true;
  input.addEventListener('input', () => { set.hidden = false; });
  const form = element('form', { class: 'rollout' });
  form.append('for ', input, ' % of keys ', set);
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    await changeRollout(policy, input.valueAsNumber);
    if (document.activeElement === set) input.focus();
    set.hidden = true;
    const latest = state?.policies.find(({ name }) => name === policy);
    if (latest) updateRollout(form, latest.rollout);
  });
  return form;
}

function updateRollout(form, percentage) {
  const [input, set] = form.children;
  if (set.hidden && input.valueAsNumber !== percentage) input.value = percentage;
}

async function changeRollout(policy, percentage) {
  const effect = 'Requests of other keys are counted, and none is denied, in this instance.';
  if (!await confirmed(`Enforce ${policy} for ${percentage} % of keys?`, effect, `Set to ${percentage} %`)) return;
  await change('policies', () => write('rollout', { policy, percent: percentage }), `Set ${policy} to ${percentage} % of keys.`);
}

// Sends a change, and reports in a panel what was `done`, or why not. Returns whether it was made.
async function change(panel, send, done) {
  try {
    await send();
  } catch (error) {
    report(panel, failure(error), true);
    return false;
  }
  report(panel, done);
  const latest = await read('state').catch(() => null);
  if (latest && state) Object.assign(state, { mode: latest.mode, policies: latest.policies });
  render();
  return true;
}

function confirmed(title, text, action) {
  const dialog = $('question');
  setText($('confirm-title'), title);
  setText($('confirm-text'), text);
  setText($('confirm-yes'), action);
  dialog.returnValue = 'no';
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener('close', () => resolve(dialog.returnValue === 'yes'), { once: true });
  });
}

// === Charts ===

// Draws lines over stacked areas, with a cursor that shows the numbers of one time.
function chart(target, { label, track, series, height, unit, annotations = [] }) {
  const width = Math.max(280, Math.round(target.clientWidth || 600));
  const slots = CAPACITY[history.tracks.indexOf(track)];
  const stacked = [];
  const bases = new Array(slots).fill(0);
  for (const { id, values, shape } of series) {
    const aligned = Array.from({ length: slots }, (_, slot) => values[values.length - slots + slot] ?? null);
    if (shape === 'area') {
      const low = [...bases];
      aligned.forEach((value, slot) => { bases[slot] += value ?? 0; });
      stacked.push({ id, shape, low, high: [...bases] });
    } else if (aligned.some((value) => value)) {
      stacked.push({ id, shape, high: aligned });
    }
  }
  const top = niceTop(Math.max(...stacked.flatMap(({ high }) => high.map((value) => value ?? 0)), 0));
  const [left, bottom] = [8 + 7 * Math.max(...[0, top / 2, top].map((value) => number(value).length)), 22];
  const x = (slot) => left + (width - left) * slot / Math.max(1, slots - 1);
  const y = (value) => 8 + (height - bottom - 8) * (1 - value / top);
  const point = (value, slot) => `${x(slot).toFixed(1)} ${y(value).toFixed(1)}`;

  let drawing = target.querySelector('svg');
  if (!drawing) {
    drawing = svg('svg', { role: 'img' });
    const legend = element('ul', { class: 'legend' });
    target.append(drawing, legend);
    drawing.addEventListener('pointermove', (event) => {
      const box = drawing.getBoundingClientRect();
      target.cursor = (event.clientX - box.left) / box.width;
      render();
    });
    drawing.addEventListener('pointerleave', () => { target.cursor = undefined; render(); });
  }
  drawing.setAttribute('viewBox', `0 0 ${width} ${height}`);
  const marks = [];
  for (const value of [0, top / 2, top]) {
    marks.push(svg('line', { class: 'grid', x1: left, x2: width, y1: y(value), y2: y(value) }));
    const text = svg('text', { x: left - 6, y: y(value) + 4, 'text-anchor': 'end' });
    text.textContent = number(value);
    marks.push(text);
  }
  const start = lastShown(track) - (slots - 1) * track.step;
  const labels = width < 480 ? 3 : 5;
  for (let index = 0; index < labels; index += 1) {
    const slot = Math.round((slots - 1) * index / (labels - 1));
    const anchor = index === 0 ? 'start' : index === labels - 1 ? 'end' : 'middle';
    const text = svg('text', { x: x(slot), y: height - 4, 'text-anchor': anchor });
    text.textContent = slotTime(start + slot * track.step, track);
    marks.push(text);
  }
  for (const { id, shape, low, high } of stacked) {
    const path = shape === 'area'
      ? `M${high.map(point).join('L')}L${low.map(point).reverse().join('L')}Z`
      : strokes(high, point);
    const node = svg('path', { class: shape, d: path });
    node.dataset.kind = id;
    marks.push(node);
  }
  // Those since the numbers begin; the latest first, whose names have precedence.
  const begin = lastShown(track) - (shownSlots(track) - 1) * track.step;
  const shownAnnotations = annotations.map(({ at, text }) => ({ at, text, second: (at - ahead()) / 1000 }))
    .filter(({ second }) => second > begin && second <= lastShown(track) + track.step)
    .sort((one, other) => other.at - one.at);
  let free = width;
  for (const { second, text } of shownAnnotations) {
    const place = x((second - start) / track.step);
    marks.push(svg('line', { class: 'annotation', x1: place, x2: place, y1: 0, y2: height - bottom }));
    const length = 7 * text.length + 8;
    const isRight = place + length > free;
    if (isRight && place > free) continue;
    const name = svg('text', { class: 'annotation', x: place + (isRight ? -4 : 4), y: 10, 'text-anchor': isRight ? 'end' : 'start' });
    name.textContent = text;
    marks.push(name);
    free = isRight ? place - length : place;
  }
  let slot = slots - 1;
  if (target.cursor !== undefined) {
    slot = Math.round(Math.min(1, Math.max(0, (target.cursor * width - left) / (width - left))) * (slots - 1));
    marks.push(svg('line', { class: 'cursor', x1: x(slot), x2: x(slot), y1: 4, y2: height - bottom }));
  }
  drawing.replaceChildren(...marks);
  const at = (values) => values[values.length - slots + slot] ?? null;
  const items = series.map(({ id, name, values, shape }) => {
    const item = element('li', { class: shape }, `${name} `);
    item.dataset.kind = id;
    item.append(element('b', {}, at(values) === null ? '–' : `${number(at(values))}${unit}`));
    return item;
  });
  const shown = element('span', { class: 'soft' }, `at ${slotTime(start + slot * track.step, track)}`);
  const when = element('li', { class: 'when' });
  when.append(shown);
  replaceChanged(target.querySelector('.legend'), [...items, when]);
  const latest = (values) => (values.at(-1) ?? null) === null ? 'unknown' : `${number(values.at(-1))}${unit}`;
  const now = series.map(({ name, values }) => `${name} ${latest(values)}`).join(', ');
  const annotated = shownAnnotations.map(({ at, text }) => ` ${text} since ${time(at, true)}.`).join('');
  drawing.setAttribute('aria-label', `${label}, over ${track.step === 1 ? '5 minutes' : '6 hours'}. Now: ${now}.${annotated}`);
}

function strokes(values, point) {
  let path = '';
  let isDrawing = false;
  values.forEach((value, slot) => {
    if (value !== null) path += `${isDrawing ? 'L' : 'M'}${point(value, slot)}`;
    isDrawing = value !== null;
  });
  return path;
}

function niceTop(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 6, 8, 10].find((step) => step * power >= value) * power;
}

// The numbers of a chart, of twelve times.
function fillTimes(table, track, series, unit) {
  if (!table.closest('details').open) return;
  const rows = 12;
  const length = series[0].values.length;
  const bin = Math.max(1, Math.floor(CAPACITY[history.tracks.indexOf(track)] / rows));
  const lines = [];
  for (let end = length; end > 0 && lines.length < rows; end -= bin) {
    const from = Math.max(0, end - bin);
    const cells = [{ text: slotTime(lastShown(track) - (length - 1 - from) * track.step, track), head: true }];
    for (const { values } of series) {
      const known = values.slice(from, end).filter((value) => value !== null);
      cells.push({ text: known.length ? number(sumOfLast(known, known.length) / known.length) + unit : '–', number: true });
    }
    lines.push({ name: String(lines.length), cells });
  }
  fill(table, ['From', ...series.map(({ name }) => name)], lines, 'No numbers yet');
}

$('chart-policy').addEventListener('change', render);
$('chart-track').addEventListener('change', render);
for (const details of document.querySelectorAll('details')) details.addEventListener('toggle', render);
new ResizeObserver(() => render()).observe($('decisions-chart'));

// === Elements ===

function element(name, attributes, text) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function svg(name, attributes) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

function option(value, text) {
  return element('option', { value }, text);
}

function group(...nodes) {
  const node = element('span', { class: 'group' });
  node.append(...nodes);
  return node;
}

function meter(share) {
  const node = element('span', { class: 'meter', 'aria-hidden': 'true' });
  const drawing = svg('svg', { viewBox: '0 0 100 1', preserveAspectRatio: 'none' });
  drawing.append(svg('rect', { width: 100 * Math.min(1, Math.max(0, share)), height: 1 }));
  node.append(drawing);
  return node;
}

function row(kind, cells, names = []) {
  const line = document.createElement('tr');
  cells.forEach((cell, column) => {
    const node = document.createElement(cell.head || kind === 'th' ? 'th' : 'td');
    if (node.localName === 'th') node.scope = kind === 'th' ? 'col' : 'row';
    if (cell.number) node.classList.add('number');
    if (cell.key) node.classList.add('key');
    if (cell.isFree) node.classList.add('free');
    if (cell.bad) node.classList.add('bad');
    if (kind !== 'th' && names[column]) node.dataset.name = names[column];
    node.append(cell.node ?? cell.text);
    line.append(node);
  });
  return line;
}

// Shows rows, each with a name of its own. What is the same stays: a selection, the focus, the place of a screen reader.
// Controls with equal labels have to do the same.
function fill(table, names, rows, empty) {
  if (!rows.length && !empty) return keepFocus(table, () => table.replaceChildren());
  const isNumber = (column) => rows[0]?.cells[column]?.number;
  const head = element('thead', {});
  head.append(row('th', names.map((text, column) => ({ text, number: isNumber(column) }))));
  const lines = rows.map(({ name, cells }) => {
    const line = row('td', cells, names);
    line.dataset.row = name;
    return line;
  });
  if (!rows.length) {
    lines.push(element('tr', { 'data-row': '' }));
    lines[0].append(element('td', { class: 'note', colspan: names.length }, empty));
  }
  if (!table.tHead) table.append(head, element('tbody', {}));
  else if (!table.tHead.isEqualNode(head)) table.tHead.replaceWith(head);
  keepFocus(table, () => fillBody(table.tBodies[0], lines));
}

function fillBody(body, lines) {
  const known = new Map([...body.rows].map((line) => [line.dataset.row, line]));
  const shown = lines.map((line) => {
    const old = known.get(line.dataset.row);
    known.delete(line.dataset.row);
    if (!old) return line;
    replaceChanged(old, [...line.cells]);
    return old;
  });
  for (const line of known.values()) line.remove();
  shown.forEach((line, index) => {
    if (body.rows[index] !== line) body.insertBefore(line, body.rows[index] ?? null);
  });
}

// Runs an update of a table. A control that was replaced passes its focus on, and one that is gone to the heading.
function keepFocus(table, update) {
  const focused = document.activeElement;
  const cell = table.contains(focused) && focused.closest('td, th');
  if (!cell) return update();
  const [name, column] = [cell.parentElement.dataset.row, cell.cellIndex];
  update();
  if (document.activeElement === focused) return;
  const line = [...table.rows].find((it) => it.dataset.row === name);
  const heading = table.closest('section').querySelector('h2');
  heading.tabIndex = -1;
  const next = focused.isConnected ? focused : line?.cells[column]?.querySelector('button') ?? heading;
  next.focus({ preventScroll: true });
}

// Replaces the children that differ from the new ones.
function replaceChanged(parent, children) {
  children.forEach((child, index) => {
    const old = parent.children[index];
    if (!old) parent.append(child);
    else if (!old.isEqualNode(child)) old.replaceWith(child);
  });
  while (parent.children.length > children.length) parent.lastElementChild.remove();
}

// The present time, by the clock to which times of the server belong.
const serverTime = () => state?.time ?? Date.now();

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function updateSelect(select, value) {
  if (!select.options.length) return;
  if (value && select.dataset.busy !== 'yes' && select.value !== value) select.value = value;
}

function setConnection(level, text) {
  const isNew = $('connection').dataset.state !== level;
  $('connection').dataset.state = level;
  setText($('connection'), text);
  if (isNew && session) renderStatus();
}

// Shows the result of an action in its panel, where it is read aloud.
function report(panel, text, isFailure = false) {
  if (!session) return;
  $(`${panel}-message`).classList.toggle('bad', isFailure);
  readAloud($(`${panel}-message`), text);
}

// Sets the text of a live region. A text that is the same as before is only read again after the region was empty.
function readAloud(node, text) {
  clearTimeout(spoken.get(node));
  node.textContent = '';
  spoken.set(node, setTimeout(() => { node.textContent = text; }, 50));
}

const failure = (error) => `That failed: ${error.message}.`;

// === Text ===

function number(value) {
  if (value === 0) return '0';
  if (value > 0 && value < 0.005) return '< 0.01';
  const digits = value < 10 && !Number.isInteger(value) ? (value < 1 ? 2 : 1) : 0;
  return value.toLocaleString('en', { maximumFractionDigits: digits });
}

const count = (value, noun) => `${number(value)} ${noun}${value === 1 ? '' : 's'}`;
const percent = (share) => `${number(share * 100 < 10 ? share * 100 : Math.round(share * 100))} %`;
const millis = (micros) => `${number(micros / 1000)} ms`;

// All of a duration: of a limit, nothing is rounded away.
function exact(milliseconds) {
  if (milliseconds === 0) return '0 s';
  if (milliseconds < 1000) return `${milliseconds} ms`;
  const parts = [];
  let rest = milliseconds;
  for (const [unit, length] of [['day', 86400000], ['h', 3600000], ['min', 60000]]) {
    const whole = Math.floor(rest / length);
    rest -= whole * length;
    if (whole) parts.push(unit === 'day' ? count(whole, unit) : `${whole} ${unit}`);
  }
  if (rest) parts.push(`${rest / 1000} s`);
  return parts.join(' ');
}

// A time that passes, in its two largest units, of at least a second.
const duration = (milliseconds) => exact(Math.ceil(milliseconds / 1000) * 1000).split(' ').slice(0, 4).join(' ');

function size(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  return bytes < 1e6 ? `${number(bytes / 1000)} KB` : `${number(bytes / 1e6)} MB`;
}

function time(milliseconds, hasSeconds) {
  const options = { hour: '2-digit', minute: '2-digit', hourCycle: 'h23' };
  if (hasSeconds) options.second = '2-digit';
  return new Date(milliseconds).toLocaleTimeString('en', options);
}

// The clock of the history does not follow steps of the wall clock.
const ahead = () => state?.ahead_millis ?? 0;
const slotTime = (seconds, track) => time(seconds * 1000 + ahead(), track.step === 1);

const moment = (milliseconds) => {
  const isToday = new Date(milliseconds).toDateString() === new Date().toDateString();
  return isToday ? time(milliseconds, true) : new Date(milliseconds).toLocaleString('en', { dateStyle: 'medium', timeStyle: 'short', hourCycle: 'h23' });
};

function limitText({ limit, period_millis: period, burst, unit, algorithm = 'token_bucket' }) {
  const units = unit ? ` ${unit}` : '';
  if (period === null) return `${number(limit)} at once`;
  const names = { 1000: 'a second', 60000: 'a minute', 3600000: 'an hour', 86400000: 'a day' };
  const every = names[period] ?? `in ${exact(period)}`;
  const more = burst ? `, burst ${number(burst)}` : '';
  const method = algorithm === 'token_bucket' ? '' : `, ${algorithm.replace('_', ' ')}`;
  return `${number(limit)}${units} ${every}${more}${method}`;
}

// === Colours ===

const isDark = () => {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
};

function showTheme() {
  setText($('theme'), isDark() ? 'Light' : 'Dark');
  $('theme').setAttribute('aria-label', `Use ${isDark() ? 'light' : 'dark'} colours`);
}

$('theme').addEventListener('click', () => {
  const theme = isDark() ? 'light' : 'dark';
  document.documentElement.dataset.theme = theme;
  try { localStorage.setItem('tollgate-theme', theme); } catch { /* lasts until the page is left */ }
  showTheme();
});
try {
  const theme = localStorage.getItem('tollgate-theme');
  if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme;
} catch { /* the system decides */ }
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', showTheme);
showTheme();
start();
