// Light and dark colours.

import { $, setText } from './elements.mjs';

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
