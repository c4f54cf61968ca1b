// What the keys do: `?` shows it.

import { useEffect, useRef } from "react";

const KEYS: [string, string][] = [
  ["Ctrl K or ⌘ K", "find a page, server or tool"],
  ["/", "filter this list"],
  ["j, k", "walk down and up a list"],
  ["Enter", "open what is chosen"],
  ["p", "hold the list of calls, and let it go"],
  ["r", "ask the gateway again now"],
  ["c", "copy the address of what you see"],
  ["Esc", "close"],
  ["?", "this"],
];

export function Help({ close }: { close: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog ref={dialog} aria-label="Keys" onClose={close}>
      <h2>Keys</h2>
      <dl className="facts">
        {KEYS.map(([key, does]) => (
          <div key={key} className="keyrow"><dt><kbd>{key}</kbd></dt><dd>{does}</dd></div>
        ))}
      </dl>
      <div className="actions"><button type="button" autoFocus onClick={() => dialog.current?.close()}>Close</button></div>
    </dialog>
  );
}
