// Shapes of charts.

// Puts the areas on top of each other, and leaves out lines without a value. Values end at the last slot.
export function stack(series, slots) {
  const bases = new Array(slots).fill(0);
  const shapes = [];
  for (const { id, values, shape } of series) {
    const aligned = Array.from({ length: slots }, (_, slot) => values[values.length - slots + slot] ?? null);
    if (shape === 'area') {
      const low = [...bases];
      aligned.forEach((value, slot) => { bases[slot] += value ?? 0; });
      shapes.push({ id, shape, low, high: [...bases] });
    } else if (aligned.some((value) => value)) {
      shapes.push({ id, shape, high: aligned });
    }
  }
  return shapes;
}

// Returns the path of a line, with a gap where a value is missing.
export function strokes(values, point) {
  let path = '';
  let isDrawing = false;
  values.forEach((value, slot) => {
    if (value !== null) path += `${isDrawing ? 'L' : 'M'}${point(value, slot)}`;
    isDrawing = value !== null;
  });
  return path;
}

// Returns the number at the top of a scale that has room for the value.
export function niceTop(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 6, 8, 10].find((step) => step * power >= value) * power;
}
