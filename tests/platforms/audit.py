"""Audit log: a gateway that is killed while it writes, and what an auditor can check afterwards."""

from __future__ import annotations

from tests.platforms.checks import check
from tests.platforms.home import FAKE, Home, wait_until

KILLS = "5"


def kill_and_verify(home: Home, to: str) -> str:
    said = home.run_module("tests.platforms.programs.killed_gateways", str(home.folder), KILLS, to)
    home.environ["TOOLWAY_STATE"] = str(home.folder / "gateway" / "state")
    found = home.json("audit", "verify", "-c", str(home.folder / "gateway" / "mcp.json"))
    assert found["intact"], found
    return said


@check("Audit log", "kill a gateway under load, then `toolway audit verify` (SQLite)")
def sqlite_kills(home: Home) -> str:
    return kill_and_verify(home, "sqlite")


@check("Audit log", "kill a gateway under load, then `toolway audit verify` (JSON lines)")
def jsonl_kills(home: Home) -> str:
    return kill_and_verify(home, "jsonl")


@check("Audit log", "write, verify, export with a signature, check, prove; a changed byte is found", quick=True)
def audit(home: Home) -> str:
    home.serve_these({"fake": FAKE}, audit={"to": "jsonl"})
    gateway = home.start_gateway()
    home.toolway("call", "fake.counter", "nonce=1")
    (log,) = home.folder.rglob("audit.jsonl")
    wait_until(lambda: b'"call.outcome"' in log.read_bytes(), "the call is stored")  # until then it is in the journal
    gateway.process.kill()
    gateway.process.wait(60)
    assert home.json("audit", "verify")["intact"]
    records = home.json("audit", "ls")["records"]
    assert {"call.intent", "call.outcome"} <= {each["kind"] for each in records}
    (home.folder / "key.pem").write_text(home.outputs("audit", "key")[0])
    home.toolway("audit", "export", "--sign", "-o", "all.jsonl")
    assert "intact" in home.toolway("audit", "check", "all.jsonl", "--key", "key.pem")
    call = next(each["call"] for each in records if each["kind"] == "call.intent")
    home.toolway("audit", "prove", "all.jsonl", call, "-o", "proof.jsonl")
    assert "intact" in home.toolway("audit", "check", "proof.jsonl", "--key", "key.pem")
    log.write_bytes(log.read_bytes().replace(b'"kind":"call.intent"', b'"kind":"call.intenT"'))
    home.toolway("audit", "verify", code=9)
    home.errors.discard("audit verify")
    home.toolway("audit", "restart", "--reason", "a check changed it")
    return f"{len(records)} records"
