// Elements of the page.

export const $ = (id) => document.getElementById(id);

export function element(name, attributes, text) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

export function svg(name, attributes) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

export function option(value, text) {
  return element('option', { value }, text);
}

export function group(...nodes) {
  const node = element('span', { class: 'group' });
  node.append(...nodes);
  return node;
}

export function meter(share) {
  const node = element('span', { class: 'meter', 'aria-hidden': 'true' });
  const drawing = svg('svg', { viewBox: '0 0 100 1', preserveAspectRatio: 'none' });
  drawing.append(svg('rect', { width: 100 * Math.min(1, Math.max(0, share)), height: 1 }));
  node.append(drawing);
  return node;
}

export function button(text, label, act) {
  const node = element('button', { type: 'button', class: 'small', 'aria-label': label }, text);
  node.addEventListener('click', act);
  return node;
}

// Keeps what is chosen, if it is still there.
export function fillOptions(select, options) {
  const values = (list) => [...list].map((it) => it.value).join();
  if (values(select.options) !== values(options)) select.replaceChildren(...options);
}

// Replaces the children that differ from the new ones.
export function replaceChanged(parent, children) {
  children.forEach((child, index) => {
    const old = parent.children[index];
    if (!old) parent.append(child);
    else if (!old.isEqualNode(child)) old.replaceWith(child);
  });
  while (parent.children.length > children.length) parent.lastElementChild.remove();
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function updateSelect(select, value) {
  if (!select.options.length) return;
  if (value && select.dataset.busy !== 'yes' && select.value !== value) select.value = value;
}
