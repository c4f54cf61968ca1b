"""All problems of a server's certificate, not only the one that TLS reported.

OpenSSL stops at the first problem: trust, then the host name, then the dates. A user who mends only that one meets the
next one. So the doctor reads the certificate itself. Nothing is sent to a server whose certificate was rejected.
"""

from __future__ import annotations

import asyncio
import ipaddress
from contextlib import suppress
from datetime import datetime
from typing import Final, NamedTuple

from toolway.config.schema import Server
from toolway.http.dialer import Dialer, proxy_for
from toolway.http.limits import HttpError
from toolway.http.request import HttpTarget
from toolway.protocol.sanitize import sanitize

MAX_NAMES_SHOWN: Final = 3
RENEW_HINT: Final = "the certificate has expired: ask whoever runs the server to renew it"
CLOCK_HINT: Final = "the certificate is not valid yet: check the clock of this machine, or ask whoever runs the server"
OTHER_NAME_HINT: Final = "the certificate is for another host name: use that name in url"


class CertificateFacts(NamedTuple):
    """Dates and names of a certificate: OpenSSL only looks at them once it trusts the issuer.

    No signature is verified.
    """

    begins: datetime
    ends: datetime
    names: tuple[str, ...]  # DNS names and IP addresses

    def date_problem(self, now: datetime) -> str:
        """Return what is wrong with the dates, to end a sentence about the certificate, or ""."""
        if now > self.ends:
            return f"it expired on {self.ends:%Y-%m-%d}"
        return f"it is valid only from {self.begins:%Y-%m-%d %H:%M} UTC" if now < self.begins else ""

    def name_problem(self, host: str) -> str:
        """Return what is wrong with the names, to end a sentence about the certificate, or ""."""
        if any(_matches(name, host) for name in self.names):
            return ""
        more = len(self.names) - MAX_NAMES_SHOWN
        names = ", ".join(self.names[:MAX_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
        return f"it is for {names}, not for {host}" if names else f"it names no host, so it is not for {host}"


async def fetch_certificate_facts(server: Server, timeout_s: float) -> CertificateFacts | None:
    """Return the facts of the certificate at the server's https URL; None if none was received within `timeout_s`."""
    with suppress(HttpError, TimeoutError, ValueError):
        origin = HttpTarget.parse(server.http_url or "").origin
        if origin.scheme == "https":
            dialer = Dialer(server.effective_network_policy, timeout_s)
            async with asyncio.timeout(timeout_s):
                return read_certificate(await dialer.fetch_certificate(origin, proxy_for(origin)))
    return None


def read_certificate(der: bytes) -> CertificateFacts:
    """Return the dates and names of a DER certificate. Raises `ValueError` if it is malformed."""
    from cryptography import x509

    certificate = x509.load_der_x509_certificate(der)
    names: list[str] = []
    with suppress(x509.ExtensionNotFound):
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names += found.get_values_for_type(x509.DNSName)
        names += map(str, found.get_values_for_type(x509.IPAddress))
    return CertificateFacts(
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
        tuple(sanitize(name, 100) for name in names),
    )


def find_further_problems(
    facts: CertificateFacts | None, host: str, rejected_for: str, now: datetime
) -> tuple[list[str], list[str]]:
    """Return a certificate's problems beyond the one OpenSSL rejected it for, with a hint for each."""
    if facts is None or "certificate" not in rejected_for:
        return [], []
    found = []
    if "mismatch" not in rejected_for and "not valid for" not in rejected_for:
        found.append((facts.name_problem(host), OTHER_NAME_HINT))
    if "expired" not in rejected_for and "not yet valid" not in rejected_for:
        found.append((facts.date_problem(now), RENEW_HINT if now > facts.ends else CLOCK_HINT))
    return [problem for problem, _ in found if problem], [hint for problem, hint in found if problem]


def _matches(name: str, host: str) -> bool:
    """Return True if the host name matches a name of a certificate, in which `*` matches the whole first label."""
    with suppress(ValueError):
        return ipaddress.ip_address(host) == ipaddress.ip_address(name)
    name, host = name.lower().rstrip("."), host.lower().rstrip(".")
    if name.startswith("*."):
        return host.partition(".")[2] == name[2:]
    return name == host
