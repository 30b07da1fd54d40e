import assert from 'node:assert/strict';
import test from 'node:test';

import {
  consistencyText, count, denialText, duration, limitText, millis, nameOf, number, penaltyText, percent, placeText, size, waitText,
} from '../../src/dashboard/assets/text.mjs';

test('numbers keep the digits that matter', () => {
  const texts = [0, 0.001, 0.25, 1.26, 9.5, 12.6, 1234567].map(number);
  assert.deepEqual(texts, ['0', '< 0.01', '0.25', '1.3', '9.5', '13', '1,234,567']);
  assert.equal(percent(0.005), '0.5 %');
  assert.equal(percent(0.456), '46 %');
  assert.equal(millis(1500), '1.5 ms');
  assert.deepEqual([1, 2].map((value) => count(value, 'key')), ['1 key', '2 keys']);
});

test('sizes have the largest unit that fits', () => {
  assert.deepEqual([999, 1000, 2.5e6].map(size), ['999 B', '1 KB', '2.5 MB']);
});

test('a time that passes has its two largest units', () => {
  const texts = [1, 1000, 61_000, 3_661_000, 90_061_000].map(duration);
  assert.deepEqual(texts, ['1 s', '1 s', '1 min 1 s', '1 h 1 min', '1 day 1 h']);
});

test('a limit says all of its period, its burst and its algorithm', () => {
  const limit = { limit: 100, period_millis: 60_000, burst: null, unit: null };
  assert.equal(limitText(limit), '100 a minute');
  assert.equal(limitText({ ...limit, period_millis: 90_500, burst: 20 }), '100 in 1 min 30.5 s, burst 20');
  assert.equal(limitText({ ...limit, unit: 'tokens', algorithm: 'fixed_window' }), '100 tokens a minute, fixed window');
  assert.equal(limitText({ ...limit, period_millis: null }), '100 at once');
});

test('a consistency is shown unless it is strict', () => {
  assert.equal(consistencyText({ consistency: 'strict', overshoot: null }), '');
  assert.equal(consistencyText({ consistency: 'leased', overshoot: null }), ', leased');
  assert.equal(consistencyText({ consistency: 'delayed', overshoot: 2.5 }), ', delayed by 2.5 %');
});

test('what decides about a key has its units, or its time', () => {
  const place = { counted_by: 'shared', lease: null, denied_millis: null };
  assert.equal(placeText(place), 'shared');
  assert.equal(placeText({ ...place, counted_by: 'denial_cache', denied_millis: 1200 }), 'denial cache, for 2 s');
  const lease = { units: 1, leased_elsewhere: 31, age_millis: 85 };
  assert.equal(placeText({ ...place, counted_by: 'lease', lease }), 'lease, 1 unit leased here, 31 elsewhere');
});

test('a penalty says what leads to a ban, or how long it lasts', () => {
  const penalty = { denials: 2, most_denials: 5, bans: 0, banned_millis: null };
  assert.equal(penaltyText(null), 'none');
  assert.equal(penaltyText(penalty), '2 of the 5 denials that lead to a ban');
  assert.equal(penaltyText({ ...penalty, bans: 1 }), '2 of the 5 denials that lead to a ban after 1 ban');
  assert.equal(penaltyText({ ...penalty, bans: 3, banned_millis: 60_000 }), 'banned for 1 min, ban 3');
});

test('a denial says how long ago it was, and that it was in shadow', () => {
  const denial = { count: 1, ago_millis: 2_000, since_millis: 2_000, is_shadow: false };
  assert.equal(denialText(null), 'none');
  assert.equal(denialText(denial), '2 s ago');
  assert.equal(denialText({ ...denial, count: 3, since_millis: 9_000, is_shadow: true }), '2 s ago, 3 in 9 s, in shadow');
});

test('a secret is not repeated', () => {
  assert.equal(nameOf({ key: 'abcdefgh', form: 'secret' }), 'the API key …efgh');
  assert.equal(nameOf({ key: 'abcdefgh', form: 'counted' }), 'abcdefgh');
});

test('who waits and what is paused is shown only while it is so', () => {
  assert.deepEqual(waitText({ waiting_callers: 0, paused_millis: null }), []);
  assert.deepEqual(waitText({ waiting_callers: 1, paused_millis: null }), ['1 caller waits']);
  assert.deepEqual(waitText({ waiting_callers: 3, paused_millis: 41_200 }), ['3 callers wait', 'paused for 42 s']);
});
