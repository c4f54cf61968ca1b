"""MCPB bundles: zip files with a server and a `manifest.json` that defines how to start it.

    bundle = read_bundle(path)                            # its description and inputs; nothing is unpacked
    unpack_bundle(bundle, folder)                         # all of it, or nothing
    build_bundle_entry(bundle, folder, {"root": "/srv"})  # its entry for our configuration file

A bundle is untrusted: it cannot write outside its folder, its unpacked size is limited, and its manifest cannot
refer to secrets of other servers. Its entry must pass the admission rules: see `admission_policy`.
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

from toolway.config.admission.entry import BUNDLE_RUNNERS, AdmissionPolicy
from toolway.config.editing import jsonc
from toolway.config.server_json import InstallInput, short_server_name
from toolway.config.variables import escape_literal
from toolway.errors import ConfigError

MAX_UNPACKED_BYTES: Final = 2 * 1024**3  # unpacked size
MAX_FILES: Final = 100_000
MAX_MANIFEST_BYTES: Final = 1024**2
_MANIFEST_NAME: Final = "manifest.json"
_MANIFEST_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_BUNDLE_CODE: Final = "E-CONFIG-BUNDLE"


@dataclass(frozen=True, slots=True)
class Bundle:
    path: Path
    name: str
    version: str
    inputs: tuple[InstallInput, ...]
    sha256: str
    manifest: Mapping[str, Any] = field(repr=False)

    @property
    def folder_name(self) -> str:
        """Return the name of the folder for the unpacked files of a bundle.

        A bundle with other content has another folder.
        """
        version = re.sub(r"[^A-Za-z0-9.+-]+", "-", self.version)[:40]
        return "-".join(filter(None, (self.name, version, self.sha256[:16])))


def read_bundle(path: Path, name: str = "") -> Bundle:
    """Return the description of an MCPB bundle from its manifest. Nothing is unpacked.

    Its server is called `name`, or else as the manifest says. Raises `ConfigError` if the zip file or its manifest is
    invalid, or if it is unsafe to unpack.
    """
    try:
        with path.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        with zipfile.ZipFile(path) as archive:
            _check_archive(archive, path)
            with archive.open(_MANIFEST_NAME) as inner:
                text = inner.read(MAX_MANIFEST_BYTES).decode()
    except FileNotFoundError:
        hint = "fix the path; to add a server without a bundle, use its command: toolway add NAME -- COMMAND"
        raise ConfigError(f"no such file: {path}", file=str(path), hint=hint, code=_BUNDLE_CODE) from None
    except (OSError, KeyError, UnicodeDecodeError, zipfile.BadZipFile, zipfile.LargeZipFile) as exc:
        reason = f"it has no {_MANIFEST_NAME}" if isinstance(exc, KeyError) else str(exc)
        raise _bundle_error(path, reason) from None
    manifest = jsonc.parse_jsonc(text, f"{path}:{_MANIFEST_NAME}").value
    server = manifest.get("server") if isinstance(manifest, Mapping) else None
    if not isinstance(server, Mapping) or not isinstance(manifest.get("name"), str):
        raise _bundle_error(path, f"its {_MANIFEST_NAME} has no name or no server")
    name = name or short_server_name(manifest["name"])
    return Bundle(path, name, str(manifest.get("version", "")), tuple(_parse_inputs(manifest, name)), digest, manifest)


def unpack_bundle(bundle: Bundle, folder: Path) -> None:
    """Unpack a bundle into `folder`, completely or not at all. An existing folder is replaced.

    Raises `ConfigError` if the bundle is damaged, unsafe or changed since it was read, or if the folder cannot be
    written.
    """
    temporary = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        with bundle.path.open("rb") as opened:
            if hashlib.file_digest(opened, "sha256").hexdigest() != bundle.sha256:
                raise _bundle_error(bundle.path, "it has changed since it was read")
            with zipfile.ZipFile(opened) as archive:
                _check_archive(archive, bundle.path)
                for info in archive.infolist():
                    archive.extract(info, temporary)
                    _make_executable(info, temporary)
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
    except (OSError, zipfile.BadZipFile, RuntimeError) as exc:
        raise _bundle_error(bundle.path, f"it cannot be unpacked: {exc}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def build_bundle_entry(
    bundle: Bundle, folder: Path, answers: Mapping[str, Any] | None = None, platform: str = "linux"
) -> dict[str, Any]:
    """Return the config file entry that starts the server unpacked in `folder`.

    `answers` are the user's values for the inputs of the bundle. Raises `ConfigError` if a required input that is no
    secret has neither an answer nor a default.
    """
    values = {**{ask.name: ask.default for ask in bundle.inputs if ask.default is not None}, **(answers or {})}
    missing = [ask.name for ask in bundle.inputs if ask.required and not ask.secret and ask.name not in values]
    if missing:
        raise ConfigError(f"{bundle.name} needs {', '.join(missing)}", detail=str(bundle.path), code=_BUNDLE_CODE)
    variables = _ManifestVariables(bundle, folder, values)
    config = _resolve_mcp_config(bundle, platform)
    start: dict[str, Any] = {
        "command": variables.expand_text(str(config["command"])),
        "args": variables.expand_args(config.get("args")),
    }
    env = {key: variables.expand_text(str(text)) for key, text in (config.get("env") or {}).items()}
    # Optional inputs without a value are left out.
    env = {key: text for key, text in env.items() if text}
    return {**start, **({"env": env} if env else {}), "cwd": str(folder)}


def admission_policy(
    bundle: Bundle, folder: Path, answers: Mapping[str, Any], platform: str = "linux"
) -> AdmissionPolicy:
    """Return the policy for the server entry of an MCPB bundle: which commands, variables and folders it may use.

    Allowed are programs and scripts inside the bundle, and packages that a package runner such as npx starts.
    `answers` are the user's values for the inputs of the bundle.
    """
    given = {ask.name for ask in bundle.inputs if ask.secret or ask.name in answers}
    written = _resolve_mcp_config(bundle, platform)["env"]
    texts = [text for value in answers.values() for text in (value if isinstance(value, list) else [value])]
    return AdmissionPolicy(
        commands=BUNDLE_RUNNERS,
        variables=frozenset(written),
        named_by_user=frozenset(
            key for key, text in written.items() if text in {f"${{user_config.{name}}}" for name in given}
        ),
        volumes=tuple(text.rstrip("/") for text in map(str, texts) if text.startswith("/") and text.strip("/")),
        secrets=frozenset(ask.secret_name for ask in bundle.inputs if ask.secret),
        folder=str(folder),
    )


class _ManifestVariables:
    """Replaces variables in a bundle's manifest: `${__dirname}`, `${user_config.x}`, `${HOME}`, `${/}`."""

    def __init__(self, bundle: Bundle, folder: Path, values: Mapping[str, Any]) -> None:
        self._secrets = {ask.name: ask.secret_name for ask in bundle.inputs if ask.secret}
        self._folder, self._values = folder, values

    def expand_args(self, args: Any) -> list[str]:
        words: list[str] = []
        for arg in args or []:
            whole = _MANIFEST_VARIABLE.fullmatch(str(arg))
            several = self._values.get(whole[1].removeprefix("user_config.")) if whole else None
            words += (
                [escape_literal(str(each)) for each in several]
                if isinstance(several, list)
                else [self.expand_text(str(arg))]
            )
        return words

    def expand_text(self, text: str) -> str:
        return _MANIFEST_VARIABLE.sub(self._replace_variable, text)

    def _replace_variable(self, found: re.Match[str]) -> str:
        name = found[1]
        if name.startswith("user_config."):
            key = name.removeprefix("user_config.")
            if key in self._secrets:
                return f"${{keyring:{self._secrets[key]}}}"
            answer = self._values.get(key, "")
            return str(answer).lower() if isinstance(answer, bool) else escape_literal(str(answer))
        homes = {"DESKTOP": "Desktop", "DOCUMENTS": "Documents", "DOWNLOADS": "Downloads"}
        known = {"__dirname": str(self._folder), "/": "/", "pathSeparator": "/", "HOME": "${HOME}"}
        known |= {key: f"${{HOME}}/{folder}" for key, folder in homes.items()}
        return known.get(name, escape_literal(found[0]))


