"""Logins at a provider, and secrets."""

from __future__ import annotations

import asyncio
import sys

from tests.auth.oauth_lab import Guarded, Issuer
from tests.platforms.checks import check
from tests.platforms.home import ROOT, Home


@check("Logins and secrets", "`toolway login` (fake provider and browser), a call with the token, a refresh, `logout`")
def login(home: Home) -> str:
    browser = f'"{sys.executable}" "{ROOT / "tests/auth/browser.py"}" "{home.folder / "browser.txt"}" %s'
    home.environ["BROWSER"] = browser.replace("\\", "/")  # its words are split as by a POSIX shell

    async def main() -> str:
        async with Issuer() as issuer, Guarded(issuer) as guarded:

            async def toolway(*words: str, code: int = 0) -> str:
                return await asyncio.to_thread(home.toolway, *words, code=code)

            home.serve_these({"guarded": {"url": guarded.url}})
            assert "E-AUTH-LOGIN" in await toolway("call", "guarded.echo", "text=x", code=6)
            assert "logged in to guarded" in await toolway("login", "guarded")
            assert (await toolway("call", "guarded.echo", "text=ü", "-q")).strip() == "ü"
            issuer.expire()
            assert (await toolway("call", "guarded.echo", "text=ü", "-q")).strip() == "ü"
            assert issuer.made["refresh_token"] == 1
            await toolway("logout", "guarded")
            assert not list(home.folder.rglob("*.token"))
            return f"{issuer.made['authorization_code']} login, {issuer.made['refresh_token']} refresh"

    return asyncio.run(main())


@check("Logins and secrets", "`toolway secrets`: set, list, use in a server, remove (encrypted file)", quick=True)
def secrets(home: Home) -> str:
    home.toolway("secrets", "set", "my.TOKEN", typed="geheim ü\n")
    assert "my.TOKEN" in home.toolway("secrets", "ls")
    program = "import os; os.environ['TOKEN'] == 'ge' + 'heim ü' or exit(3)\n"
    program += "from toolway.testing.command_line import main; main()"
    home.serve_these(
        {"s": {"command": sys.executable, "args": ["-c", program], "env": {"TOKEN": "${keyring:my.TOKEN}"}}}
    )
    assert home.toolway("call", "s.echo", "text=x", "-q").strip() == "x"
    files = [each for each in home.folder.rglob("*") if each.is_file()]
    assert not [each for each in files if b"geheim" in each.read_bytes()]
    home.toolway("secrets", "rm", "my.TOKEN")
    return "in no file in the clear"
