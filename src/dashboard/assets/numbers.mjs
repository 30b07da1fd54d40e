// Figures, decisions over time, tiers and the store.

import { chart, fillTimes } from './chart.mjs';
import { $, element, option, setText } from './elements.mjs';
import { isPolicy, KINDS, pairOf, rates, seriesOf, shownSlots, sumOfLast, sums } from './history.mjs';
import { page } from './page.mjs';
import { fill } from './table.mjs';
import { count, millis, number, size } from './text.mjs';

export function renderFigures() {
  // Those by leases and by kept denials are shown for each policy.
  rates(page.history, isPolicy).slice(0, 5).forEach((rate, kind) => {
    const total = page.state.decisions.filter(isPolicy).reduce((sum, row) => sum + row.totals[kind], 0);
    setText($(`rate-${kind}`), `${number(rate)} /s`);
    setText($(`total-${kind}`), `${number(total)} since the start`);
  });
}

export function renderDecisions() {
  const select = $('chart-policy');
  const names = page.state.policies.flatMap(({ name, candidate }) => candidate ? [name, `${name}.candidate`] : [name]);
  const known = [...select.options].map(({ value }) => value);
  if (String(known) !== String(['', ...names])) {
    const chosen = select.value;
    select.replaceChildren(option('', 'all'), ...names.map((name) => option(name, name)));
    select.value = names.includes(chosen) ? chosen : '';
  }
  const track = page.history.tracks[Number($('chart-track').value)];
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
  const replaced = (page.versions?.versions ?? []).map(({ number, time: at }) => ({ at, text: `rules ${number}` }));
  return [...replaced, ...page.state.health.outages.map(({ since }) => ({ at: since, text: 'outage' }))];
}

export function renderTiers() {
  const [track] = page.history.tracks;
  const tiers = new Map();
  for (const { policy, tier } of page.state.decisions) {
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

export function renderStore() {
  const { servers, keys, key_bytes: bytes, held_slots: slots, leased_keys: leased, leased_units: units, health, latency: [latency] } = page.state;
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
  if (leased) facts.push(['Leased here', `${count(units, 'unit')} of ${count(leased, 'busy key')}`]);
  if (slots) facts.push(['Slots held', number(slots)]);
  if (page.state.failed_decisions) facts.push(['Errors', number(page.state.failed_decisions)]);
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
  const track = page.history.tracks[Number($('chart-track').value)];
  const values = (name) => track.latency.slice(0, shownSlots(track)).map((slot) => slot[name] === null ? null : slot[name] / 1000);
  const series = [
    { id: 'denied', name: 'p99', values: values('p99'), shape: 'line' },
    { id: 'allowed', name: 'median', values: values('median'), shape: 'line' },
    { id: 'shadow', name: 'queue p99', values: values('queue_p99'), shape: 'line' },
  ];
  chart($('latency-chart'), { label: 'Latency of Redis in milliseconds', track, series, height: 130, unit: ' ms' });
  fillTimes($('latency-table'), track, series, ' ms');
}
