import assert from 'node:assert/strict';
import test from 'node:test';

import { niceTop, stack, strokes } from '../../src/dashboard/assets/geometry.mjs';

test('areas lie on each other, and a line without a value is left out', () => {
  const series = [
    { id: 'a', values: [1, 2], shape: 'area' },
    { id: 'b', values: [9, 3, 4], shape: 'area' },
    { id: 'c', values: [null, null], shape: 'line' },
    { id: 'd', values: [5], shape: 'line' },
  ];
  assert.deepEqual(stack(series, 2), [
    { id: 'a', shape: 'area', low: [0, 0], high: [1, 2] },
    { id: 'b', shape: 'area', low: [1, 2], high: [4, 6] },
    { id: 'd', shape: 'line', high: [null, 5] },
  ]);
});

test('a line has a gap where a value is missing', () => {
  assert.equal(strokes([1, null, 2, 3], (value, slot) => `${slot} ${value}`), 'M0 1M2 2L3 3');
});

test('a scale ends at a round number that is not below its values', () => {
  assert.deepEqual([0, 0.3, 1, 3, 7, 11, 99].map(niceTop), [1, 0.4, 1, 4, 8, 20, 100]);
});
