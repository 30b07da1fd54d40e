import assert from 'node:assert/strict';
import test from 'node:test';

import {
  extend, fromApi, isPolicy, lastShown, latestSecond, rates, shownSlots, sums,
} from '../../src/dashboard/assets/history.mjs';

const none = { median: null, p99: null, queue_p99: null };

// Three seconds and one minute of a policy that allows 1, 2 and 3 requests, and denies none.
function history() {
  const series = (allowed) => [{ policy: 'api', tier: 'none', counts: [allowed, [], [], [], [], [], []] }];
  return fromApi({
    decisions: [{ policy: 'api', tier: 'none', totals: [6, 0, 0, 0, 0, 0, 0] }],
    tracks: [
      { step: 1, latest: 62, slots: 3, latency: [none, none, none], series: series([1, 2, 3]) },
      { step: 60, latest: 60, slots: 1, latency: [none], series: series([6]) },
    ],
  });
}

const all = () => true;

test('kinds without a decision are full of zeros', () => {
  const [seconds, minutes] = history().tracks;
  assert.deepEqual(sums(seconds, all).slice(0, 2), [[1, 2, 3], [0, 0, 0]]);
  // The minute is not over.
  assert.equal(shownSlots(minutes), 0);
  assert.equal(lastShown(seconds), 62);
});

test('a state adds the growth of its totals to its second and its minute', () => {
  const known = history();
  extend(known, {
    second: 64,
    decisions: [
      { policy: 'api', tier: 'none', totals: [10, 1, 0, 0, 0, 0, 0] },
      { policy: 'new', tier: 'gold', totals: [5, 0, 0, 0, 0, 0, 0] },
    ],
    latency: [{ ...none, median: 100 }, none],
  });
  const [seconds, minutes] = known.tracks;
  assert.equal(latestSecond(known), 64);
  // No event came for second 63.
  assert.deepEqual(sums(seconds, ({ policy }) => policy === 'api').slice(0, 2), [[1, 2, 3, 0, 4], [0, 0, 0, 0, 1]]);
  assert.deepEqual(sums(seconds, ({ policy }) => policy === 'new')[0], [0, 0, 0, 0, 5]);
  assert.deepEqual([...minutes.series.values()].map(({ counts }) => counts[0]), [[10], [5]]);
  assert.equal(seconds.latency.at(-1).median, 100);
});

test('totals that fall, as after a restart, count as nothing', () => {
  const known = history();
  extend(known, { second: 63, decisions: [{ policy: 'api', tier: 'none', totals: [2, 0, 0, 0, 0, 0, 0] }], latency: [none, none] });
  assert.deepEqual(sums(known.tracks[0], all)[0], [1, 2, 3, 0]);
});

test('a track keeps as many slots as it has room for', () => {
  const known = history();
  extend(known, { second: 62 + 1_000, decisions: known.decisions, latency: [none, none] });
  const [seconds, minutes] = known.tracks;
  assert.deepEqual([seconds.slots, seconds.latency.length, sums(seconds, all)[0].length], [300, 300, 300]);
  assert.deepEqual([minutes.latest, minutes.slots], [1_020, 17]);
});

test('rates are averages of at most five seconds, without candidates', () => {
  assert.equal(rates(history(), all)[0], 2);
  assert.deepEqual(['api', 'api.candidate'].map((policy) => isPolicy({ policy })), [true, false]);
});
