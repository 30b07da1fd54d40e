// Numbers, times and rules as text.

export function number(value) {
  if (value === 0) return '0';
  if (value > 0 && value < 0.005) return '< 0.01';
  const digits = value < 10 && !Number.isInteger(value) ? (value < 1 ? 2 : 1) : 0;
  return value.toLocaleString('en', { maximumFractionDigits: digits });
}

export const count = (value, noun) => `${number(value)} ${noun}${value === 1 ? '' : 's'}`;

export const percent = (share) => `${number(share * 100 < 10 ? share * 100 : Math.round(share * 100))} %`;

export const millis = (micros) => `${number(micros / 1000)} ms`;

// All of a duration: of a limit, nothing is rounded away.
function exact(milliseconds) {
  if (milliseconds === 0) return '0 s';
  if (milliseconds < 1000) return `${milliseconds} ms`;
  const parts = [];
  let rest = milliseconds;
  for (const [unit, length] of [['day', 86400000], ['h', 3600000], ['min', 60000]]) {
    const whole = Math.floor(rest / length);
    rest -= whole * length;
    if (whole) parts.push(unit === 'day' ? count(whole, unit) : `${whole} ${unit}`);
  }
  if (rest) parts.push(`${rest / 1000} s`);
  return parts.join(' ');
}

// A time that passes, in its two largest units, of at least a second.
export const duration = (milliseconds) => exact(Math.ceil(milliseconds / 1000) * 1000).split(' ').slice(0, 4).join(' ');

export function size(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  return bytes < 1e6 ? `${number(bytes / 1000)} KB` : `${number(bytes / 1e6)} MB`;
}

export function time(milliseconds, hasSeconds) {
  const options = { hour: '2-digit', minute: '2-digit', hourCycle: 'h23' };
  if (hasSeconds) options.second = '2-digit';
  return new Date(milliseconds).toLocaleTimeString('en', options);
}

export const moment = (milliseconds) => {
  const isToday = new Date(milliseconds).toDateString() === new Date().toDateString();
  return isToday ? time(milliseconds, true) : new Date(milliseconds).toLocaleString('en', { dateStyle: 'medium', timeStyle: 'short', hourCycle: 'h23' });
};

export function limitText({ limit, period_millis: period, burst, unit, algorithm = 'token_bucket' }) {
  const units = unit ? ` ${unit}` : '';
  if (period === null) return `${number(limit)} at once`;
  const names = { 1000: 'a second', 60000: 'a minute', 3600000: 'an hour', 86400000: 'a day' };
  const every = names[period] ?? `in ${exact(period)}`;
  const more = burst ? `, burst ${number(burst)}` : '';
  const method = algorithm === 'token_bucket' ? '' : `, ${algorithm.replace('_', ' ')}`;
  return `${number(limit)}${units} ${every}${more}${method}`;
}

// The callers that wait, and how long keys are paused at most.
export const waitText = ({ waiting_callers: callers, paused_millis: paused }) => [
  ...(callers ? [`${count(callers, 'caller')} ${callers === 1 ? 'waits' : 'wait'}`] : []),
  ...(paused ? [`paused for ${duration(paused)}`] : []),
];

export function consistencyText({ consistency, overshoot }) {
  if (consistency === 'strict') return '';
  return overshoot === null ? `, ${consistency}` : `, ${consistency} by ${number(overshoot)} %`;
}

// What decides about a key now.
export function placeText({ counted_by: place, lease, denied_millis: denied }) {
  const name = place.replace('_', ' ');
  if (lease) return `${name}, ${count(lease.units, 'unit')} leased here, ${number(lease.leased_elsewhere)} elsewhere`;
  return denied ? `${name}, for ${duration(denied)}` : name;
}

export function penaltyText(penalty) {
  if (!penalty) return 'none';
  const bans = penalty.bans ? `, ban ${number(penalty.bans)}` : '';
  if (penalty.banned_millis !== null) return `banned for ${duration(penalty.banned_millis)}${bans}`;
  const after = penalty.bans ? ` after ${number(penalty.bans)} ${penalty.bans > 1 ? 'bans' : 'ban'}` : '';
  return `${number(penalty.denials)} of the ${number(penalty.most_denials)} denials that lead to a ban${after}`;
}

export function denialText(denial) {
  if (!denial) return 'none';
  const times = denial.count > 1 ? `, ${number(denial.count)} in ${duration(denial.since_millis)}` : '';
  const effect = denial.is_shadow ? ', in shadow' : '';
  return `${duration(denial.ago_millis)} ago${times}${effect}`;
}

// A secret is not repeated where others read along.
export const nameOf = ({ key, form }) => form === 'secret' ? `the API key …${key.slice(-4)}` : key;
