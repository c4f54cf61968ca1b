// Menu of all pages, for narrow screens, where the bar has room for a few pages only.

import { useEffect, useRef } from "react";
import { logout } from "../api";
import { Link, PREFIX } from "../route";
import { Icon } from "./icons";

export function MenuDialog({ pages, current, theme, nextTheme, close }: {
  pages: [to: string, title: string, icon: string][];
  current: string;
  theme: string;
  nextTheme: () => void;
  close: () => void;
}) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog ref={dialog} className="menu" aria-label="Menu" onClose={close} onClick={(event) => event.target === dialog.current && close()}>
      <ul>
        {pages.map(([to, title, icon]) => (
          <li key={to}><Link to={to} aria-current={to === current ? "page" : undefined} onClick={close}><Icon name={icon} /> {title}</Link></li>
        ))}
      </ul>
      <div className="actions">
        <button type="button" onClick={nextTheme}>Theme: {theme}</button>
        <button type="button" onClick={() => void logout().then(() => location.assign(`${PREFIX}/dashboard`))}>Log out</button>
        <button type="button" className="primary" onClick={close}>Close</button>
      </div>
    </dialog>
  );
}
