"""MCPB bundles: a zip with a server and a `manifest.json` that says how to start it → an entry.

    bundle = read(path)                     # what it is and what it asks for; nothing is unpacked
    unpack(bundle, folder)                  # all of it, or nothing
    entry(bundle, folder, {"root": "/srv"}) # as our file has it

A bundle comes from strangers: nothing in it may be written outside of its folder, what it unpacks to is bounded, and
its manifest cannot refer to secrets of others.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import stat
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final

from toolway.config import jsonc
from toolway.config.asks import Ask, short_name
from toolway.config.syntaxes import literal
from toolway.errors import ConfigError

MAX_BYTES: Final = 2 * 1024**3  # unpacked
MAX_FILES: Final = 100_000
MAX_MANIFEST: Final = 1024**2
_MANIFEST: Final = "manifest.json"
_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_CODE: Final = "E-CONFIG-BUNDLE"


@dataclass(frozen=True, slots=True)
class Bundle:
    path: Path
    name: str
    version: str
    asks: tuple[Ask, ...]
    sha256: str
    manifest: Mapping[str, Any] = field(repr=False)


def read(path: Path) -> Bundle:
    """Raises `ConfigError` where it is no bundle, or one that must not be unpacked."""
    try:
        with path.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        with zipfile.ZipFile(path) as archive:
            _check(archive, path)
            with archive.open(_MANIFEST) as inner:
                text = inner.read(MAX_MANIFEST).decode()
    except (OSError, KeyError, UnicodeDecodeError, zipfile.BadZipFile, zipfile.LargeZipFile) as exc:
        reason = f"it has no {_MANIFEST}" if isinstance(exc, KeyError) else str(exc)
        raise _wrong(path, reason) from None
    manifest = jsonc.parse(text, f"{path}:{_MANIFEST}").value
    server = manifest.get("server") if isinstance(manifest, Mapping) else None
    if not isinstance(server, Mapping) or not isinstance(manifest.get("name"), str):
        raise _wrong(path, f"its {_MANIFEST} has no name or no server")
    name = short_name(manifest["name"])
    return Bundle(path, name, str(manifest.get("version", "")), tuple(_asks(manifest, name)), digest, manifest)


def unpack(bundle: Bundle, folder: Path) -> None:
    """All of it into a new folder, or nothing. Raises `ConfigError`."""
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        with zipfile.ZipFile(bundle.path) as archive:
            _check(archive, bundle.path)
            for info in archive.infolist():
                archive.extract(info, part)
                _make_executable(info, part)
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
    except (OSError, zipfile.BadZipFile, RuntimeError) as exc:
        raise _wrong(bundle.path, f"it cannot be unpacked: {exc}") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def entry(
    bundle: Bundle, folder: Path, answers: Mapping[str, Any] | None = None, platform: str = "linux"
) -> dict[str, Any]:
    """How the unpacked server is started, as an entry of our file. Raises `ConfigError` where an answer is missing."""
    given = {**{ask.name: ask.default for ask in bundle.asks if ask.default is not None}, **(answers or {})}
    missing = [ask.name for ask in bundle.asks if ask.required and not ask.secret and ask.name not in given]
    if missing:
        raise ConfigError(f"{bundle.name} needs to know {', '.join(missing)}", evidence=str(bundle.path), code=_CODE)
    filling = _Filling(bundle, folder, given)
    config = _config(bundle.manifest["server"], platform)
    made: dict[str, Any] = {"command": filling.text(str(config["command"])), "args": filling.words(config.get("args"))}
    env = {key: filling.text(str(text)) for key, text in (config.get("env") or {}).items()}
    # What was not answered and need not be is not there at all.
    env = {key: text for key, text in env.items() if text}
    return {**made, **({"env": env} if env else {}), "cwd": str(folder)}


class _Filling:
    """`${__dirname}`, `${user_config.x}`, `${HOME}`, `${/}`: the variables of a manifest."""

    def __init__(self, bundle: Bundle, folder: Path, given: Mapping[str, Any]) -> None:
        self._secrets = {ask.name: ask.secret_name for ask in bundle.asks if ask.secret}
        self._folder, self._given = folder, given

    def words(self, args: Any) -> list[str]:
        words: list[str] = []
        for arg in args or []:
            whole = _VARIABLE.fullmatch(str(arg))
            several = self._given.get(whole[1].removeprefix("user_config.")) if whole else None
            words += [literal(str(each)) for each in several] if isinstance(several, list) else [self.text(str(arg))]
        return words

    def text(self, text: str) -> str:
        return _VARIABLE.sub(self._put, text)

    def _put(self, found: re.Match[str]) -> str:
        name = found[1]
        if name.startswith("user_config."):
            key = name.removeprefix("user_config.")
            if key in self._secrets:
                return f"${{keyring:{self._secrets[key]}}}"
            answer = self._given.get(key, "")
            return str(answer).lower() if isinstance(answer, bool) else literal(str(answer))
        homes = {"DESKTOP": "Desktop", "DOCUMENTS": "Documents", "DOWNLOADS": "Downloads"}
        known = {"__dirname": str(self._folder), "/": "/", "pathSeparator": "/", "HOME": "${HOME}"}
        known |= {key: f"${{HOME}}/{folder}" for key, folder in homes.items()}
        return known.get(name, literal(found[0]))


def _config(server: Mapping[str, Any], platform: str) -> dict[str, Any]:
    """`mcp_config` with what this system has otherwise. A `uv` server may do without any."""
    config = dict(server.get("mcp_config") or {})
    other = (config.pop("platform_overrides", None) or {}).get(platform) or {}
    config |= {key: item for key, item in other.items() if key != "env"}
    config["env"] = {**(config.get("env") or {}), **(other.get("env") or {})}
    if "command" not in config:
        point = f"${{__dirname}}/{server.get('entry_point', '')}"
        starts: dict[str, tuple[str, list[str]]] = {
            "uv": ("uv", ["run", "--directory", "${__dirname}", str(server.get("entry_point", ""))]),
            "python": ("python3", [point]),
            "node": ("node", [point]),
        }
        config["command"], config["args"] = starts.get(str(server.get("type")), (point, []))
    return config


def _asks(manifest: Mapping[str, Any], name: str) -> list[Ask]:
    described = manifest.get("user_config")
    found = described.items() if isinstance(described, Mapping) else ()
    return [
        Ask(
            *(key, "user_config", str(each.get("description") or each.get("title") or "")),
            required=bool(each.get("required")),
            secret=bool(each.get("sensitive")),
            default=each.get("default"),
            many=bool(each.get("multiple")),
            secret_name=f"{name}.{key}" if each.get("sensitive") else "",
        )
        for key, each in found
        if isinstance(each, Mapping)
    ]


def _check(archive: zipfile.ZipFile, path: Path) -> None:
    files = archive.infolist()
    if len(files) > MAX_FILES or sum(info.file_size for info in files) > MAX_BYTES:
        raise _wrong(path, f"it unpacks to more than {MAX_BYTES} bytes or {MAX_FILES} files")
    for info in files:
        name = PurePosixPath(info.filename.replace("\\", "/"))
        link = stat.S_ISLNK(info.external_attr >> 16)
        if name.is_absolute() or ".." in name.parts or ":" in (name.parts or ("",))[0] or link:
            raise _wrong(path, "a file of it leads out of its folder")


def _make_executable(info: zipfile.ZipInfo, folder: Path) -> None:
    if (info.external_attr >> 16) & stat.S_IXUSR and not info.is_dir():
        (folder / info.filename).chmod(0o755)


def _wrong(path: Path, evidence: str) -> ConfigError:
    fix = "get the bundle again, or add the server by its command"
    return ConfigError(f"{path} is no bundle that can be used", file=str(path), evidence=evidence, fix=fix, code=_CODE)
