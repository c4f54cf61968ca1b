// Dialog with all keyboard shortcuts, opened by `?`.

import { useEffect, useRef } from "react";

const SHORTCUTS: [string, string][] = [
  ["Ctrl K or ⌘ K", "search for a page, server or tool"],
  ["/", "filter the table"],
  ["j, k", "move down and up in a table"],
  ["Enter", "open the selected row"],
  ["p", "pause and resume the table of calls"],
  ["r", "refresh"],
  ["c", "copy the URL of the view"],
  ["Esc", "close a dialog or drawer"],
  ["?", "show this list"],
];

export function ShortcutsDialog({ close }: { close: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog ref={dialog} aria-label="Keyboard shortcuts" onClose={close}>
      <h2>Keyboard shortcuts</h2>
      <dl className="facts">
        {SHORTCUTS.map(([key, action]) => (
          <div key={key} className="keyrow"><dt><kbd>{key}</kbd></dt><dd>{action}</dd></div>
        ))}
      </dl>
      <div className="actions"><button type="button" autoFocus onClick={() => dialog.current?.close()}>Close</button></div>
    </dialog>
  );
}
