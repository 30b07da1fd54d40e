// Charts over time.

import { element, replaceChanged, svg } from './elements.mjs';
import { niceTop, stack, strokes } from './geometry.mjs';
import { lastShown, shownSlots, sumOfLast } from './history.mjs';
import { ahead, slotTime, tell } from './page.mjs';
import { fill } from './table.mjs';
import { number, time } from './text.mjs';

// Draws lines over stacked areas, with a cursor that shows the numbers of one time.
export function chart(target, { label, track, series, height, unit, annotations = [] }) {
  const width = Math.max(280, Math.round(target.clientWidth || 600));
  const slots = track.capacity;
  const stacked = stack(series, slots);
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
      tell('numbers');
    });
    drawing.addEventListener('pointerleave', () => { target.cursor = undefined; tell('numbers'); });
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

// The numbers of a chart, of twelve times.
export function fillTimes(table, track, series, unit) {
  if (!table.closest('details').open) return;
  const rows = 12;
  const length = series[0].values.length;
  const bin = Math.max(1, Math.floor(track.capacity / rows));
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
