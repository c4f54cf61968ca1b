// Fuzzy search: all words of the query must occur in a text, at least as letters in order.

/** Return a score: larger is better, 0 means no match. */
export function matchScore(query: string, text: string): number {
  let total = 1;
  for (const word of query.toLowerCase().split(/\s+/).filter(Boolean)) {
    const score = wordScore(word, text.toLowerCase());
    if (!score) return 0;
    total += score;
  }
  return total;
}

function wordScore(word: string, text: string): number {
  const start = text.indexOf(word);
  if (start >= 0) return 100 - Math.min(50, start) + (start === 0 || /[\W_]/.test(text[start - 1] ?? "") ? 50 : 0);
  let position = -1;
  let gaps = 0;
  for (const letter of word) {
    const next = text.indexOf(letter, position + 1);
    if (next < 0) return 0;
    gaps += position < 0 ? 0 : next - position - 1;
    position = next;
  }
  return gaps > 2 * word.length ? 0 : Math.max(1, 40 - gaps);
}

export function search<T>(rows: T[], query: string, text: (row: T) => string, limit = Number.POSITIVE_INFINITY): T[] {
  if (!query.trim()) return rows.slice(0, limit);
  return rows
    .map((row) => ({ row, score: matchScore(query, text(row)) }))
    .filter((each) => each.score > 0)
    .sort((a, b) => b.score - a.score)
    .slice(0, limit)
    .map((each) => each.row);
}
