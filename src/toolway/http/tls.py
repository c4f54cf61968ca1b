"""TLS contexts for client connections: a shared one, and one for each server with its own TLS settings.

A context is created in a thread, because it reads files. The shared one reads all of the system's CAs once. A
server's own context is created again if one of its files changed, so a renewed certificate works without a restart.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import threading
from typing import Final

from toolway._async import run_in_daemon_thread
from toolway._os import register_at_fork
from toolway.config.schema import Tls
from toolway.http.limits import HttpError

TLS_FILE_CODE: Final = "E-TLS-FILE"
MAX_PEM_BYTES: Final = 64 * 1024  # read of a file with a private key, to explain an error
MAX_OWN_CONTEXTS: Final = 256  # contexts kept of servers with their own TLS settings

_CaFiles = tuple[str | None, str | None]
_FileStamp = tuple[str, int, int]  # path, time of the last change, size

_shared_contexts: dict[_CaFiles, ssl.SSLContext] = {}
_own_contexts: dict[tuple[_CaFiles, Tls], tuple[list[_FileStamp], ssl.SSLContext]] = {}
_context_lock = threading.Lock()


async def get_tls_context(tls: Tls | None) -> ssl.SSLContext:
    """Return the TLS context for a server with these settings, or the shared one if there are none.

    Raises `HttpError` if a file in the settings is missing or invalid.
    """
    # OpenSSL reads these two variables once, when a context is created.
    files = (os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
    if tls is not None:
        return await run_in_daemon_thread(_get_own_context, files, tls)
    found = _shared_contexts.get(files)
    return found if found is not None else await run_in_daemon_thread(_get_shared_context, files)


def explain_alert(exc: BaseException | None) -> tuple[str, str] | None:
    """Return (problem, hint) if the server ended TLS because of a missing or rejected client certificate.

    Otherwise, return None.
    """
    reason = (getattr(exc, "reason", None) or "") if isinstance(exc, ssl.SSLError) else ""
    if "ALERT" not in reason:
        return None
    if "CERTIFICATE_REQUIRED" in reason:
        return "requires a client certificate", 'set it in the entry: "tls": {"certFile": …, "keyFile": …}'
    if "CERTIFICATE" in reason or "UNKNOWN_CA" in reason:
        why = reason.partition("ALERT_")[2].replace("_", " ").lower()
        return f"rejected the client certificate ({why})", "fix tls.certFile in the server's entry"
    return None


def _get_shared_context(files: _CaFiles) -> ssl.SSLContext:
    """Return the TLS context for these CA files; concurrent calls create it only once."""
    with _context_lock:
        if files not in _shared_contexts:
            _shared_contexts[files] = _new_context(None)
        return _shared_contexts[files]


def _get_own_context(files: _CaFiles, tls: Tls) -> ssl.SSLContext:
    stamps = [_stamp(name, path) for name, path in tls.files.items()]
    with _context_lock:
        kept = _own_contexts.pop((files, tls), None)
        context = kept[1] if kept is not None and kept[0] == stamps else _create_own_context(tls)
        _own_contexts[files, tls] = (stamps, context)  # the last one used is last
        if len(_own_contexts) > MAX_OWN_CONTEXTS:
            del _own_contexts[next(iter(_own_contexts))]
        return context


def _renew_lock() -> None:
    """Replace the lock in a forked child, because a thread of the parent may have been holding it."""
    global _context_lock
    _context_lock = threading.Lock()


register_at_fork(after_in_child=_renew_lock)


def _stamp(name: str, path: str) -> _FileStamp:
    """Return values that differ after a file has changed, such as its modification time.

    Raises `HttpError` if the file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            file.read(1)  # a folder can be opened, but not read
    except OSError as exc:
        why = os.strerror(exc.errno).lower() if exc.errno is not None else str(exc)
        raise HttpError(
            f"cannot read the file in tls.{name}: {path} ({why})",
            code=TLS_FILE_CODE,
            hint=f"fix tls.{name} in the server's entry, or make the file readable",
        ) from None
    return path, found.st_mtime_ns, found.st_size


def _create_own_context(tls: Tls) -> ssl.SSLContext:
    try:
        context = _new_context(tls.ca_file)
    except (ssl.SSLError, ValueError):
        raise HttpError(
            f"the file in tls.caFile has no valid CA certificate: {tls.ca_file}",
            code=TLS_FILE_CODE,
            hint="use a file with one or more certificates in PEM format: -----BEGIN CERTIFICATE-----",
        ) from None
    if tls.cert_file is None:
        return context
    try:
        # Without a password OpenSSL would ask on the terminal for an encrypted key's password.
        context.load_cert_chain(tls.cert_file, tls.key_file, password=tls.key_password or "")
    except (ssl.SSLError, ValueError) as exc:
        raise _client_certificate_error(tls, exc) from None
    return context


def _client_certificate_error(tls: Tls, exc: Exception) -> HttpError:
    assert tls.cert_file is not None
    key_file = tls.key_file or tls.cert_file
    if getattr(exc, "reason", None) == "KEY_VALUES_MISMATCH":
        problem, hint = f"the key in {key_file} does not belong to the certificate in {tls.cert_file}", "correct them"
    elif _is_encrypted(key_file):
        problem = f"the key in {key_file} is encrypted, and tls.keyPassword " + (
            "is wrong" if tls.key_password else "is missing"
        )
        hint = 'set it by reference: "keyPassword": "${keyring:NAME}"'
    else:
        problem = f"the files of tls.certFile and tls.keyFile are invalid: {tls.cert_file}, {key_file}"
        hint = "use a certificate and its private key in PEM format"
    return HttpError(problem, code=TLS_FILE_CODE, hint=hint)


def _is_encrypted(key_file: str) -> bool:
    """Return True if a PEM file has an encrypted private key."""
    with contextlib.suppress(OSError), open(key_file, "rb") as file:
        return b"ENCRYPTED" in file.read(MAX_PEM_BYTES)
    return False


def _new_context(ca_file: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca_file)
    context.set_alpn_protocols(["http/1.1"])
    return context
