// How well a text fits what somebody typed: all words must occur, in order of letters at least.

/** Larger is better; 0 does not fit. */
export function fit(wanted: string, text: string): number {
  let total = 1;
  for (const word of wanted.toLowerCase().split(/\s+/).filter(Boolean)) {
    const score = one(word, text.toLowerCase());
    if (!score) return 0;
    total += score;
  }
  return total;
}

function one(word: string, text: string): number {
  const at = text.indexOf(word);
  if (at >= 0) return 100 - Math.min(50, at) + (at === 0 || /[\W_]/.test(text[at - 1] ?? "") ? 50 : 0);
  let place = -1;
  let gaps = 0;
  for (const letter of word) {
    const next = text.indexOf(letter, place + 1);
    if (next < 0) return 0;
    gaps += place < 0 ? 0 : next - place - 1;
    place = next;
  }
  return gaps > 2 * word.length ? 0 : Math.max(1, 40 - gaps);
}

export function best<T>(rows: T[], wanted: string, text: (row: T) => string, most = Number.POSITIVE_INFINITY): T[] {
  if (!wanted.trim()) return rows.slice(0, most);
  return rows
    .map((row) => ({ row, score: fit(wanted, text(row)) }))
    .filter((each) => each.score > 0)
    .sort((a, b) => b.score - a.score)
    .slice(0, most)
    .map((each) => each.row);
}
