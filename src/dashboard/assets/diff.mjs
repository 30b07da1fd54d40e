// The lines that differ between two texts.

// Returns the lines that differ, with three lines around them, and `…` for those left out.
export function excerpt(old, next) {
  const lines = diff(old.split('\n'), next.split('\n'));
  if (!lines.some(({ sign }) => sign !== ' ')) return [{ sign: ' ', text: 'no difference' }];
  const isShown = lines.map((_, index) => lines.slice(Math.max(0, index - 3), index + 4).some(({ sign }) => sign !== ' '));
  const rows = [];
  lines.forEach(({ sign, text }, index) => {
    if (isShown[index]) rows.push({ sign, text: `${sign} ${text}` });
    else if (index === 0 || isShown[index - 1]) rows.push({ sign: ' ', text: '…' });
  });
  return rows;
}

// The shortest list of removed and added lines: a longest common subsequence, between what both have at their ends.
export function diff(old, next) {
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