def _resolve_mcp_config(bundle: Bundle, platform: str) -> dict[str, Any]:
    """Return `mcp_config` of a bundle's server, with the overrides for `platform` applied.

    If it has no command, the type of the server (uv, python, node) and its `entry_point` determine the command. Raises
    `ConfigError` if a part of it has another JSON type.
    """
    server = bundle.manifest["server"]
    config = dict(_require_object(bundle, server.get("mcp_config")))
    overrides = _require_object(bundle, _require_object(bundle, config.pop("platform_overrides", None)).get(platform))
    config |= {key: item for key, item in overrides.items() if key != "env"}
    config["env"] = {**_require_object(bundle, config.get("env")), **_require_object(bundle, overrides.get("env"))}
    if not isinstance(config.get("args") or [], list):
        raise _bundle_error(bundle.path, "args in its manifest is not a list")
    if "command" not in config:
        entry_point = f"${{__dirname}}/{server.get('entry_point', '')}"
        commands: dict[str, tuple[str, list[str]]] = {
            "uv": ("uv", ["run", "--directory", "${__dirname}", str(server.get("entry_point", ""))]),
            "python": ("python3", [entry_point]),
            "node": ("node", [entry_point]),
        }
        config["command"], config["args"] = commands.get(str(server.get("type")), (entry_point, []))
    return config


def _require_object(bundle: Bundle, value: Any) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _bundle_error(bundle.path, "mcp_config in its manifest has a part that is not an object")
    return value


def _parse_inputs(manifest: Mapping[str, Any], name: str) -> list[InstallInput]:
    described = manifest.get("user_config")
    found = described.items() if isinstance(described, Mapping) else ()
    return [
        InstallInput(
            *(key, "user_config", str(each.get("description") or each.get("title") or "")),
            required=bool(each.get("required")),
            secret=bool(each.get("sensitive")),
            default=each.get("default"),
            allows_many=bool(each.get("multiple")),
            secret_name=f"{name}.{key}" if each.get("sensitive") else "",
        )
        for key, each in found
        if isinstance(each, Mapping)
    ]


def _check_archive(archive: zipfile.ZipFile, path: Path) -> None:
    files = archive.infolist()
    if len(files) > MAX_FILES or sum(info.file_size for info in files) > MAX_UNPACKED_BYTES:
        raise _bundle_error(path, f"it unpacks to more than {MAX_UNPACKED_BYTES} bytes or {MAX_FILES} files")
    for info in files:
        name = PurePosixPath(info.filename.replace("\\", "/"))
        link = stat.S_ISLNK(info.external_attr >> 16)
        if name.is_absolute() or ".." in name.parts or ":" in (name.parts or ("",))[0] or link:
            raise _bundle_error(path, "it contains a file outside its folder")


def _make_executable(info: zipfile.ZipInfo, folder: Path) -> None:
    if (info.external_attr >> 16) & stat.S_IXUSR and not info.is_dir():
        (folder / info.filename).chmod(0o755)


def _bundle_error(path: Path, detail: str) -> ConfigError:
    hint = "get the bundle again, or add the server by its command"
    return ConfigError(f"{path} is not a usable bundle", file=str(path), detail=detail, hint=hint, code=_BUNDLE_CODE)
