"""The proxy that the environment names for an origin."""

from __future__ import annotations

from ipaddress import ip_address


def proxy_of(scheme: str, host: str, port: int) -> str | None:
    """The URL that `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY` name. Loopback never has one."""
    from urllib import request as environment  # costly to load, and rarely needed

    proxies = environment.getproxies_environment()
    url = proxies.get(scheme) or proxies.get("all")
    if not url or _is_loopback(host):
        return None
    if environment.proxy_bypass_environment(f"{host}:{port}", proxies):  # type: ignore[attr-defined] # unknown to its types
        return None
    return url if "://" in url else f"http://{url}"


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
