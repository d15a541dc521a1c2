// Texts, numbers and colors for a person.

const RIGHT_TO_LEFT = /[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u;

/** Whether a text is read from right to left: whether its first letter is. */
export function isRightToLeft(text) {
  return RIGHT_TO_LEFT.test(text.match(/\p{L}/u)?.[0]);
}

const BLANKS = { "\n": "↵", "\t": "⇥" };

/** A token whose blanks at either end are drawn: a space as ␣, a line break as ↵, a tab as ⇥. */
export function visibleBlanks(token) {
  return token.replace(/^\s+|\s+$/gu, (blanks) => Array.from(blanks, (blank) => BLANKS[blank] ?? "␣").join(""));
}

/** A probability or another number for a person. */
export function number(value, places = 3) {
  if (value === null || value === undefined) return "none";
  const size = Math.abs(value);
  return size !== 0 && (size < 10 ** -places || size >= 1e6) ? value.toExponential(2) : value.toFixed(places);
}

/** A number of a list of bars, for which an exponent would be too long. */
export function share(value) {
  return value > 0 && value < 0.001 ? "< 0.001" : number(value);
}

/** The hue of a label in degrees, far from those of its neighbors in the list of all labels; red is for errors. */
export function hue(label, labels = []) {
  let place = labels.indexOf(label);
  if (place < 0) place = Array.from(String(label)).reduce((sum, point) => (sum * 31 + point.codePointAt(0)) % 997, 7);
  return Math.round(40 + (215 + place * 137.508) % 300);
}

/** "1 span", "3 spans". */
export function counted(many, noun) {
  return `${many.toLocaleString("en")} ${noun}${many === 1 ? "" : "s"}`;
}
