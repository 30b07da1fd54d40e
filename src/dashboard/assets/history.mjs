// Decisions by second and by minute, as the API sends them and as they go on.

export const KINDS = [
  { id: 'allowed', name: 'allowed' },
  { id: 'denied', name: 'denied' },
  { id: 'shadow', name: 'would deny' },
  { id: 'unavailable', name: 'unavailable' },
  { id: 'fallback', name: 'by fallback' },
  { id: 'lease', name: 'by leases' },
  { id: 'denial_cache', name: 'by kept denials' },
];
const CAPACITY = [300, 360]; // slots of a second, and of a minute
const RECENT = 5; // seconds of which rates are the average

// Returns the history that the API sends, with all kinds of each series.
export function fromApi({ decisions, tracks }) {
  return {
    decisions,
    tracks: tracks.map(({ step, latest, slots, latency, series: list }, index) => {
      const series = new Map();
      for (const { policy, tier, counts } of list) {
        const full = KINDS.map((_, kind) => counts[kind].length ? counts[kind] : new Array(slots).fill(0));
        series.set(pairOf(policy, tier), { policy, tier, counts: full });
      }
      // The latest second is over, the latest minute is not.
      return { step, latest, slots, latency, series, open: step === 1 ? 0 : 1, capacity: CAPACITY[index] };
    }),
  };
}

export const pairOf = (policy, tier) => `${policy}\n${tier}`;

export const latestSecond = (history) => history.tracks[0].latest;

export const shownSlots = (track) => Math.max(0, track.slots - track.open);

export const lastShown = (track) => track.latest - track.open * track.step;

// Adds the growth of the totals since the state before.
export function extend(history, next) {
  const growths = growth(history.decisions, next.decisions);
  history.tracks.forEach((track, index) => {
    const latest = Math.floor(next.second / track.step) * track.step;
    while (track.latest < latest) advance(track);
    for (const { policy, tier, counts } of growths) {
      const series = seriesOf(track, policy, tier);
      counts.forEach((count, kind) => { series.counts[kind][track.slots - 1] += count; });
    }
    track.latency[track.slots - 1] = next.latency[index];
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

export function seriesOf(track, policy, tier) {
  const pair = pairOf(policy, tier);
  if (!track.series.has(pair)) {
    track.series.set(pair, { policy, tier, counts: KINDS.map(() => new Array(track.slots).fill(0)) });
  }
  return track.series.get(pair);
}

function advance(track) {
  track.latest += track.step;
  const lists = [...track.series.values()].flatMap((series) => series.counts);
  for (const list of lists) list.push(0);
  track.latency.push({ median: null, p99: null, queue_p99: null });
  if (track.slots < track.capacity) track.slots += 1;
  else for (const list of [...lists, track.latency]) list.shift();
}

// Sums of the series that match, by kind, in the slots that are over.
export function sums(track, matches) {
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
export const isPolicy = (series) => !series.policy.endsWith('.candidate');

export const sumOfLast = (list, count) => list.slice(-count).reduce((sum, value) => sum + value, 0);

export const rates = (history, matches) => {
  const [track] = history.tracks;
  const seconds = Math.max(1, Math.min(RECENT, shownSlots(track)));
  return sums(track, matches).map((list) => sumOfLast(list, seconds) / seconds);
};
