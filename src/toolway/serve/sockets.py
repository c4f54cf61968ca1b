"""A gateway process's address, TLS certificate and file limit, checked before servers start."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

from toolway._os import allow_rebinding, raise_open_files
from toolway.errors import ConfigError


def raise_file_limit() -> None:
    """Raise the process's limit of open files to the hard limit, for more connections."""
    raise_open_files()


def tls_context(certificate: Path, key: Path | None) -> ssl.SSLContext:
    """Return the TLS context of the gateway with this certificate and private key.

    Raises `ConfigError` if the files are not usable.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as exc:
        raise ConfigError(f"unusable certificate {certificate}", detail=str(exc), code="E-TLS") from None
    return context


def check_bindable(host: str, port: int) -> None:
    """Check that the gateway can bind this address, without listening on it.

    Raises `ConfigError` if it cannot.
    """
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            if probe.family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            allow_rebinding(probe)
            probe.bind((host, port))
    except OSError as exc:
        raise listen_error(host, port, exc) from None


def no_auth_error(reason: str) -> ConfigError:
    """Return the error for a public gateway without authentication. `reason` says why it is public."""
    return ConfigError(
        "a gateway without authentication can serve only this machine",
        detail=f"--no-auth was given, and the gateway is public: {reason}",
        hint="remove --no-auth",
        code="E-ADDRESS",
    )


def listen_error(host: str, port: int, exc: OSError) -> ConfigError:
    """Return the error for a gateway address that cannot be bound."""
    return ConfigError(
        f"cannot listen on {format_host(host)}:{port}",
        detail=exc.strerror or str(exc),
        hint="use another port (--port), or stop the program that uses this one",
        code="E-ADDRESS",
    )


def format_host(host: str) -> str:
    """Return the host as written in a URL: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host
